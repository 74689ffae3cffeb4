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


class PreNorm(nn.Module):
    """The sum that a norm reads goes on beside it."""

    def __init__(self):
        super().__init__()
        self.block = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        return self.head(self.norm(self.block(x)).mean(1))


class Attention(nn.Module):
    """Spelled out."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.head = (nn.Linear(16, width) for width in (16, 16, 16, 5))
        self.softmax = nn.Softmax(-1)

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (4, 4)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        attended = self.softmax(q @ k.transpose(-2, -1) / 2.0) @ v
        return self.head(attended.transpose(1, 2).flatten(2).mean(1))


def adam(module):
    # Where a gradient is nearly 0, 1 / epsilon multiplies its rounding errors.
    return torch.optim.Adam(module.parameters(), lr=0.02, eps=1e-3)


def momentum(module):
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-2)


# Of the optimizer's state in PyTorch.
SLOTS = {"adam_m": "exp_avg", "adam_v": "exp_avg_sq", "momentum": "momentum_buffer"}


def watch(module, watched, gradients):
    """Keeps the gradients of what modules take or give."""

    def keep(value, tensor):
        tensor.register_hook(lambda gradient: gradients.__setitem__(f"grad({value})", gradient))

    for value, (name, side) in watched.items():
        hooked = module.get_submodule(name)
        if side == "input":
            hooked.register_forward_pre_hook(lambda _, given, value=value: keep(value, given[0]))
        else:
            hooked.register_forward_hook(lambda _, given, result, value=value: keep(value, result))


def in_torch(module, optimizer, x, labels, watched=()):
    """The same probes of the same step, in double precision; with `watched`, those of its gradients only."""
    module = copy.deepcopy(module).double().train()
    optimizer = optimizer(module)
    names = {parameter: name for name, parameter in module.named_parameters()}
    gradients = {}
    for step in range(STEP + 1):
        rows = slice(step * BATCH % EXAMPLES, step * BATCH % EXAMPLES + BATCH)
        if step == STEP and watched:
            watch(module, watched, gradients)
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
    if watched:
        return {name: gradient.numpy() for name, gradient in gradients.items()}
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


def compare(daemon, name, log, expected):
    replay = daemon.replay(name, log=log, steps=STEP)
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
    return replay


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
    compare(daemon, name, LOG, expected)
    assert {re.sub(r"\(.*", "", probe) for probe in expected} == {"grad", "param", "update", "state"}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("model", "shape", "watched"),
    [
        # Batch norm and ReLU are one operator, as are linear layers and ReLU.
        (Cnn, (1, 8, 8), {"norm.batch_norm_1.y": ("norm", "output")}),
        (
            Transformer,
            (6, 16),
            {
                "block.linear1.linear.y": ("block.linear1", "output"),
                "block.add.y": ("block.norm1", "input"),
                "block.add_1.y": ("block.norm2", "input"),
            },
        ),
        (
            PreNorm,
            (6, 16),
            {
                "block.linear1.linear.y": ("block.linear1", "output"),
                "block.add.y": ("block.norm2", "input"),
                "block.add_1.y": ("norm", "input"),
            },
        ),
        (Attention, (6, 16), {"div.y": ("softmax", "input"), "softmax.softmax.y": ("softmax", "output")}),
    ],
)
@pytest.mark.filterwarnings("ignore:.*computed again beside the program")
def test_gradients_that_fusion_removed_are_what_torch_computes(daemon, model, shape, watched, workers):
    torch.manual_seed(0)
    module = model()
    x, labels = torch.randn(EXAMPLES, *shape), torch.randint(0, 5, (EXAMPLES,))
    expected = in_torch(module, adam, x, labels, watched)
    assert len(expected) == len(watched)
    name = f"removed-{model.__name__}-{workers}"
    search = {"max_devices": workers, "strategy": "data_parallel"}
    trainer = Trainer(module, loss=nn.CrossEntropyLoss(), optimizer=adam(module))
    trainer.fit(
        (x, labels), steps=STEPS, batch_size=BATCH, shuffle=False, verbose=0, name=name, record="every:3", search=search
    )
    replay = compare(daemon, name, list(expected), expected)
    assert any("'grad(" in note and "computed again beside the program" in note for note in replay.notes)
