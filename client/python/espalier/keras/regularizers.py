"""Penalties on weights and activations: l1 * sum |w| + l2 * sum w^2."""

from __future__ import annotations

from typing import Any

from espalier.keras.serialization import Configurable, find


class Regularizer(Configurable):
    """Base of all regularizers: `l1` and `l2` are their factors."""

    l1: float = 0.0
    l2: float = 0.0


class L1(Regularizer):
    """l1 * sum |w|."""

    def __init__(self, l1: float = 0.01):
        self.l1 = float(l1)


class L2(Regularizer):
    """l2 * sum w^2."""

    def __init__(self, l2: float = 0.01):
        self.l2 = float(l2)


class L1L2(Regularizer):
    """l1 * sum |w| + l2 * sum w^2."""

    def __init__(self, l1: float = 0.0, l2: float = 0.0):
        self.l1, self.l2 = float(l1), float(l2)


def _both() -> L1L2:
    return L1L2(0.01, 0.01)


l1 = L1
l2 = L2
l1_l2 = L1L2

_CLASSES: dict[str, Any] = {"L1": L1, "L2": L2, "L1L2": L1L2, "l1": L1, "l2": L2, "l1_l2": _both, "l1l2": _both}


def get(identifier: Any) -> Regularizer | None:
    """The regularizer of a name ("l2") or configuration; None for None. Others than these three are refused."""
    if identifier is None:
        return None
    found: Regularizer = find("regularizer", identifier, _CLASSES, Regularizer)
    return found
