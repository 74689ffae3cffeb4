"""Whole models, from PyTorch through ONNX, against PyTorch in float64.

Each model of models/ starts from random weights and is exported in training form. model_runner trains the file
through importer, planner and executor on two threads; PyTorch trains the same module, in float64. Compared are
the prediction and the gradient of every parameter in the first step, the losses of ten steps of SGD with momentum
0.9, on batches that take turns, and the parameters and running statistics at the end.

Errors are the largest difference relative to the largest magnitude: of the prediction, of each parameter's gradient
(or a thousandth of the largest gradient of all, where that is more: the gradients of what a normalisation removes are
nothing but rounding), of each loss, of each parameter. The limits are each model's. What PyTorch itself errs in float32,
on the same measure, is printed beside: where depth multiplies the rounding of the first layers, it does so for both.

The memory that the plan predicts, kernels' workspace included, is within a tenth of what the executor takes.

    tests/conformance/models_test.py ModelsTest.test_gpt_2 runs one model.
"""

import copy
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import warnings

# See tests/benchmarks/training_throughput.py; ours is started without this.
OUR_ENVIRONMENT = dict(os.environ)
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import models  # noqa: E402

STEPS, BATCHES, MOMENTUM = 10, 2, 0.9
MEMORY_ERROR = 0.1  # of the plan's peak, relative to what the executor takes
THREADS = int(os.environ.get("THREADS", "2"))
MODEL_RUNNER = os.environ.get("ESPALIER_MODEL_RUNNER") or os.path.join(HERE, "model_runner")


