"""What another session needs to go on with an optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from espalier.npz import Array


@dataclass(frozen=True)
class SessionState:
    """Tensors of an optimizer, and the numbers of what was done until now.

    optimizer: "<parameter>.adam_m" and the like. updates number the learning rate schedule and Adam's corrections,
    forwards the random numbers of dropout, next_batch the batches of the data.
    """

    optimizer: Mapping[str, Array] = field(default_factory=dict)
    updates: int = 0
    forwards: int = 0
    next_batch: int = 0


__all__ = ["SessionState"]
