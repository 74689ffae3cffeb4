"""optax transformations as the daemon's optimizers.

What a transformation is made of is read from its closures. That is only a guess: its updates are then compared with the
daemon's formulas over several steps, for the caller's tree of parameters, and it is refused where they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from espalier import optimizers
from espalier.errors import InvalidArgument
from espalier.jax.formulas import FORMULAS, clip
from espalier.jax.schedules import fit_schedule, learning_rate
from espalier.v1 import program_pb2

_STEPS = 8  # that are compared
_TOLERANCE = 2e-4  # of the largest update
KNOWN = "sgd, adam, adamw, adagrad, rmsprop, lion"


@dataclass
class Matched:
    """An optimizer of the daemon, and the leaves of params that the transformation leaves alone."""

    proto: program_pb2.Optimizer
    frozen: list[bool] = field(default_factory=list)


@dataclass
class _Stage:
    name: str  # "scale_by_adam"
    values: dict[str, Any]  # what it closes over


def match(optimizer: Any, params: Any, steps: int) -> Matched:
    """The daemon's optimizer for an optax transformation, or for what espalier.fit takes.

    `steps` are those of the job: its schedule is compared at all of them. InvalidArgument that names the part of the
    transformation without a counterpart.
    """
    leaves = jax.tree_util.tree_leaves(params)
    if isinstance(optimizer, (str, optimizers.Optimizer, program_pb2.Optimizer)):
        return Matched(optimizers.resolve(optimizer), [False] * len(leaves))
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise InvalidArgument(
            f"optimizer is a {type(optimizer).__name__}; accepted: a transformation of optax, a name ({KNOWN}) or an "
            "object of espalier.optimizers"
        )
    stages = list(_stages(optimizer.update))
    proto = _guess(stages, steps)
    return Matched(proto, _verify(optimizer, params, proto, stages))


def _closure(function: Any) -> dict[str, Any]:
    code = getattr(function, "__code__", None)
    found = {}
    for name, cell in zip(getattr(code, "co_freevars", ()), getattr(function, "__closure__", None) or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


def _stages(update: Any) -> list[_Stage]:
    """The transformations that an update function applies, in order."""
    name = str(getattr(update, "__qualname__", type(update).__name__)).split(".<locals>")[0]
    values = _closure(update)
    if name in ("chain", "named_chain"):
        functions = values.get("update_fns") or [t.update for t in values.get("transforms", ())]
        return [stage for function in functions for stage in _stages(function)]
    if name == "with_extra_args_support" and hasattr(values.get("tx"), "update"):
        return _stages(values["tx"].update)
    if name in ("partition", "multi_transform"):
        inner = values.get("transforms", {})
        inner = inner.items() if isinstance(inner, Mapping) else inner
        parts = [_stages(t.update) for _, t in inner]
        trained = [p for p in parts if [s.name for s in p] != ["set_to_zero"]]
        if len(trained) == 1:
            return trained[0]
    if name == "masked" and hasattr(values.get("inner"), "update"):
        return _stages(values["inner"].update)
    return [_Stage(name, values)]


_IGNORED = ("identity", "init_empty_state")


def _guess(stages: Sequence[_Stage], steps: int) -> program_pb2.Optimizer:
    """The daemon's optimizer that the stages seem to be."""
    name = "sgd"
    attributes: dict[str, Any] = {}
    rate: float | Callable[[int], Any] = 1.0
    clip_norm, decay, sign = 0.0, 0.0, 1.0
    momentum: dict[str, Any] = {}
    core = False
    for stage in stages:
        v = stage.values
        if stage.name in _IGNORED:
            continue
        if stage.name == "clip_by_global_norm" and not core and not clip_norm:
            clip_norm = float(v["max_norm"])
        elif stage.name == "add_decayed_weights" and not decay:
            if callable(v["weight_decay"]):
                raise _refusal(stage, "weight decay that changes")
            decay = float(v["weight_decay"])
            if decay and core and name == "adam":
                name = "adamw"
        elif stage.name in _CORES and not core:
            name, attributes = _CORES[stage.name](stage)
            core = True
        elif stage.name == "trace" and not momentum:
            momentum = {"momentum": float(v["decay"]), "nesterov": bool(v["nesterov"])}
            core = True
        elif stage.name in ("scale", "scale_by_learning_rate"):
            sign *= float(v["step_size"] if "step_size" in v else v["learning_rate"])
        elif stage.name == "scale_by_schedule" and not callable(rate):
            rate = v["step_size_fn"]
        else:
            raise _refusal(stage, "")
    if decay:
        attributes["weight_decay"] = decay
    if momentum and name == "rmsprop":
        attributes["momentum"] = momentum["momentum"]
    elif momentum:
        attributes.update(momentum)
    if callable(rate):
        schedule = rate

        def positive(step: int) -> float:
            return -sign * float(schedule(step))

        fitted = fit_schedule(positive, max(steps, 1), "the optax schedule")
    else:
        fitted = program_pb2.LearningRateSchedule(peak=-sign)
    if fitted.peak < 0:
        raise InvalidArgument("the optax transformation ascends: its updates have the sign of the gradient")
    made = optimizers.make(name, fitted.peak, clip_norm=clip_norm, **attributes)
    made.learning_rate.CopyFrom(fitted)
    return made


def _refusal(stage: _Stage, what: str) -> InvalidArgument:
    reason = f" ({what})" if what else ""
    return InvalidArgument(
        f"optax: {stage.name}{reason} has no counterpart here, or not in this place of a chain; the daemon's "
        f"optimizers are {KNOWN} and adafactor, with global-norm clipping before, weight decay and a schedule: "
        "espalier.optimizers, docs/guide/training.md"
    )


