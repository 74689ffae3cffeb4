"""The table of cases: one entry per operator, filled by the modules of this package (see `load`).

A case is (attributes, inputs, reference, options): `inputs` are torch tensors (float64 where floating) or None,
`reference(*inputs)` returns a tensor or a tuple, computed with PyTorch. Every call draws new shapes, including sizes of
one and zero. Options: `sum` terms summed, `scale` where the formula amplifies rounding,
`no_gradient` inputs, `forward_only`, `request` (more fields of the request to op_runner, such as {"training": False}),
`fixed_shape` (the reference depends on the drawn sizes: inputs must not be cut for edge tests).

`@case(..., splits_only=True)` is for operators that operators_test checks in another way: its reference may be None.
"""
import importlib
import pkgutil
import random

import torch

CASES = {}


def case(name, count=6, **options):
    def add(make):
        CASES.setdefault(name, []).append((make, count, options))
        return make

    return add


def rand(*dims, scale=1.0):
    return torch.randn(list(dims), dtype=torch.float64) * scale


def away_from_zero(*dims):
    """For functions with a kink at zero: finite steps must not cross it."""
    x = rand(*dims)
    return x + 0.1 * torch.sign(x)


def dims(rank=None, low=1, high=6):
    return [random.randint(low, high) for _ in range(rank or random.randint(1, 4))]


def load():
    """Imports every module of this package, and returns the table."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return CASES
