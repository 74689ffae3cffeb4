"""Reductions and cumulative sums."""
import random

import torch

from cases import case, dims, rand
from cases.indexing import INTEGERS, TYPES, any_type, one_axis, some_axes


def reduction(name, reference, make=rand, types=(), count=16, **options):
    @case(name, count=count)
    def _():
        shape = dims()
        if random.random() < 0.2:
            shape[random.randrange(len(shape))] = random.randint(40, 700)
        axes, keep = some_axes(shape), random.random() < 0.5
        dtype = random.choice([torch.float64, torch.float64, *types])
        x = make(*shape) if dtype == torch.float64 else any_type(*shape, types=[dtype])
        over = axes or list(range(len(shape)))
        return ({"axes": axes, "keepdims": keep}, [x], lambda x: reference(x, over, keep),
                {"forward_only": dtype != torch.float64, "sum": 1000, **options})


def extreme(function):
    def reference(x, axes, keep):
        return function(x.int() if x.dtype == torch.bool else x, axes, keep).to(x.dtype)
    return reference


def with_ties(*shape):
    return torch.randint(-2, 3, shape).double()


def some_zeros(*shape):
    x = rand(*shape) * 0.3 + 1
    return torch.where(torch.rand(shape) < random.choice([0, 0.05, 0.5]), torch.zeros(()), x)


def product(x, axes, keep):
    for a in sorted([a % x.dim() for a in axes], reverse=True):
        x = x.prod(a, keepdim=keep).to(x.dtype)
    return x


def total(x, axes, keep):
    return x.sum(axes, keepdim=keep).to(x.dtype)


for make in (rand, with_ties):
    reduction("reduce_max", extreme(torch.amax), make, TYPES[2:])
    reduction("reduce_min", extreme(torch.amin), make, TYPES[2:])
reduction("reduce_sum", total, types=INTEGERS)
reduction("reduce_prod", product, some_zeros, [torch.int64], count=24, scale=4)
reduction("reduce_sum_square", lambda x, a, k: total(x * x, a, k), types=INTEGERS)
reduction("reduce_l1", lambda x, a, k: total(x.abs(), a, k), types=INTEGERS)
reduction("reduce_l1", lambda x, a, k: total(x.abs(), a, k), with_ties)
reduction("reduce_l2", lambda x, a, k: torch.linalg.vector_norm(x, 2, a, k))
reduction("reduce_l2", lambda x, a, k: torch.linalg.vector_norm(x, 2, a, k), lambda *d: torch.zeros(d).double(), count=2)
reduction("reduce_log_sum", lambda x, a, k: x.sum(a, keepdim=k).log(), lambda *d: rand(*d).abs() + 0.01, scale=4)
for scale in (1, 300):
    reduction("reduce_log_sum_exp", lambda x, a, k: torch.logsumexp(x, a, k),
              lambda *d, scale=scale: rand(*d, scale=scale), scale=20)


@case("reduce_log_sum_exp", count=3)
def _():
    x = rand(4, 5)
    x[:, 2] = -float("inf")
    return {"axes": [1]}, [x], lambda x: torch.logsumexp(x, 1), {}


@case("cumsum", count=24)
def _():
    shape = dims()
    axis, exclusive, reverse = one_axis(shape), random.random() < 0.5, random.random() < 0.5
    if random.random() < 0.3:
        shape[axis] = random.randint(40, 700)
    x = any_type(*shape, types=[torch.float64, *INTEGERS])

    def reference(x):
        x = x.flip(axis) if reverse else x
        y = torch.cumsum(x, axis)
        y = (y - x if exclusive else y).to(x.dtype)
        return y.flip(axis) if reverse else y

    return ({"axis": axis, "exclusive": exclusive, "reverse": reverse}, [x], reference,
            {"forward_only": x.dtype != torch.float64, "sum": 700})
