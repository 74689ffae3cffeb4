"""Models of real size, their files as PyTorch exports them, and their training in a cluster of real processes."""
import argparse
import inspect
import json
import os
import re
import sys
import tempfile
import time
import warnings

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before PyTorch is loaded; see training_throughput.py
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "e2e"), os.path.join(HERE, "..", "conformance")]
import numpy as np  # noqa: E402
import torch  # noqa: E402
from cluster import Cluster  # noqa: E402
from models import Model, bert, classes, gpt2, images, resnet, t5, tokens, vgg, vit  # noqa: E402
from torch.nn import functional as F  # noqa: E402

# Dropout is 0: the random masks of two frameworks cannot agree.
MODELS = [
    Model("ResNet-50", resnet.resnet50, images(3, 224), classes(1000), learning_rate=0.00002),
    Model("VGG-16", lambda: vgg.vgg16(dropout=0.0), images(3, 224), classes(1000), batch=2, learning_rate=0.001),
    Model("BERT-base", lambda: bert.Bert(dropout=0.0), lambda n: bert.inputs(n, vocabulary=30522, length=64),
          classes(30522, 64), batch=2),
    Model("GPT-2", lambda: gpt2.Gpt2(dropout=0.0), tokens(50257, 64), classes(50257, 64), batch=2),
    Model("ViT-B/16", lambda: vit.VisionTransformer(dropout=0.0), images(3, 224), classes(1000), batch=2),
    Model("mT5-small", lambda: t5.Mt5(dropout=0.0), lambda n: t5.inputs(n, vocabulary=250112), classes(250112, 12), batch=2),
]


LARGEST_ERROR = 1e-3  # of a loss, relative


def option_parser(description, threads):
    """The options of all scripts; `threads` by default."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(m.name for m in MODELS))
    parser.add_argument("--exporter", choices=("torchscript", "dynamo"), default="torchscript",
                        help="dynamo: PyTorch 2's, which writes weights into a second file")
    parser.add_argument("--json_file", default="", help="also write the rows here, after each model")
    parser.add_argument("--threads", type=int, default=threads, help="of each worker, and of PyTorch")
    return parser


def each(options):
    """Each wanted model, with a folder for its files."""
    torch.set_num_threads(options.threads)
    for model in wanted(options):
        with tempfile.TemporaryDirectory(prefix="espalier-full-size-") as folder:
            yield model, folder


def wanted(options):
    names = options.models.split(",")
    unknown = set(names) - {m.name for m in MODELS}
    if unknown:
        raise SystemExit(f"unknown models {sorted(unknown)}; there are {', '.join(m.name for m in MODELS)}")
    return [m for m in MODELS if m.name in names]


def write_rows(rows, options):
    if options.json_file:
        with open(options.json_file, "w") as file:
            json.dump(rows, file, indent=1)


def cluster_of(workers, options):
    return Cluster(workers=workers, lease=60.0, worker_flags=[f"--threads={options.threads}"])


def run_job(cluster, flags, patience=3600):
    """Id, record and reports of a job, which must succeed."""
    job_id = cluster.train(*flags)
    job = cluster.wait_for_job(job_id, patience)
    if job["state"].upper() != "SUCCEEDED":
        raise AssertionError(job)
    return job_id, job, cluster.job(job_id)[1]


def largest_error(what, losses, expected):
    """Relative; raises if it is too large, or there are other than the expected losses."""
    error = max(abs(ours / theirs - 1) for ours, theirs in zip(losses, expected))
    if len(losses) != len(expected) or not error <= LARGEST_ERROR:
        raise AssertionError(f"{what}: losses {losses}, expected {expected}")
    return error


def progress(text):
    """To standard error: a model takes minutes."""
    print(time.strftime("%T ") + text, file=sys.stderr, flush=True)


def memory(pid, field):
    """Bytes of a process: VmRSS now, VmHWM at most."""
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(field + r":\s+(\d+) kB", status.read()).group(1)) << 10


class Step:
    """PyTorch's training of a model on one batch, by SGD."""

    def __init__(self, model):
        torch.manual_seed(model.seed)
        self.module = model.make().train()
        self.columns, self.labels = model.inputs(model.batch), model.labels(model.batch)
        self.forward = self.module
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=model.learning_rate)

    def run(self):
        """Returns the loss before the step, and seconds."""
        start = time.monotonic()
        self.optimizer.zero_grad(set_to_none=True)
        prediction = self.forward(*self.columns.values())
        loss = F.cross_entropy(prediction.reshape(-1, prediction.shape[-1]), self.labels.reshape(-1))
        loss.backward()
        self.optimizer.step()
        return loss.item(), time.monotonic() - start


def export(model, step, exporter, folder):
    """Writes model.onnx, in training form, and data.npz."""
    np.savez(os.path.join(folder, "data.npz"), labels=step.labels.numpy(), **{name: x.numpy() for name, x in step.columns.items()})
    state = {name: x.clone() for name, x in step.module.state_dict().items()}
    names = {"input_names": list(step.columns), "output_names": ["prediction"]}
    if exporter == "dynamo":
        batch = torch.export.Dim("batch")
        how = {"dynamo": True, "verbose": False, "dynamic_shapes": {name: {0: batch} for name in step.columns}}
    else:
        how = {"opset_version": model.opset, "dynamic_axes": {name: {0: "batch"} for name in [*step.columns, "prediction"]}}
        if "dynamo" in inspect.signature(torch.onnx.export).parameters:
            how["dynamo"] = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(step.module, tuple(step.columns.values()), os.path.join(folder, "model.onnx"),
                          training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, **names, **how)
    step.module.load_state_dict(state)  # the exporter runs the module, which moves running statistics
    return sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder) if f.startswith("model.onnx"))


def train_flags(model, folder, steps):
    return [f"--onnx={folder}/model.onnx", f"--dataset={folder}/data.npz", "--loss=sparse_categorical_crossentropy", "--holdout=0",
            "-b", str(model.batch), f"--steps={steps}", "--optimizer=sgd", f"--lr={model.learning_rate}"]
