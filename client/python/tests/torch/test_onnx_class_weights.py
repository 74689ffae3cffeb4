"""Class weights of an ONNX file's loss: the training and the evaluation are those of PyTorch's CrossEntropyLoss."""

import copy
import warnings

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import espalier.onnx as es
from espalier.optimizers import SGD

COUNT, BATCH, STEPS, HELD = 56, 8, 5, 14  # a quarter is held out; two examples fill no batch
WEIGHTS = [0.2, 1.0, 0.0, 3.0]
DATA_PARALLEL = {"strategy": "data_parallel", "max_devices": 2}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x):
        return self.layers(x)


class Pixels(nn.Module):
    """Classes in dimension 1, as PyTorch has them."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.Sequential(nn.Conv2d(6, 5, 1), nn.Tanh(), nn.Conv2d(5, 4, 1))

    def forward(self, x):
        return self.layers(x)


def exported(module, x, path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (x[:2],),
            str(path),
            training=torch.onnx.TrainingMode.TRAINING,
            dynamo=False,
            do_constant_folding=False,
            input_names=["x"],
            dynamic_axes={"x": {0: "batch"}},
        )
    return path


def examples(shape=()):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(COUNT, 6, *shape, generator=generator)
    return x, torch.randint(0, 4, (COUNT, *shape), generator=generator)


def by_torch(module, x, labels, loss, rate=0.3):
    """The losses of the steps, and the loss of the held-out examples as one batch after them."""
    optimizer, losses = torch.optim.SGD(module.parameters(), rate), []
    for first in range(0, BATCH * STEPS, BATCH):
        optimizer.zero_grad()
        value = loss(module(x[first : first + BATCH]), labels[first : first + BATCH])
        value.backward()
        optimizer.step()
        losses.append(value.item())
    with torch.no_grad():
        return losses, loss(module(x[-HELD:]), labels[-HELD:]).item()


@pytest.mark.parametrize(
    ("given", "attributes", "module", "search"),
    [
        (WEIGHTS, {}, Classifier, {"strategy": "single_device"}),
        ({3: 3.0, 0: 0.2, 2: 0.0}, {}, Classifier, DATA_PARALLEL),
        (torch.tensor(WEIGHTS), {"label_smoothing": 0.1, "ignore_index": 1}, Classifier, DATA_PARALLEL),
        (np.array(WEIGHTS), {"ignore_index": 3}, Pixels, {"strategy": "single_device"}),
    ],
    ids=["list", "dict, two workers", "smoothed, ignored, two workers", "pixels"],
)
def test_trains_and_evaluates_as_torch(daemon, tmp_path, given, attributes, module, search):
    module = module()
    x, labels = examples((3, 2) if isinstance(module, Pixels) else ())
    path = exported(module, x, tmp_path / "model.onnx")
    reference = copy.deepcopy(module)
    losses, held_out = by_torch(reference, x, labels, nn.CrossEntropyLoss(torch.tensor(WEIGHTS), **attributes))
    result = es.fit(
        path,
        {"x": x.numpy(), "labels": labels.numpy()},
        loss=es.Loss("sparse_categorical_crossentropy", class_weight=given, **attributes),
        optimizer=SGD(0.3),
        batch_size=BATCH,
        epochs=1,
        validation_split=0.25,
        shuffle=False,
        search=search,
        verbose=0,
    )
    assert result.history["loss"] == pytest.approx(losses, rel=1e-5)
    # All held-out examples as one batch: not the mean of batches, each with a divisor of its own.
    assert result.evaluation["loss"] == pytest.approx(held_out, rel=1e-5)
    weights = result.weights()
    for name, tensor in reference.named_parameters():
        np.testing.assert_allclose(weights[name], tensor.detach().numpy(), atol=1e-5, err_msg=name)
    model = onnx.load(result.save(tmp_path / "trained.onnx"))
    assert {tensor.name for tensor in model.graph.initializer} == set(weights), "those of the loss are no part of it"


def test_mean_over_all_labels_is_that_of_keras(daemon, tmp_path):
    module, (x, labels) = Classifier(), examples()
    path = exported(module, x, tmp_path / "model.onnx")
    weights = torch.tensor(WEIGHTS)

    def loss(logits, labels):
        return (nn.functional.cross_entropy(logits, labels, reduction="none") * weights[labels]).mean()

    losses, held_out = by_torch(copy.deepcopy(module), x, labels, loss)
    result = es.fit(
        path,
        {"x": x.numpy(), "labels": labels.numpy()},
        loss=es.Loss("sparse_categorical_crossentropy", mean_over="all"),
        class_weight=dict(enumerate(WEIGHTS)),
        optimizer=SGD(0.3),
        batch_size=BATCH,
        epochs=1,
        validation_split=0.25,
        shuffle=False,
        verbose=0,
    )
    assert result.history["loss"] == pytest.approx(losses, rel=1e-5)
    assert result.evaluation["loss"] == pytest.approx(held_out, rel=1e-5)
