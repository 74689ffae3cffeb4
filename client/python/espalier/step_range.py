"""Which steps are meant."""

from __future__ import annotations

import re
from typing import Any, TypeAlias

import numpy as np

from espalier.errors import InvalidArgument

# One step, steps of a range or slice, (first, end), where None is no end, or "A:B" as on the command line.
StepsOf: TypeAlias = "int | range | slice | tuple[int, int | None] | str | None"

_TEXT = re.compile(r"(\d*):(\d*)|(\d+)", re.ASCII)


def _parts(steps: Any) -> tuple[Any, Any, Any] | None:
    """First, end and every how many; None: it is nothing that is accepted."""
    if isinstance(steps, str):
        found = _TEXT.fullmatch(steps)
        if found is None or steps == ":":
            return None
        first, end, step = (int(digits) if digits else None for digits in found.groups())
        return _parts((first, end) if step is None else step)
    if isinstance(steps, (range, slice)):
        return steps.start, steps.stop, steps.step
    if isinstance(steps, tuple):
        return (*steps, 1) if len(steps) == 2 else None
    return (steps, steps + 1, 1) if _is_step(steps) else None


def _is_step(given: Any) -> bool:
    return isinstance(given, (int, np.integer)) and not isinstance(given, bool)


def step_bounds(steps: StepsOf) -> tuple[int, int, int]:
    """First step, end (0: none), and every how many."""
    if steps is None:
        return 0, 0, 1
    parts = _parts(steps)
    if parts is not None and all(part is None or _is_step(part) for part in parts):
        first, end, every = parts
        first, every = first or 0, 1 if every is None else every
        if first >= 0 and every >= 1 and (end is None or end > first):
            return int(first), int(end or 0), int(every)
    raise InvalidArgument(
        f"steps={steps!r}: give a step, a range, (first, end) with end above first, from 0 on, or the text 'A:B', as "
        "on the command line; every=N leaves out the others"
    )
