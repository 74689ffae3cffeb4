"""Learning-rate schedules of optax as the daemon's: fitted to the numbers that the schedule gives, then compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from espalier.errors import InvalidArgument
from espalier.v1 import program_pb2

_Schedule = program_pb2.LearningRateSchedule
_TOLERANCE = 3e-6  # of the peak: optax computes schedules in f32
_SAMPLES = 4000
_LONGEST_TABLE = 65536


def learning_rate(schedule: program_pb2.LearningRateSchedule, step: int) -> float:
    """The daemon's learning rate of a step, counted from 0 (docs/reference/grpc-api.md, LearningRateSchedule)."""
    peak, floor, kind = schedule.peak, schedule.floor, schedule.kind
    if kind == _Schedule.TABLE:
        return float(schedule.values[min(step, len(schedule.values) - 1)])
    if step < schedule.warmup_steps:
        if schedule.HasField("warmup_from"):
            return float(schedule.warmup_from + (peak - schedule.warmup_from) * step / schedule.warmup_steps)
        return float(peak * (step + 1) / schedule.warmup_steps)
    s = step - schedule.warmup_steps
    t = min(1.0, s / max(1, schedule.total_steps - schedule.warmup_steps))
    if kind == _Schedule.COSINE:
        return float(floor + (peak - floor) * (1 + math.cos(math.pi * t)) / 2)
    if kind == _Schedule.STEP:
        return float(max(floor, peak * schedule.gamma ** (s // schedule.step_size)))
    if kind == _Schedule.LINEAR:
        return float(peak + (floor - peak) * t)
    if kind == _Schedule.POLYNOMIAL:
        return float(floor + (peak - floor) * (1 - t) ** schedule.power)
    return float(peak)


def numbers_in(function: Any, depth: int = 8) -> Iterator[float]:
    """The numbers that a function closes over: a schedule's steps, rates and powers."""
    if depth == 0:
        return
    cells = [c.cell_contents for c in getattr(function, "__closure__", None) or () if not _is_empty(c)]
    cells += [*getattr(function, "args", ()), *getattr(function, "keywords", {}).values()]
    for value in cells:
        for item in value if isinstance(value, (tuple, list)) else [value]:
            if isinstance(item, (bool, str)) or item is None:
                continue
            if isinstance(item, (int, float, np.integer, np.floating)) or getattr(item, "shape", None) == ():
                yield float(item)
            elif callable(item):
                yield from numbers_in(item, depth - 1)


def _is_empty(cell: Any) -> bool:
    try:
        return cell.cell_contents is None
    except ValueError:
        return True


def fit_schedule(
    function: Callable[[int], Any], steps: int, name: str, whole: bool = True
) -> program_pb2.LearningRateSchedule:
    """The daemon's schedule that gives the numbers of `function` at all of `steps` steps.

    If no formula does, a table of them. InvalidArgument if that would be too long, or if these are not all steps of the
    job (`whole`); `name` is what the message calls the schedule.
    """
    at = sorted({*range(min(steps, 300)), *np.linspace(0, steps - 1, min(steps, _SAMPLES)).astype(int).tolist()})
    rates = {step: float(function(step)) for step in at}
    hints = sorted({n for n in numbers_in(function) if math.isfinite(n)})
    for candidate in _candidates(rates, hints, steps):
        if all(abs(learning_rate(candidate, s) - rate) <= _TOLERANCE * candidate.peak for s, rate in rates.items()):
            return candidate
    if not whole or steps > _LONGEST_TABLE:
        why = (
            f"the job has {steps} steps: a table of the rates has at most {_LONGEST_TABLE}"
            if whole
            else "for a table of the rates the number of steps must be known: give steps=, or data whose size is known"
        )
        shown = ", ".join(f"{rates[s]:.6g}" for s in at[:4])
        raise InvalidArgument(
            f"the learning rate of {name} ({shown}, ...) is none of the daemon's schedules (constant, step, cosine, "
            f"linear, polynomial, each with a linear warm-up), and {why}; espalier.optimizers has those schedules"
        )
    return _table(function, steps, name)


def _table(function: Callable[[int], Any], steps: int, name: str) -> program_pb2.LearningRateSchedule:
    """The rate of every step of the job."""
    values = [float(function(step)) for step in range(steps)]
    while len(values) > 1 and values[-1] == values[-2]:
        values.pop()
    wrong = next((step for step, value in enumerate(values) if not 0 <= value < math.inf), None)
    if wrong is not None:
        raise InvalidArgument(f"the learning rate of {name} is {values[wrong]:g} in step {wrong}; accepted: 0 or more")
    return _Schedule(kind=_Schedule.TABLE, peak=max(values), values=values)


def _candidates(
    rates: dict[int, float], hints: Sequence[float], steps: int
) -> Iterator[program_pb2.LearningRateSchedule]:
    peak = max(rates.values())
    if peak <= 0:
        yield _Schedule(kind=_Schedule.CONSTANT, peak=max(peak, 0.0))
        return
    top = next(s for s in sorted(rates) if rates[s] >= peak * (1 - _TOLERANCE))
    whole = [int(h) for h in hints if h == int(h) and 0 < h <= 10**9]
    whole += [n for n in (steps, steps - 1) if n > 0 and n not in whole]
    for warmup in sorted({0, top + 1 if top > 0 else 0, top}):
        after = sorted(s for s in rates if s >= warmup)
        if not after:
            after = [max(rates)]
        made = [_Schedule(kind=_Schedule.CONSTANT, peak=peak, warmup_steps=warmup)]
        made += _steps(rates, hints, peak, warmup, after)
        for end in dict.fromkeys(n for h in whole for n in (h, h + warmup) if n > warmup):
            made += _falling(rates, hints, peak, warmup, after, end)
        yield from made
        if warmup == top > 0:  # the rise starts with the rate of step 0 and ends with the peak in step `top`
            for schedule in made:
                schedule.warmup_from = rates[0]
            yield from made


def _falling(
    rates: dict[int, float], hints: Sequence[float], peak: float, warmup: int, after: Sequence[int], end: int
) -> Iterator[program_pb2.LearningRateSchedule]:
    """Cosines, lines and polynomials down to step `end`, through the last known rate."""
    last = max(s for s in after)
    t = min(1.0, (last - warmup) / (end - warmup))
    shapes = [(_Schedule.LINEAR, 1.0, 1 - t), (_Schedule.COSINE, 0.0, (1 + math.cos(math.pi * t)) / 2)]
    shapes += [(_Schedule.POLYNOMIAL, h, (1 - t) ** h) for h in hints if 0 < h <= 16 and h != 1]
    for kind, power, remaining in shapes:
        if remaining >= 1:
            continue
        floor = (rates[last] - peak * remaining) / (1 - remaining)
        near = abs(floor) <= peak * 1e-5
        floors = [0.0, max(floor, 0.0)] if near else [floor] if floor > 0 else []
        for value in floors:
            yield _Schedule(kind=kind, peak=peak, warmup_steps=warmup, total_steps=end, floor=value, power=power)


def _steps(
    rates: dict[int, float], hints: Sequence[float], peak: float, warmup: int, after: Sequence[int]
) -> Iterator[program_pb2.LearningRateSchedule]:
    """Decay by a factor every few steps."""
    change = next((s for s in after if rates[s] < peak * (1 - _TOLERANCE)), None)
    if change is None:
        return
    size = change - warmup
    ratios = {rates[change] / peak}
    for rate in hints:
        if 0 < rate < 1:
            ratios.add(rate)
            ratios |= {rate ** (1 / h) for h in hints if h >= 1}  # optax.exponential_decay without staircase
    floors = {0.0, min(rates.values())}
    for ratio in sorted(ratios):
        for floor in sorted(floors):
            if 0 < ratio < 1 and size > 0:
                yield _Schedule(
                    kind=_Schedule.STEP, peak=peak, warmup_steps=warmup, step_size=size, gamma=ratio, floor=floor
                )
