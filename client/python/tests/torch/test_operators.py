"""Operators give PyTorch's values and gradients.

Each case f has a parameter p and a factor w; the loss is the sum of w * sum(r * f(x * p)), with fixed numbers r. Then
the gradient of w is the value of the case, and that of p its gradient, so one step of SGD checks many cases.
"""

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (its usual name)
from torch import nn

from espalier.torch import Trainer

ROWS = 4


def inplace_view(x):
    y = x * 2
    y[:, 1:3].mul_(3)
    y[:, 0] = x[:, 3]
    z = y.view(ROWS, -1)
    y += 1
    return y + z.reshape(y.shape)


def masked(x):
    y = x.clone()
    y[torch.arange(6) > 2] = 0
    return y


def mixed_index(x):
    rows = torch.tensor([[0, 2], [5, 1]])
    return x[:, rows, :, torch.tensor([1, 0])]


def detached(x):
    return x * x.detach() + x.detach().sin()


def without_gradient(x):
    with torch.no_grad():
        factor = x.abs().mean()
    return x / factor


def attention(x, **options):
    q = x.reshape(x.shape[0], 3, 4, -1)
    return F.scaled_dot_product_attention(q, q * 0.5, q.sin(), **options)


IMAGE = (3, 6, 8)
KERNEL = torch.linspace(-1, 1, 6 * 3 * 3 * 3).reshape(6, 3, 3, 3)
CASES = {
    "elementwise": {
        "arithmetic": ((6,), lambda x: (x + 2) * x - x / 3 + 1 / (x.abs() + 1) - (2 - x)),
        "powers": ((6,), lambda x: x**2 + x.abs() ** 1.5 + (x.abs() + 1) ** -0.5 + 2**x),
        "alpha": ((6,), lambda x: torch.add(x, x.cos(), alpha=0.3) + torch.sub(x, x.sin(), alpha=2)),
        "integers": ((6,), lambda x: x * (torch.arange(6) // 4 + torch.arange(6) % 4)),
        "floor_divide": ((6,), lambda x: x * torch.div(torch.arange(-3, 3), 2, rounding_mode="floor")),
        "where": ((6,), lambda x: torch.where(x > 0, x * 2, -x) + x.masked_fill(x < 0.5, 0.25)),
        "clamp": ((6,), lambda x: x.clamp(-0.5, 0.5) + x.clamp(min=0.1)),
        "minimum": ((6,), lambda x: torch.minimum(x, x * x) + torch.maximum(x, torch.tensor(0.3))),
        "logic": ((6,), lambda x: x * ((x > 0) & ~(x > 1) | (x < -1)).float()),
        "log1p": ((6,), lambda x: torch.log1p(x * x) + torch.expm1(x) + torch.erf(x) + torch.log2(x.abs() + 1)),
        "lerp": ((6,), lambda x: torch.lerp(x, x * x, 0.3) + torch.addcmul(x, x, x, value=0.5)),
        "detach": ((6,), detached),
        "no_grad": ((6,), without_gradient),
        "relu6": ((6,), lambda x: F.relu6(x * 4) + F.hardtanh(x)),
        "activations": ((6,), lambda x: F.gelu(x) + F.gelu(x, approximate="tanh") + F.silu(x) + F.mish(x) + F.elu(x)),
        "more activations": ((6,), lambda x: F.hardswish(x) + F.hardsigmoid(x) + F.softplus(x, 2.0) + F.logsigmoid(x)),
        "shrink": ((6,), lambda x: F.softshrink(x, 0.3) + F.hardshrink(x) + F.celu(x, 0.7) + F.selu(x)),
        "glu": ((6,), lambda x: torch.cat([F.glu(x), x.softmax(-1)], -1) + x.log_softmax(1).repeat(1, 2)[:, :9]),
        "prelu": ((6,), lambda x: F.prelu(x, torch.full((6,), 0.3)) + F.leaky_relu(x, 0.3)),
    },
    "shapes": {
        "slices": ((6, 5), lambda x: x[:, 1:-1, ::2] + x[:, -4:, 2:3] + x[..., 4:5][:, :4]),
        "transposes": ((6, 5), lambda x: x.permute(0, 2, 1).transpose(1, 2).mT.flatten(1)),
        "cat": ((6, 5), lambda x: torch.cat([x, x[:, :2] * 2, torch.ones(ROWS, 1, 5)], 1)),
        "stack": ((6, 5), lambda x: torch.stack([x, x * x], 2) + torch.stack(x.unbind(1), 1).unsqueeze(2)),
        "split": ((6, 5), lambda x: sum(p.sum(1, keepdim=True) * i for i, p in enumerate(x.split([1, 2, 3], 1)))),
        "chunk": ((6, 5), lambda x: x.chunk(3, 1)[1] * x.chunk(4, 1)[0]),
        "expand": ((6, 1), lambda x: x.expand(-1, -1, 4) * torch.arange(4.0) + x.repeat(1, 1, 4)),
        "repeat": ((6, 5), lambda x: x.repeat(1, 2, 1) + x.repeat_interleave(2, 1)),
        "roll": ((6, 5), lambda x: x.roll((1, -2), (1, 2)) + x.flip(1)),
        "pad": ((6, 5), lambda x: F.pad(x, (1, 2, 0, 1), value=0.5) + F.pad(x, (1, 2, 1, 0))),
        "reflect": (IMAGE, lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect") + F.pad(x, (1, 2, 2, 1), mode="replicate")),
        "triangle": ((6, 6), lambda x: x.tril() + x.triu(1) * 2),
        "unfold": ((6, 7), lambda x: x.unfold(2, 3, 2)),
        "pixel_shuffle": ((4, 3, 2), lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2)),
        "index": ((6, 5), lambda x: x[:, torch.tensor([0, 2, 2])] + x[:, [3, 1, 0]]),
        "mixed index": ((6, 3, 2), mixed_index),
        "row index": ((6, 5), lambda x: x[torch.arange(ROWS), torch.tensor([0, 5, 2, 2])]),
        "gather": ((6, 5), lambda x: x.gather(1, torch.tensor([[[0, 1], [5, 2]]]).expand(ROWS, 2, 2))),
        "scatter": ((6,), lambda x: torch.zeros(ROWS, 8).scatter_add(1, torch.arange(6).expand(ROWS, 6) % 3, x)),
        "in place": ((6, 5), inplace_view),
        "masked write": ((6, 5), lambda x: masked(x.transpose(0, 1)).transpose(0, 1)),
        "cumsum": ((6, 5), lambda x: x.cumsum(1) + torch.diff(x, dim=2, prepend=x[:, :, :1])),
    },
    "sums": {
        "sums": ((6, 5), lambda x: x.sum(1) + x.mean((1,)) + x.sum() + x.mean()),
        "extremes": ((6, 5), lambda x: x.amax(1) + x.max(1).values + x.min(2, keepdim=True)[0].squeeze(2)[:, :5]),
        "variance": ((6, 5), lambda x: x.var(1) + x.std(1, unbiased=False) + torch.var_mean(x, (1,), correction=0)[0]),
        "norms": ((6, 5), lambda x: x.norm(dim=1) + torch.linalg.vector_norm(x, 1, 1) + F.normalize(x, dim=1).sum(1)),
        "topk": ((6, 5), lambda x: x.topk(3, 1).values + x.sort(1, descending=True)[0][:, :3]),
        "sort": ((6, 5), lambda x: x.sort(1).values * torch.arange(5.0) + x.sort(stable=True, descending=True)[0] ** 2),
        "argsort": ((6, 5), lambda x: x.gather(1, x.argsort(1, descending=True)) * torch.arange(6.0)[:, None]),
        "logsumexp": ((6, 5), lambda x: x.logsumexp(1) + x.prod(1)),
        "matmul": ((6, 5), lambda x: x @ x.mT + torch.bmm(x, x.transpose(1, 2)) + x @ torch.ones(5, 6) + (x @ x[0].mT)),
        "vectors": ((6, 5), lambda x: x @ torch.arange(5.0) + torch.ones(6) @ x.mT.mT @ torch.ones(5, 6)),
        "einsum": ((6, 5), lambda x: torch.einsum("bij,bkj,kl->bil", x, x * 2, torch.ones(6, 2))),
        "einsum batch": ((3, 4, 2), lambda x: torch.einsum("...hd,...kd->...hk", x, x.cos())),
        "addmm": ((6,), lambda x: torch.addmm(torch.ones(3), x, torch.ones(6, 3), beta=0.5, alpha=2)),
        "cosine": ((6, 5), lambda x: F.cosine_similarity(x, x.sin() + 1, dim=1)),
    },
    "layers": {
        "conv": (IMAGE, lambda x: F.conv2d(x, KERNEL, torch.arange(6.0), stride=(2, 1), padding=(1, 2))),
        "same": (IMAGE, lambda x: F.conv2d(x, KERNEL[:, :, :, :2], padding="same")),
        "groups": (IMAGE, lambda x: F.conv2d(x, KERNEL[:, :1], groups=3, dilation=2)),
        "transposed": (IMAGE, lambda x: F.conv_transpose2d(x, KERNEL[:3], stride=2, padding=1, output_padding=1)),
        "conv1d": ((3, 8), lambda x: F.conv1d(x, KERNEL[:, :, 0], padding=1)),
        "pool": (IMAGE, lambda x: F.max_pool2d(x, 3, 2, 1) + F.avg_pool2d(x, 3, 2, 1)),
        "ceil": (IMAGE, lambda x: F.max_pool2d(x, (3, 2), ceil_mode=True)),
        "uncounted": (IMAGE, lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False)),
        "pool1d": ((3, 8), lambda x: F.max_pool1d(x, 2) + F.avg_pool1d(x, 2)),
        "adaptive": (IMAGE, lambda x: F.adaptive_avg_pool2d(x, (4, 3)) + F.adaptive_max_pool2d(x, (4, 3))),
        "bilinear": (IMAGE, lambda x: F.interpolate(x, (9, 5), mode="bilinear", align_corners=False)),
        "aligned": (IMAGE, lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)),
        "nearest": (IMAGE, lambda x: F.interpolate(x, scale_factor=2)),
        "layer norm": (IMAGE, lambda x: F.layer_norm(x, (6, 8), torch.ones(6, 8) * 2, None, 1e-3)),
        "group norm": ((6, 8), lambda x: F.group_norm(x, 3, torch.arange(6.0), torch.ones(6))),
        "rms norm": ((6, 8), lambda x: F.rms_norm(x, (8,), eps=1e-3)),
        "instance norm": (IMAGE, F.instance_norm),
        "batch norm": (IMAGE, lambda x: F.batch_norm(x, None, None, torch.arange(3.0), torch.ones(3), training=True)),
        "no statistics": (IMAGE, lambda x: F.batch_norm(x, torch.zeros(3), torch.arange(1.0, 4), torch.ones(3))),
        "attention": ((24,), attention),
        "causal": ((24,), functools.partial(attention, is_causal=True)),
        "mask": ((24,), functools.partial(attention, attn_mask=torch.eye(4, dtype=torch.bool), scale=0.3)),
        "embedding": ((5, 4), lambda x: F.embedding(torch.tensor([[0, 2], [2, 4]]), x[0], padding_idx=2)),
    },
}


