"""What a replay logs of a training step is what PyTorch computes in it."""

import copy
import re

import numpy as np
import pytest
import torch
from torch import nn

from espalier.torch import Trainer

EXAMPLES, BATCH, STEPS, STEP = 16, 8, 6, 4
LOG = ["grad(*)", "param(*)", "update(*)", "state(*, *)"]


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(6)
        self.fc = nn.Linear(6 * 16, 5)

    def forward(self, x):
        return self.fc(nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2).flatten(1))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.block(x).mean(1))


def adam(module):
    # Where a gradient is nearly 0, 1 / epsilon multiplies its rounding errors.
    return torch.optim.Adam(module.parameters(), lr=0.02, eps=1e-3)


def momentum(module):
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)


# Of the optimizer's state in PyTorch.
SLOTS = {"adam_m": "exp_avg", "adam_v": "exp_avg_sq", "momentum": "momentum_buffer"}


def in_torch(module, optimizer, x, labels):
    """The same probes of the same step, in double precision."""
    module = copy.deepcopy(module).double().train()
    optimizer = optimizer(module)
    names = {parameter: name for name, parameter in module.named_parameters()}
    for step in range(STEP + 1):
        rows = slice(step * BATCH % EXAMPLES, step * BATCH % EXAMPLES + BATCH)
        before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        state = {
            (names[parameter], slot): tensor.clone()
            for parameter, slots in optimizer.state.items()
            for slot, tensor in slots.items()
            if slot in SLOTS.values()
        }
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x[rows].double()), labels[rows]).backward()
        optimizer.step()
    probes = {}
    for name, tensor in module.named_parameters():
        probes[f"grad({name})"] = tensor.grad
        for slot, theirs in SLOTS.items():
            if (name, theirs) in state:
                probes[f"state({name}, {slot})"] = state[name, theirs]
    for name, tensor in module.state_dict().items():
        if name.endswith("num_batches_tracked"):
            continue
        probes[f"param({name})"] = before[name]
        probes[f"update({name})"] = tensor - before[name]
    return {name: tensor.detach().numpy() for name, tensor in probes.items()}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("model", "shape", "optimizer"),
    [
        (Cnn, (1, 8, 8), adam),
        (Cnn, (1, 8, 8), momentum),
        (Transformer, (6, 16), adam),
        (Transformer, (6, 16), momentum),
    ],
)
def test_probes_are_what_torch_computes(daemon, model, shape, optimizer, workers):
    torch.manual_seed(0)
    module = model()
    x, labels = torch.randn(EXAMPLES, *shape), torch.randint(0, 5, (EXAMPLES,))
    expected = in_torch(module, optimizer, x, labels)
    trainer = Trainer(module, loss=nn.CrossEntropyLoss(), optimizer=optimizer(module))
    name = f"{model.__name__}-{optimizer.__name__}-{workers}"
    search = {"max_devices": workers, "strategy": "data_parallel"}
    trainer.fit(
        (x, labels), steps=STEPS, batch_size=BATCH, shuffle=False, verbose=0, name=name, record="every:3", search=search
    )
    replay = daemon.replay(name, log=LOG, steps=STEP)
    replay.wait(verbose=0)
    rows = {row.name: row.value for row in replay.rows()}
    assert replay.state == "succeeded"
    assert replay.comparison.bits
    missing = [probe for probe in expected if probe not in rows]
    assert not missing, (missing, sorted(rows))
    far = {}
    for probe, tensor in expected.items():
        found = np.asarray(rows[probe])
        assert found.shape == tensor.shape, probe
        distance = np.abs(found - tensor).max() / np.abs(tensor).max()
        if not distance <= 1e-5:
            far[probe] = distance
    assert not far
    assert {re.sub(r"\(.*", "", probe) for probe in expected} == {"grad", "param", "update", "state"}
