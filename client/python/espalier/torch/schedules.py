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


def rates(scheduler: Any, steps: int) -> list[float]:
    """The learning rates of the first steps, where the scheduler is stepped after each. It stays as it is."""
    group = {k: v for k, v in scheduler.optimizer.param_groups[0].items() if k != "params"}
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=float(group["lr"]))
    optimizer.param_groups[0].update(group)

    def copied(one: Any) -> Any:
        made = copy.copy(one)
        made.optimizer = optimizer
        for key in ("_schedulers",):
            if hasattr(made, key):
                setattr(made, key, [copied(inner) for inner in getattr(made, key)])
        return made

    simulated, found = copied(scheduler), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the optimizer has made no step
        for _ in range(steps):
            found.append(float(optimizer.param_groups[0]["lr"]))
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
    if kind in (torch_schedules.ConstantLR, torch_schedules.LambdaLR, torch_schedules.MultiStepLR):
        return optimizers.constant(), base
    return None


def convert(scheduler: Any, total_steps: int | None) -> tuple[optimizers.Schedule, float]:
    """The daemon's schedule of a scheduler that is stepped after each step, and its peak.

    Its learning rates are compared with the scheduler's for all steps of the job. InvalidArgument if they differ.
    """
    name = type(scheduler).__name__
    if isinstance(scheduler, torch_schedules.ReduceLROnPlateau) or not hasattr(scheduler, "base_lrs"):
        raise InvalidArgument(f"scheduler {name} is not supported; a schedule of espalier.optimizers may do")
    if scheduler.last_epoch > 0:
        raise InvalidArgument(f"scheduler {name} has made {scheduler.last_epoch} steps; give a new one")
    found = _candidate(scheduler, float(scheduler.base_lrs[0]))
    if found is None:
        raise InvalidArgument(
            f"scheduler {name} is not supported; accepted are StepLR, ExponentialLR, CosineAnnealingLR, LinearLR, "
            "PolynomialLR and OneCycleLR of torch, and schedules of espalier.optimizers"
        )
    schedule, peak = found
    steps = total_steps or max(schedule.steps, _HORIZON)
    if schedule.kind == "one-cycle":
        steps = min(steps, schedule.steps)  # torch raises beyond
    for step, wanted in enumerate(rates(scheduler, steps)):
        made = rate(schedule, peak, step, steps)
        if not math.isclose(made, wanted, rel_tol=1e-6, abs_tol=1e-12):
            raise InvalidArgument(
                f"scheduler {name}: its learning rate in step {step} of {steps} is {wanted:g}, but {made:g} by the "
                f"schedule {schedule.kind!r} here; that a scheduler is stepped after each step, not epoch, is assumed"
            )
    return schedule, peak
