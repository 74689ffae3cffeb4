"""Operators that put the elements along an axis in order."""
import random

import torch

from cases import case, dims
from cases.indexing import one_axis, ordered


@case("sort", count=24)
def _():
    shape = dims(high=9)
    axis, descending = one_axis(shape), random.random() < 0.5
    if random.random() < 0.4:
        shape[axis] = random.randint(50, 200)
    x = ordered(shape)
    return ({"axis": axis, "descending": descending}, [x],
            lambda x: tuple(torch.sort(x, dim=axis, descending=descending, stable=True)),
            {"forward_only": x.dtype != torch.float64})


@case("argsort", count=12)
def _():
    shape = dims(high=9)
    axis, descending = one_axis(shape), random.random() < 0.5
    return ({"axis": axis, "descending": descending}, [ordered(shape)],
            lambda x: torch.sort(x, dim=axis, descending=descending, stable=True)[1], {"forward_only": True})
