"""Trains a model of the zoo here and in PyTorch, and says how far the results are apart."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from zoo import Columns, Entry

from espalier.torch import Trainer

STEPS = 5
ONE = {"max_devices": 1}
TWO = {"max_devices": 2, "strategy": "data_parallel"}


@dataclass
class Result:
    """Differences: of losses relative to PyTorch's, of the others to the largest element of all."""

    loss: float
    gradient: float
    curve: dict[int, float]  # workers -> largest of the losses of all steps
    weights: dict[int, float]  # workers -> parameters and running statistics after the last step


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


def compare(entry: Entry) -> Result:
    torch.manual_seed(0)
    module, columns = entry.build().train(), entry.data(entry.examples)
    # One step with rate 1 changes parameters by their gradients.
    reference, here = copy.deepcopy(module), copy.deepcopy(module)
    call(entry, reference, columns).backward()
    loss = train_here(entry, here, columns, 1.0, 1, ONE)
    gradients = {name: p.grad for name, p in reference.named_parameters() if p.grad is not None}
    largest = max(float(gradient.abs().max()) for gradient in gradients.values())
    moved = dict(here.named_parameters())
    gradient = 0.0
    for name, before in module.named_parameters():
        change = (before - moved[name]).detach()
        wanted = gradients.get(name, torch.zeros_like(change))
        gradient = max(gradient, float((change - wanted).abs().max()) / largest)
    reference = copy.deepcopy(module)
    losses = train_torch(entry, reference, columns, entry.rate, STEPS)
    result = Result(relative(loss, losses[:1]), gradient, {}, {})
    for workers, search in ((1, ONE), (2, TWO)):
        here = copy.deepcopy(module)
        result.curve[workers] = relative(train_here(entry, here, columns, entry.rate, STEPS, search), losses)
        result.weights[workers] = apart(state(here), state(reference))
    return result