class Cases(nn.Module):
    def __init__(self, cases):
        super().__init__()
        torch.manual_seed(0)
        self.cases = list(cases.values())
        self.p = nn.ParameterList(torch.randn(shape).mul(0.5).add(1) for shape, _ in self.cases)
        self.w = nn.ParameterList(torch.tensor(1.0) for _ in self.cases)
        self.sizes = [int(np.prod(shape)) for shape, _ in self.cases]

    def forward(self, x):
        total = 0.0
        for (shape, function), p, w, size in zip(self.cases, self.p, self.w, self.sizes, strict=True):
            y = function(x[:, :size].reshape(-1, *shape) * p)
            r = torch.linspace(0.5, 1.5, y[:1].numel()).reshape(y[:1].shape)
            total = total + w * (y * r).sum() / ROWS
        return {"loss": total}


@pytest.mark.parametrize("group", CASES)
def test_operators(daemon, group):
    module = Cases(CASES[group])
    x = torch.randn(ROWS, max(module.sizes), generator=torch.Generator().manual_seed(3))
    loss = module(x)["loss"]
    loss.backward()
    wanted = {name: p.grad.clone() for name, p in module.named_parameters()}
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    trainer = Trainer(module, optimizer=torch.optim.SGD(module.parameters(), 1 / 16))
    result = trainer.fit((x,), steps=1, batch_size=ROWS, shuffle=False, verbose=0)
    assert result.history["loss"][0] == pytest.approx(loss.item(), rel=1e-5)
    wrong = {}
    for name, after in module.named_parameters():
        found, true = (before[name] - after.detach()) * 16, wanted[name]
        error = float((found - true).abs().max()) / max(1e-2, float(true.abs().max()))
        if not error < 1e-4:
            wrong[f"{name[0]} {list(CASES[group])[int(name[2:])]}"] = error
    assert not wrong