def _adam(stage: _Stage) -> tuple[str, dict[str, Any]]:
    v = stage.values
    if v.get("nesterov"):
        raise _refusal(stage, "nesterov=True, NAdam")
    if float(v.get("eps_root", 0.0)):
        raise _refusal(stage, "eps_root above 0")
    return "adam", {"beta1": v["b1"], "beta2": v["b2"], "epsilon": v["eps"]}


def _rms(stage: _Stage) -> tuple[str, dict[str, Any]]:
    v = stage.values
    centered = stage.name == "scale_by_stddev"
    if v.get("eps_in_sqrt", True) and float(v["eps"]):
        raise _refusal(stage, "with eps within the root; optax.rmsprop(..., eps_in_sqrt=False) is the daemon's")
    if v.get("bias_correction"):
        raise _refusal(stage, "bias_correction=True")
    return "rmsprop", {"alpha": v["decay"], "eps": v["eps"], "centered": centered}


def _rss(stage: _Stage) -> tuple[str, dict[str, Any]]:
    initial = _closure_of_init(stage, "initial_accumulator_value", 0.1)
    if initial < 1e-3 and float(stage.values["eps"]):
        raise _refusal(stage, "with eps within the root and an accumulator that starts near 0")
    # sqrt(s + eps) with s >= initial: eps there is nothing beside it.
    return "adagrad", {"initial_accumulator_value": initial, "eps": 0.0}


def _closure_of_init(stage: _Stage, name: str, default: float) -> float:
    value = stage.values.get(name)
    return float(default if value is None else value)


def _lion(stage: _Stage) -> tuple[str, dict[str, Any]]:
    v = stage.values
    if v.get("mode", "hard") not in ("hard", "sign"):
        raise _refusal(stage, f"mode {v['mode']}")
    return "lion", {"beta1": v["b1"], "beta2": v["b2"]}


_CORES: dict[str, Callable[[_Stage], tuple[str, dict[str, Any]]]] = {
    "scale_by_adam": _adam,
    "scale_by_rms": _rms,
    "scale_by_stddev": _rms,
    "scale_by_rss": _rss,
    "scale_by_lion": _lion,
}


def _probe(leaf: Any, random: np.random.Generator) -> np.ndarray[Any, Any]:
    """A small leaf of the same number of dimensions and type."""
    shape = [min(int(d), 3) for d in np.shape(leaf)]
    return np.asarray(random.normal(size=shape), np.float32)


def _verify(tx: Any, params: Any, proto: program_pb2.Optimizer, stages: Sequence[_Stage]) -> list[bool]:
    """Compares the updates of several steps. Returns which leaves never move."""
    random = np.random.default_rng(0)
    leaves, tree = jax.tree_util.tree_flatten(params)
    attributes = {k: (a.b if a.HasField("b") else a.f) for k, a in proto.attributes.items()}
    # Parameters so large that their decay shows beside the gradient.
    size = 1 / max(attributes.get("weight_decay", 0.0), 1e-6) if attributes.get("weight_decay") else 1.0
    own = [_probe(leaf, random) * np.float32(size) for leaf in leaves]
    theirs = jax.tree_util.tree_unflatten(tree, [jax.numpy.asarray(x) for x in own])
    state = tx.init(theirs)
    update = jax.jit(tx.update)
    states: list[dict[str, Any]] = [{} for _ in own]
    frozen = [False] * len(own)
    formula = FORMULAS[proto.name]
    for step in range(_STEPS):
        # Gradients of several magnitudes: some norms are clipped, some are not.
        scale = (1.0, 0.1, 10.0)[step % 3]
        gradients = [np.asarray(random.normal(size=x.shape) * scale, np.float32) for x in own]
        tree_gradients = jax.tree_util.tree_unflatten(tree, [jax.numpy.asarray(g) for g in gradients])
        updates, state = update(tree_gradients, state, theirs)
        moves = [np.asarray(u, np.float64) for u in jax.tree_util.tree_leaves(updates)]
        theirs = jax.tree_util.tree_map(lambda p, u: p + u, theirs, updates)
        rate = learning_rate(proto.learning_rate, step)
        if step == 0:
            # The updates of leaves that are left alone are all 0, and no part of the clipped norm.
            frozen = [rate > 0 and not np.any(m) for m in moves]
        factor = clip([g for g, f in zip(gradients, frozen, strict=True) if not f], proto.clip_norm)
        largest = max((float(np.abs(m).max()) for m in moves if m.size), default=0.0)
        for i, (x, g, move) in enumerate(zip(own, gradients, moves, strict=True)):
            if frozen[i] and not np.any(move):
                continue
            expected = formula(
                x.astype(np.float64), g.astype(np.float64) * factor, rate, step + 1, states[i], attributes
            )
            wrong = float(np.abs(expected - move).max()) if move.size else 0.0
            if wrong > _TOLERANCE * max(largest, 1e-12):
                raise _difference(params, i, proto, stages, step)
            own[i] = (x.astype(np.float64) + move).astype(np.float32)
    return frozen


def _difference(
    params: Any, leaf: int, proto: program_pb2.Optimizer, stages: Sequence[_Stage], step: int
) -> InvalidArgument:
    path = jax.tree_util.keystr(jax.tree_util.tree_flatten_with_path(params)[0][leaf][0])
    names = ", ".join(stage.name for stage in stages)
    hint = (
        " Weight decay of some parameters only (a mask) has no counterpart." if "add_decayed_weights" in names else ""
    )
    return InvalidArgument(
        f"the optax transformation ({names}) does not move {path} as the daemon's {proto.name} does, from update "
        f"{step + 1} on.{hint} espalier.optimizers has the daemon's optimizers"
    )
