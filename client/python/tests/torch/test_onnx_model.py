"""ONNX files, as PyTorch exports them, as layers of an FFModel."""

import copy
import warnings

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.onnx import TrainingMode

from espalier.core import DataType, FFConfig, FFModel, LossType, MetricsType, SGDOptimizer
from espalier.errors import InvalidArgument, UnsupportedOperators
from espalier.onnx import ONNXModel

BATCH = 8
SPARSE = LossType.LOSS_SPARSE_CATEGORICAL_CROSSENTROPY


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 6, 3, 1, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.0)
        )
        self.mixed = nn.Conv2d(6, 4, 1)
        self.classifier = nn.Sequential(nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 5))

    def forward(self, x):
        x = self.features(x)
        x = torch.cat([self.mixed(x) * 0.5, torch.sigmoid(self.mixed(x)) - 1], 1)
        left, right = torch.split(x, 4, 1)
        x = (left + right).transpose(1, 2).reshape(x.size(0), -1)
        return torch.softmax(self.classifier(x), 1)


def export(module, path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (torch.randn(BATCH, 3, 8, 8),),
            str(path),
            training=TrainingMode.TRAINING,
            input_names=["input.1"],
            dynamo=False,
            do_constant_folding=False,
            **options,
        )


def build(path):
    model = FFModel(FFConfig(["-b", str(BATCH)]))
    x = model.create_tensor([BATCH, 3, 8, 8], DataType.DT_FLOAT)
    output = ONNXModel(path).apply(model, {"input.1": x})
    assert output.dims == (BATCH, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the softmax at the end is seen
        model.compile(SGDOptimizer(model, 0.1), SPARSE, [MetricsType.METRICS_ACCURACY])
    return model


def test_a_file_of_pytorch_trains_as_the_module(daemon, tmp_path):
    torch.manual_seed(0)
    module = Cnn()
    export(module, tmp_path / "cnn.onnx")
    reference = copy.deepcopy(module)  # tracing has moved the running statistics
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(48, 3, 8, 8)).astype(np.float32), rng.integers(0, 5, (48, 1)).astype(np.int32)
    with build(tmp_path / "cnn.onnx") as model:
        history = model.fit(x, y, epochs=2, verbose=0)
        trained = model.parameters()
        output = model.predict(x)
    optimizer, losses = torch.optim.SGD(reference.parameters(), 0.1), []
    for _ in range(2):
        total = 0.0
        for i in range(0, len(x), BATCH):
            optimizer.zero_grad()
            labels = torch.tensor(y[i : i + BATCH, 0]).long()
            loss = nn.functional.nll_loss(torch.log(reference(torch.tensor(x[i : i + BATCH]))), labels)
            loss.backward()
            optimizer.step()
            total += loss.item() * BATCH / len(x)
        losses.append(total)
    assert [h["loss"] for h in history] == pytest.approx(losses, rel=1e-4)
    np.testing.assert_allclose(output, reference.eval()(torch.tensor(x)).detach(), rtol=1e-3, atol=1e-5)
    assert {"features.1.running_var", "classifier.0.weight"} <= set(trained)


def test_parameters_without_values_start_as_in_flexflow(daemon, tmp_path):
    export(Cnn(), tmp_path / "cnn.onnx", export_params=False)
    with build(tmp_path / "cnn.onnx") as model:
        p = model.parameters()
    limit = (6 / (64 + 12)) ** 0.5
    assert limit * 0.9 < np.abs(p["classifier.0.weight"]).max() <= limit
    assert not p["classifier.0.bias"].any()
    assert (p["features.1.weight"] == 1).all()
    assert (p["features.1.running_var"] == 1).all()


def test_all_operators_that_cannot_be_converted_are_listed(tmp_path):
    make = onnx.helper.make_node
    nodes = [make("Relu", ["x"], ["a"]), make("Det", ["a"], ["b"], "d"), make("Det", ["b"], ["c"], "e")]
    nodes.append(make("Mish", ["c"], ["y"], "m"))
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, 3]) for name in "xy")
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [y])), tmp_path / "bad.onnx")
    model = FFModel(FFConfig(["-b", "4"]))
    tensor = model.create_tensor([4, 3], DataType.DT_FLOAT)
    with pytest.raises(UnsupportedOperators, match=r"Det \(2 times, first at node d\)\n  Mish \(once"):
        ONNXModel(tmp_path / "bad.onnx").apply(model, {"x": tensor})
    with pytest.raises(InvalidArgument, match="the file has no input 'z'; it has x"):
        ONNXModel(tmp_path / "bad.onnx").apply(model, {"z": tensor})
    with pytest.raises(InvalidArgument, match=r"input 'x' \[4, 3\] is given no tensor"):
        ONNXModel(tmp_path / "bad.onnx").apply(model, {})


def test_other_files_are_refused(tmp_path):
    (tmp_path / "text.onnx").write_text("no model")
    with pytest.raises(InvalidArgument, match="is no ONNX file"):
        ONNXModel(tmp_path / "text.onnx")
    with pytest.raises(InvalidArgument, match="there is no such file"):
        ONNXModel(tmp_path / "absent.onnx")
