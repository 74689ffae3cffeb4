"""Which epochs a replay executes, and from which checkpoint it begins."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from espalier.errors import FailedPrecondition


@dataclass(frozen=True)
class Step:
    """One epoch of a replay.

    kind: "restore": only to get the state after it; "again": executed only to get there, as no checkpoint is nearer;
    "replay": it belongs to the segment.
    """

    epoch: int
    kind: str


def segment(epochs: int, k: int, n: int) -> range:
    """Epochs of segment k (from 1) of n: contiguous, of nearly equal length, the longer ones first."""
    size, longer = divmod(epochs, n)
    first = (k - 1) * size + min(k - 1, longer)
    return range(first, first + size + (k <= longer))


def steps(epochs: int, k: int, n: int, restorable: Container[int], strong: bool) -> list[Step]:
    """What to do for segment k of n. restorable: epochs after which all blocks have checkpoints.

    FailedPrecondition for strong initialisation where an epoch before lacks a checkpoint.
    """
    mine = segment(epochs, k, n)
    if not mine:
        return []
    before: list[Step] = []
    if strong:
        missing = [epoch for epoch in range(mine.start) if epoch not in restorable]
        if missing:
            raise FailedPrecondition(
                f"--replay_flor strong: epoch {missing[0]} has no checkpoint, so that the epochs before {mine.start} "
                "cannot all be restored; use weak initialisation, or record with FLOR_EVERY=1"
            )
        before = [Step(epoch, "restore") for epoch in range(mine.start)]
    else:
        nearest = next((epoch for epoch in range(mine.start - 1, -1, -1) if epoch in restorable), None)
        if nearest is not None:
            before.append(Step(nearest, "restore"))
        first = 0 if nearest is None else nearest + 1
        before += [Step(epoch, "again") for epoch in range(first, mine.start)]
    return before + [Step(epoch, "replay") for epoch in mine]


__all__ = ["Step", "segment", "steps"]
