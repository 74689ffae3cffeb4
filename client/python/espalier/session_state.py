"""What another session needs to go on with an optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from espalier.npz import Array


@dataclass(frozen=True)
class SessionState:
    """Tensors of an optimizer, and the numbers of what was done until now.

    optimizer: "<parameter>.adam_m" and the like. updates number the learning rate schedule and Adam's corrections,
    forwards the random numbers of dropout, next_batch the batches of the data. examples and batch_size tell these data
    from others: how many examples were trained on, and by how many; 0: not known.
    """

    optimizer: Mapping[str, Array] = field(default_factory=dict)
    updates: int = 0
    forwards: int = 0
    next_batch: int = 0
    examples: int = 0
    batch_size: int = 0

    def on(self, examples: int, batch_size: int) -> SessionState:
        """This state for data with so many examples to train on, by so many.

        On the data of before, as far as numbers tell, the batches go on where they were. Others begin with a whole
        epoch, whose number is higher than those of the epochs before, so that it is shuffled anew.
        """
        same = self.examples == examples and self.batch_size == batch_size
        per_epoch = examples // batch_size
        if same or not self.examples or not per_epoch:
            return self
        next_batch = -(-self.next_batch // per_epoch) * per_epoch
        return replace(self, next_batch=next_batch, examples=examples, batch_size=batch_size)


__all__ = ["SessionState"]
