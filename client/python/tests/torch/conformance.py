"""Trains a model of the zoo here and in PyTorch, and says how far the results are apart."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from zoo import Columns, Entry

from espalier.torch import Trainer

STEPS = 10
ONE = {"max_devices": 1}
TWO = {"max_devices": 2, "strategy": "data_parallel"}


@dataclass
class Distance:
    """How far results are from those of float64: here, and in PyTorch's own float32."""

    here: float
    torch: float


@dataclass
class Result:
    """Losses relative to their size, the others to the largest element of all."""

    loss: Distance
    gradient: Distance
    curve: dict[int, Distance]  # workers -> the largest of the losses of all steps
    weights: dict[int, Distance]  # workers -> parameters and running statistics after the last step


def call(entry: Entry, module: nn.Module, columns: Columns) -> torch.Tensor:
    arguments = dict(columns)
    if entry.loss is None:
        return module(**arguments).loss
    labels = arguments.pop("labels")
    return entry.loss(module(*arguments.values()), labels)


def train_torch(entry: Entry, module: nn.Module, columns: Columns, rate: float, steps: int) -> list[float]:
    optimizer = torch.optim.SGD(module.parameters(), rate)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = call(entry, module, columns)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_here(entry: Entry, module: nn.Module, columns: Columns, rate: float, steps: int, search: dict) -> list[float]:
    count = len(columns["labels"])
    data = tuple(columns.values()) if entry.loss is not None else dict(columns)
    trainer = Trainer(module, loss=entry.loss, optimizer=torch.optim.SGD(module.parameters(), rate))
    result = trainer.fit(data, steps=steps, batch_size=count, shuffle=False, verbose=0, search=search)
    return result.history["loss"]


def state(module: nn.Module) -> dict[str, np.ndarray]:
    return {name: tensor.detach().numpy().copy() for name, tensor in module.state_dict().items()}


def apart(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    """The largest difference of two states, relative to the largest element or 1."""
    for name, tensor in b.items():
        if not np.issubdtype(tensor.dtype, np.floating):
            np.testing.assert_array_equal(a[name], tensor, err_msg=name)
    floats = [name for name in b if np.issubdtype(b[name].dtype, np.floating)]
    scale = max(1.0, max(float(np.abs(b[name]).max(initial=0.0)) for name in floats))
    return max(float(np.abs(a[name] - b[name]).max(initial=0.0)) for name in floats) / scale


def relative(a: list[float], b: list[float]) -> float:
    assert len(a) == len(b)
    return max(abs(x - y) / max(abs(y), 1e-30) for x, y in zip(a, b, strict=True))


def in_double(module: nn.Module, columns: Columns) -> tuple[nn.Module, Columns]:
    return copy.deepcopy(module).double(), {k: c.double() if c.is_floating_point() else c for k, c in columns.items()}


def gradients(entry: Entry, module: nn.Module, columns: Columns) -> dict[str, np.ndarray]:
    module = copy.deepcopy(module)
    call(entry, module, columns).backward()
    return {name: (torch.zeros_like(p) if p.grad is None else p.grad).numpy() for name, p in module.named_parameters()}


def largest_difference(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> float:
    largest = max(float(np.abs(x).max()) for x in b.values())
    return max(float(np.abs(a[name] - b[name]).max()) for name in b) / largest


def compare(entry: Entry) -> Result:
    torch.manual_seed(0)
    module, columns = entry.build().train(), entry.data(entry.examples)
    double, doubles = in_double(module, columns)
    # One step with rate 1 changes parameters by their gradients.
    here = copy.deepcopy(module)
    loss = train_here(entry, here, columns, 1.0, 1, TWO)
    moved = dict(here.named_parameters())
    found = {name: (before - moved[name]).detach().numpy() for name, before in module.named_parameters()}
    wanted = gradients(entry, double, doubles)
    own = largest_difference(gradients(entry, module, columns), wanted)
    gradient = Distance(largest_difference(found, wanted), own)

    reference, plain = copy.deepcopy(double), copy.deepcopy(module)
    losses = train_torch(entry, reference, doubles, entry.rate, STEPS)
    own_losses = train_torch(entry, plain, columns, entry.rate, STEPS)
    own_curve, own_weights = relative(own_losses, losses), apart(state(plain), state(reference))
    result = Result(Distance(relative(loss, losses[:1]), relative(own_losses[:1], losses[:1])), gradient, {}, {})
    for workers, search in ((1, ONE), (2, TWO)):
        here = copy.deepcopy(module)
        found_losses = train_here(entry, here, columns, entry.rate, STEPS, search)
        result.curve[workers] = Distance(relative(found_losses, losses), own_curve)
        result.weights[workers] = Distance(apart(state(here), state(reference)), own_weights)
    return result
