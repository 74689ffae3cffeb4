"""torch.optim.lr_scheduler's schedules as those of the daemon, compared step by step, or refused by name."""

from __future__ import annotations

import copy
import math
import warnings
from typing import Any

import torch
from torch.optim import lr_scheduler as torch_schedules

from espalier import optimizers
from espalier.errors import InvalidArgument

_HORIZON = 1000  # steps that are compared where the job's number is not known
_MOMENTA = ("momentum", "betas")


def rates(scheduler: Any, steps: int) -> list[list[float]]:
    """The rates of the first steps, where the scheduler is stepped after each, by group. It stays as it is."""
    groups = [{k: v for k, v in g.items() if k != "params"} for g in scheduler.optimizer.param_groups]
    optimizer = torch.optim.SGD([{"params": [torch.zeros(1, requires_grad=True)]} for _ in groups], lr=1.0)
    for simulated_group, group in zip(optimizer.param_groups, groups, strict=True):
        simulated_group.update(group)
    others = [{k: g.get(k) for k in _MOMENTA} for g in optimizer.param_groups]

    def copied(one: Any) -> Any:
        made = copy.copy(one)
        made.optimizer = optimizer
        for key in ("_schedulers",):
            if hasattr(made, key):
                setattr(made, key, [copied(inner) for inner in getattr(made, key)])
        return made

    simulated = copied(scheduler)
    found: list[list[float]] = [[] for _ in groups]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the optimizer has made no step
        for _ in range(steps):
            for group_rates, group, momenta in zip(found, optimizer.param_groups, others, strict=True):
                group_rates.append(float(group["lr"]))
                if any(group.get(key) != value for key, value in momenta.items()):
                    raise InvalidArgument(
                        f"scheduler {type(scheduler).__name__} changes the momentum; only the learning rate can "
                        "change: cycle_momentum=False"
                    )
            simulated.step()
    return found


def rate(schedule: optimizers.Schedule, peak: float, step: int, total: int) -> float:
    """What the daemon computes (ops/optimizer/lr_schedule.h)."""
    s = schedule
    floor = s.proto(peak).floor
    total = s.steps or total

    def half_cosine(start: float, end: float, t: float) -> float:
        return end + (start - end) * (1 + math.cos(math.pi * t)) / 2

    if s.kind == "one-cycle":
        rise, initial = s.rise or 0.3, s.initial or peak / 25
        last, top = total - 1.0, rise * total - 1.0
        at = min(float(step), last)
        if at <= top:
            return half_cosine(initial, peak, at / top if top > 0 else 1.0)
        return half_cosine(peak, floor, (at - top) / (last - top))
    if s.kind == "table":
        return s.rates[min(step, len(s.rates) - 1)]
    if step < s.warmup:
        return peak * (step + 1) / s.warmup
    at = step - s.warmup
    t = min(1.0, at / max(1, total - s.warmup))
    if s.kind == "cosine":
        return half_cosine(peak, floor, t)
    if s.kind == "step":
        return float(max(floor, peak * s.gamma ** (at // s.step_size)))
    if s.kind == "linear":
        return peak + (floor - peak) * t
    if s.kind == "polynomial":
        return float(floor + (peak - floor) * (1 - t) ** s.power)
    return peak


def _candidate(s: Any, base: float) -> tuple[optimizers.Schedule, float] | None:
    """A schedule of the daemon and its peak that may be this one."""
    kind = type(s)
    if kind is torch_schedules.StepLR:
        return optimizers.step(s.step_size, s.gamma), base
    if kind is torch_schedules.ExponentialLR:
        return optimizers.step(1, s.gamma), base
    if kind is torch_schedules.CosineAnnealingLR:
        return optimizers.cosine(floor=float(s.eta_min), steps=s.T_max), base
    if kind is torch_schedules.LinearLR:
        return optimizers.linear(floor=base * s.end_factor, steps=s.total_iters), base * s.start_factor
    if kind is torch_schedules.PolynomialLR:
        return optimizers.polynomial(s.power, steps=s.total_iters), base
    if kind is torch_schedules.OneCycleLR:
        group = s.optimizer.param_groups[0]
        rise = (s._schedule_phases[0]["end_step"] + 1) / s.total_steps
        made = optimizers.one_cycle(rise, float(group["initial_lr"]), float(group["min_lr"]), s.total_steps)
        return made, float(group["max_lr"])
    return None


def _check_groups(name: str, first: list[float], others: list[list[float]]) -> None:
    """The rates of other groups must be multiples of the first one's."""
    top = max(range(len(first)), key=first.__getitem__, default=0)
    for place, group in enumerate(others, 1):
        scale = group[top] / first[top] if first[top] else 1.0
        for step, (own, base) in enumerate(zip(group, first, strict=True)):
            if not math.isclose(own, scale * base, rel_tol=1e-6, abs_tol=1e-12):
                raise InvalidArgument(
                    f"scheduler {name}: in step {step} the learning rate of group {place} is {own:g}, which is not "
                    f"{scale:g} times that of group 0 as in step {top}; a group's rate must be a multiple of the first "
                    "one's at every step"
                )


def convert(scheduler: Any, total_steps: int | None) -> tuple[optimizers.Schedule, float]:
    """The daemon's schedule of a scheduler that is stepped after each step, and its peak.

    Its learning rates are compared with the scheduler's for all steps of the job; if they differ, or the scheduler has
    no counterpart, it is a table of the rates, which needs the job's number of steps. InvalidArgument without it, or if
    the rates depend on more than the step.
    """
    name = type(scheduler).__name__
    parts = getattr(scheduler, "_schedulers", [scheduler])
    if isinstance(scheduler, torch_schedules.ReduceLROnPlateau) or not hasattr(parts[0], "base_lrs"):
        raise InvalidArgument(f"scheduler {name} is not supported; a schedule of espalier.optimizers may do")
    if any(part.last_epoch > 0 for part in parts):
        raise InvalidArgument(f"scheduler {name} has made steps; give a new one")
    found = _candidate(scheduler, float(parts[0].base_lrs[0]))
    steps = total_steps or max(found[0].steps if found else 0, _HORIZON)
    if found is not None and found[0].kind == "one-cycle":
        steps = min(steps, found[0].steps)  # torch raises beyond
    wanted, *others = rates(scheduler, steps)
    _check_groups(name, wanted, others)
    if found is not None:
        schedule, peak = found
        made = [rate(schedule, peak, step, steps) for step in range(steps)]
        if all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-12) for a, b in zip(made, wanted, strict=True)):
            return found
    if total_steps is None:
        raise InvalidArgument(
            f"scheduler {name} is no schedule of the daemon; the rates of all steps are taken instead where the number "
            "of steps is known: give steps=, or data whose size is known"
        )
    while len(wanted) > 1 and wanted[-1] == wanted[-2]:
        wanted.pop()
    return optimizers.table(wanted), max(wanted)
