"""Which steps are meant."""

from __future__ import annotations

from typing import TypeAlias

from espalier.errors import InvalidArgument

# One step, steps of a range or slice, or (first, end), where None is no end.
StepsOf: TypeAlias = "int | range | slice | tuple[int, int | None] | None"


def step_bounds(steps: StepsOf) -> tuple[int, int, int]:
    """First step, end (0: none), and every how many."""
    if steps is None:
        return 0, 0, 1
    first: int | None
    end: int | None
    every: int | None = 1
    if isinstance(steps, (range, slice)):
        first, end, every = steps.start, steps.stop, steps.step
    elif isinstance(steps, tuple):
        first, end = steps
    else:
        first, end = steps, steps + 1
    first, every = first or 0, 1 if every is None else every
    if first < 0 or every < 1 or (end is not None and end <= first):
        raise InvalidArgument(f"steps={steps!r}: give a step, a range, or (first, end) with end above first, from 0 on")
    return first, end or 0, every