def read_safetensors(path):
    with open(path, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        data = file.read()
    metadata = header.pop("__metadata__")
    types = {"F32": np.float32, "I64": np.int64, "I32": np.int32, "BOOL": np.bool_}
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        array = np.frombuffer(data[begin:end], types[entry["dtype"]]).reshape(entry["shape"])
        tensors[name] = torch.from_numpy(array.copy())
    return tensors, metadata


def loss_of(model, prediction, labels):
    if model.loss == models.SQUARES:
        return F.mse_loss(prediction, labels)
    if model.loss == models.BINARY:
        return F.binary_cross_entropy_with_logits(prediction, labels)
    return F.cross_entropy(prediction.reshape(-1, prediction.shape[-1]), labels.reshape(-1))


def train(model, module, columns, labels, dtype):
    """What model_runner writes, by PyTorch."""
    module = copy.deepcopy(module).to(dtype).train()
    columns = [x.to(dtype) if x.is_floating_point() else x for x in columns.values()]
    labels = labels.to(dtype) if labels.is_floating_point() else labels
    optimizer = torch.optim.SGD(module.parameters(), lr=model.learning_rate, momentum=MOMENTUM)
    result, losses = {}, []
    for step in range(STEPS):
        rows = slice(step % BATCHES * model.batch, (step % BATCHES + 1) * model.batch)
        optimizer.zero_grad(set_to_none=True)
        prediction = module(*[x[rows] for x in columns])
        loss = loss_of(model, prediction, labels[rows])
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            result["prediction"] = prediction.detach().clone()
            for name, parameter in module.named_parameters():
                if parameter.grad is not None:
                    result["gradient." + name] = parameter.grad.clone()
        optimizer.step()
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            result["parameter." + name] = tensor.detach()
    result["losses"] = torch.tensor(losses, dtype=torch.float64)
    return result


def errors(found, reference):
    """Largest relative errors by kind, and the worst gradient's name."""

    def largest(x):
        return x.abs().max().item() if x.numel() else 0.0

    def error(name, floor=0.0):
        ours, theirs = found[name].double(), reference[name].double()
        if ours.shape != theirs.shape:
            raise AssertionError(f"{name} has shape {list(ours.shape)}, not {list(theirs.shape)}")
        difference = largest(ours - theirs)
        return float("inf") if difference != difference else difference / max(largest(theirs), floor, 1e-30)

    gradients = [name for name in reference if name.startswith("gradient.")]
    floor = 1e-3 * max(largest(reference[name]) for name in gradients)
    by_name = {name: error(name, floor) for name in gradients}
    losses = (found["losses"].double() - reference["losses"]).abs() / reference["losses"].abs()
    parameters = [name for name in reference if name.startswith("parameter.") and name in found]
    floor = 1e-3 * max(largest(reference[name]) for name in parameters)
    return {
        "outputs": error("prediction"),
        "gradients": max(by_name.values()),
        "losses": losses.max().item() if torch.isfinite(losses).all() else float("inf"),
        "parameters": max(error(name, floor) for name in parameters),
    }, max(by_name, key=by_name.get)


class OnMeta(TorchFunctionMode):
    """Tensors without memory, to count the parameters of large models."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function in (torch.empty, torch.zeros, torch.ones, torch.arange, torch.full):
            kwargs["device"] = "meta"
        return function(*args, **kwargs)


class ModelsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.set_num_threads(THREADS)
        warnings.simplefilter("ignore")
        cls.folder = tempfile.TemporaryDirectory()
        print(
            "\nLargest relative errors against PyTorch in float64; behind them those of PyTorch in float32 (f32).\n" + line([name for name, _ in COLUMNS]),
            flush=True,
        )

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def follow(self, model):
        start = time.monotonic()
        torch.manual_seed(model.seed)
        module = model.make().train()
        columns = model.inputs(BATCHES * model.batch)
        labels = model.labels(BATCHES * model.batch)
        path = os.path.join(self.folder.name, "model")
        export(model, module, columns, path + ".onnx")
        # The exporter runs the module, which moves running statistics.
        state = module.state_dict()
        for tensor in onnx.load(path + ".onnx").graph.initializer:
            if tensor.name in state:
                state[tensor.name].copy_(torch.from_numpy(numpy_helper.to_array(tensor).copy()))
        np.savez(path + ".npz", labels=labels.numpy(), **{name: x.numpy() for name, x in columns.items()})
        reference = train(model, module, columns, labels, torch.float64)
        theirs, _ = errors(train(model, module, columns, labels, torch.float32), reference)
        result = subprocess.run(
            [
                MODEL_RUNNER,
                f"--model={path}.onnx",
                f"--data={path}.npz",
                f"--out={path}.out",
                f"--batch={model.batch}",
                f"--loss={model.loss}",
                f"--steps={STEPS}",
                f"--learning_rate={model.learning_rate}",
                f"--momentum={MOMENTUM}",
                f"--threads={THREADS}",
            ],
            env=OUR_ENVIRONMENT,
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(result.returncode, 0, f"{model.name}: {result.stderr}")
        found, metadata = read_safetensors(path + ".out")
        trained = {name for name in reference if name.startswith("gradient.")}
        self.assertEqual(trained, {name for name in found if name.startswith("gradient.")}, model.name)
        ours, worst = errors(found, reference)
        print(row(model, module, metadata, ours, theirs, time.monotonic() - start), flush=True)
        most = models.FUSED.get(model.name, int(metadata["imported"]))
        self.assertLessEqual(operators(metadata), most, f"{model.name}: operators after fusion")
        predicted, measured = int(metadata["predicted_bytes"]), int(metadata["measured_bytes"])
        self.assertLessEqual(abs(predicted - measured), MEMORY_ERROR * measured, f"{model.name}: predicted {predicted} bytes of memory, took {measured}")
        for kind, error in ours.items():
            self.assertLessEqual(error, getattr(model, kind), f"{model.name}: {kind} (worst gradient: {worst}); PyTorch in float32: {theirs}")


def export(model, module, columns, path):
    example = tuple(x[: model.batch] for x in columns.values())
    axes = {name: {0: "batch"} for name in [*columns, "prediction"]} if model.dynamic else None
    torch.onnx.export(
        copy.deepcopy(module),
        example,
        path,
        opset_version=model.opset,
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        input_names=list(columns),
        output_names=["prediction"],
        dynamic_axes=axes,
    )


ERRORS = [("outputs", 8), ("gradients", 9), ("losses", 8), ("parameters", 10)]
COLUMNS = [
    ("model", 18),
    ("parameters", 10),
    ("operators", 9),
    ("fused", 5),
    *ERRORS,
    ("f32: outputs", 12),
    *ERRORS[1:],
    ("10 steps, s", 11),
    ("in all, s", 9),
    ("arena, KiB", 10),
    ("taken, KiB", 10),
    ("predicted", 10),
]


def line(cells):
    return "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, (_, w)) in enumerate(zip(cells, COLUMNS)))


def operators(metadata):
    return sum(json.loads(metadata["nodes"]).values())


def row(model, module, metadata, ours, theirs, seconds):
    def shown(found):
        return [f"{found[kind]:.1e}" for kind, _ in ERRORS]

    return line(
        [
            model.name,
            f"{sum(p.numel() for p in module.parameters()):,}",
            metadata["imported"],
            str(operators(metadata)),
            *shown(ours),
            *shown(theirs),
            f"{float(metadata['seconds']):.2f}",
            f"{seconds:.1f}",
            *[f"{int(metadata[kind + '_bytes']) / 1024:,.0f}" for kind in ("arena", "measured", "predicted")],
        ]
    )


class PublishedTest(unittest.TestCase):
    def test_full_size_models_have_the_published_number_of_parameters(self):
        for model in models.load():
            if model.published is None:
                continue
            make, count = model.published
            with OnMeta():
                module = make()
            self.assertEqual(sum(p.numel() for p in module.parameters()), count, model.name)


def add_tests():
    for model in models.load():
        name = "test_" + re.sub(r"[^a-z0-9]+", "_", model.name.lower())
        setattr(ModelsTest, name, lambda self, model=model: self.follow(model))


add_tests()

if __name__ == "__main__":
    unittest.main()
