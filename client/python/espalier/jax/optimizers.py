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

_STEPS = 8  # that are compared, from the first one with a learning rate above 0 on
_LONGEST_REST = 2000
_TOLERANCE = 2e-4  # of the largest update
_IGNORED = ("identity", "init_empty_state")
KNOWN = "sgd, adam, adamw, adagrad, rmsprop, lion"


@dataclass
class Matched:
    """An optimizer of the daemon, and the leaves of params that the transformation leaves alone."""

    proto: program_pb2.Optimizer
    frozen: list[bool] = field(default_factory=list)
    decays: list[float] = field(default_factory=list)  # weight decay of each leaf
    scales: list[float] = field(default_factory=list)  # how much of the learning rate each leaf has

    def grouped(self, names: Sequence[str]) -> program_pb2.Optimizer:
        """The optimizer with the options of leaves of their own, by the names of their parameters."""
        made = program_pb2.Optimizer()
        made.CopyFrom(self.proto)
        decay = _attributes(made).get("weight_decay", 0.0)
        groups: dict[tuple[float, float], list[str]] = {}
        for name, frozen, own, scale in zip(names, self.frozen, self.decays, self.scales, strict=True):
            if not frozen and (own != decay or scale != 1):
                groups.setdefault((own, scale), []).append(name)
        for (own, scale), parameters in groups.items():
            group = made.groups.add(parameters=parameters)
            if own != decay:
                group.weight_decay = own
            if scale != 1:
                group.learning_rate_scale = scale
        return made


@dataclass
class _Stage:
    name: str  # "scale_by_adam"
    values: dict[str, Any]  # what it closes over


def match(optimizer: Any, params: Any, steps: int, whole: bool = True) -> Matched:
    """The daemon's optimizer for an optax transformation, or for what espalier.fit takes.

    `steps` are those of the job: its schedule is compared at all of them. If the job's number is not known, they are
    not all (`whole`), and only schedules that the daemon has a formula for are taken. InvalidArgument that names the
    part of the transformation without a counterpart.
    """
    leaves = jax.tree_util.tree_leaves(params)
    if isinstance(optimizer, (str, optimizers.Optimizer, program_pb2.Optimizer)):
        proto = optimizers.resolve(optimizer)
        decay = _attributes(proto).get("weight_decay", 0.0)
        return Matched(proto, [False] * len(leaves), [decay] * len(leaves), [1.0] * len(leaves))
    if not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
        raise InvalidArgument(
            f"optimizer is a {type(optimizer).__name__}; accepted: a transformation of optax, a name ({KNOWN}) or an "
            "object of espalier.optimizers"
        )
    # What follows is compared with a part that decays weights, if there is one: others have a decay of 0.
    first, *others = parts = sorted(_parts(optimizer.update), key=lambda p: "add_decayed_weights" not in _names(p))
    for stage in (stage for part in parts for stage in part):
        if stage.name == "scale_by_rss":  # its update does not hold what the sum starts with
            stage.values["initial_accumulator_value"] = _first_sum(optimizer.init(params))
    proto = _guess(first, steps, whole)
    variants = [(_attributes(proto).get("weight_decay", 0.0), 1.0)]
    for part in others:
        if _names(part) - _OWN != _names(first) - _OWN:
            names = " and ".join(", ".join(sorted(_names(p))) for p in parts)
            raise InvalidArgument(f"optax: parts of the parameters have different optimizers ({names}); one is taken")
        other = _guess(part, steps, whole)
        scale = _scale(other.learning_rate, proto.learning_rate, max(steps, 1))
        variants.append((_attributes(other).get("weight_decay", 0.0), scale))
    if any(decay for decay, _ in variants):
        variants += [(0.0, scale) for _, scale in variants]  # leaves that a mask leaves out
    return _verify(optimizer, params, proto, first, list(dict.fromkeys(variants)))


# What parts of the parameters may have of their own.
_OWN = {"add_decayed_weights", "scale", "scale_by_learning_rate", "scale_by_schedule"}


def _names(stages: Sequence[_Stage]) -> set[str]:
    return {stage.name for stage in stages} - set(_IGNORED)


def _attributes(proto: program_pb2.Optimizer) -> dict[str, Any]:
    return {k: (a.b if a.HasField("b") else a.f) for k, a in proto.attributes.items()}


def _scale(schedule: program_pb2.LearningRateSchedule, base: program_pb2.LearningRateSchedule, steps: int) -> float:
    """By how much a schedule is higher than another at every step."""
    scale = schedule.peak / base.peak if base.peak else 1.0
    for step in np.linspace(0, steps - 1, min(steps, 500)).astype(int).tolist():
        if abs(learning_rate(schedule, step) - scale * learning_rate(base, step)) > _TOLERANCE * schedule.peak:
            raise InvalidArgument(
                f"optax: the learning rates of parts of the parameters are no multiples of each other in step {step}; "
                "one schedule for all is taken, times a number for each part"
            )
    return float(scale)


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
        trained = _trained_parts(values)
        if len(trained) == 1:
            return trained[0]
    if name == "masked" and hasattr(values.get("inner"), "update"):
        return _stages(values["inner"].update)
    return [_Stage(name, values)]


def _parts(update: Any) -> list[list[_Stage]]:
    """The transformations of each part of the parameters; of all of them, if they are not parted."""
    name = str(getattr(update, "__qualname__", "")).split(".<locals>")[0]
    values = _closure(update)
    if name == "with_extra_args_support" and hasattr(values.get("tx"), "update"):
        return _parts(values["tx"].update)
    if name in ("partition", "multi_transform"):
        return _trained_parts(values) or [_stages(update)]
    return [_stages(update)]


def _trained_parts(values: Mapping[str, Any]) -> list[list[_Stage]]:
    """Of what optax.partition closes over: the stages of the parts that move."""
    inner = values.get("transforms", {})
    inner = inner.items() if isinstance(inner, Mapping) else inner
    parts = [_stages(t.update) for _, t in inner]
    return [p for p in parts if [s.name for s in p] != ["set_to_zero"]]


def _guess(stages: Sequence[_Stage], steps: int, whole: bool) -> program_pb2.Optimizer:
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

        fitted = fit_schedule(positive, max(steps, 1), "the optax schedule", whole)
    else:
        fitted = program_pb2.LearningRateSchedule(peak=-sign)
    if fitted.peak < 0:
        raise InvalidArgument("the optax transformation ascends: its updates have the sign of the gradient")
    made = optimizers.make(name, fitted.peak, clip_norm=clip_norm, **attributes)
    made.learning_rate.CopyFrom(fitted)
    return made


def _refusal(stage: _Stage, what: str) -> InvalidArgument:
    if stage.name.startswith("MultiSteps"):
        return InvalidArgument(
            "optax: MultiSteps accumulates over k batches. Give the Trainer the optimizer within it, and the k batches "
            "as one; or, in the loop of a Trainer.session whose loss_fn is divided by k, call forward and backward k "
            "times, then update: docs/guide/jax.md"
        )
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
    if v.get("bias_correction"):
        raise _refusal(stage, "bias_correction=True")
    inside = bool(v.get("eps_in_sqrt", True))
    return "rmsprop", {"alpha": v["decay"], "eps": v["eps"], "centered": centered, "eps_in_sqrt": inside}


def _rss(stage: _Stage) -> tuple[str, dict[str, Any]]:
    v = stage.values
    return "adagrad", {
        "initial_accumulator_value": v["initial_accumulator_value"],
        "eps": v["eps"],
        "eps_in_sqrt": True,
    }


def _first_sum(state: Any) -> float:
    """An element of the sums of squares in a new state of optax."""
    sums = getattr(state, "sum_of_squares", None)
    if sums is not None:
        return next((float(x.reshape(-1)[0]) for x in jax.tree_util.tree_leaves(sums) if np.size(x)), 0.0)
    if isinstance(state, Mapping):
        state = tuple(state.values())
    return max((_first_sum(s) for s in state), default=0.0) if isinstance(state, (tuple, list)) else 0.0


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


def _first_move(proto: program_pb2.Optimizer) -> int:
    """The first step with a learning rate above 0. InvalidArgument if it is too far to be compared."""
    for step in range(_LONGEST_REST):
        if learning_rate(proto.learning_rate, step) > 0:
            return step
    raise InvalidArgument(
        f"the optax schedule has the learning rate 0 in its first {_LONGEST_REST} steps: what it does after them "
        "cannot be compared with the daemon's optimizer; begin where it moves"
    )


def _still(tx: Any, params: Any, random: np.random.Generator, steps: int) -> list[bool]:
    """Which leaves do not move in the first steps."""
    state, update = tx.init(params), jax.jit(tx.update)
    still = [True] * len(jax.tree_util.tree_leaves(params))
    for _ in range(steps):
        gradients = jax.tree_util.tree_map(lambda p: random.normal(size=p.shape).astype(np.float32), params)
        updates, state = update(gradients, state, params)
        still = [s and not np.any(u) for s, u in zip(still, jax.tree_util.tree_leaves(updates), strict=True)]
    return still


@dataclass
class _Form:
    """What a leaf may be updated with, and the state of that."""

    decay: float
    scale: float
    attributes: Mapping[str, Any]
    state: dict[str, Any] = field(default_factory=dict)


def _verify(
    tx: Any,
    params: Any,
    proto: program_pb2.Optimizer,
    stages: Sequence[_Stage],
    variants: Sequence[tuple[float, float]],
) -> Matched:
    """Compares the updates of several steps: of each leaf with each of the weight decays and rates in `variants`."""
    random = np.random.default_rng(0)
    leaves, tree = jax.tree_util.tree_flatten(params)
    attributes = _attributes(proto)
    smallest = min((decay for decay, _ in variants if decay), default=0.0)
    # Parameters so large that their decay shows beside the gradient.
    size = 1 / max(smallest, 1e-6) if smallest else 1.0
    own = [_probe(leaf, random) * np.float32(size) for leaf in leaves]
    theirs = jax.tree_util.tree_unflatten(tree, [jax.numpy.asarray(x) for x in own])
    # Leaves that are left alone are no part of the clipped norm.
    constant = proto.learning_rate.kind == program_pb2.LearningRateSchedule.CONSTANT
    if constant and proto.learning_rate.peak == 0:  # as one evaluates: no leaf moves, and none is left alone
        rest, frozen = 0, [False] * len(leaves)
    else:
        rest = _first_move(proto)
        frozen = _still(tx, theirs, random, rest + 3)
    state = tx.init(theirs)
    update = jax.jit(tx.update)
    forms = [[_Form(d, s, {**attributes, "weight_decay": d}) for d, s in variants] for _ in own]
    formula = FORMULAS[proto.name]
    for step in range(rest + _STEPS):
        # Gradients of several magnitudes: some norms are clipped, some are not.
        scale = (1.0, 0.1, 10.0)[step % 3]
        gradients = [np.asarray(random.normal(size=x.shape) * scale, np.float32) for x in own]
        tree_gradients = jax.tree_util.tree_unflatten(tree, [jax.numpy.asarray(g) for g in gradients])
        updates, state = update(tree_gradients, state, theirs)
        moves = [np.asarray(u, np.float64) for u in jax.tree_util.tree_leaves(updates)]
        theirs = jax.tree_util.tree_map(lambda p, u: p + u, theirs, updates)
        rate = learning_rate(proto.learning_rate, step)
        factor = clip([g for g, f in zip(gradients, frozen, strict=True) if not f], proto.clip_norm)
        for i, (x, g, move) in enumerate(zip(own, gradients, moves, strict=True)):
            if frozen[i]:
                if np.any(move):
                    raise _difference(params, i, proto, stages, step)
                continue
            # Of its own largest update: beside a decayed leaf, others move little.
            largest = float(np.abs(move).max()) if move.size else 0.0
            left = []
            for form in forms[i]:
                expected = formula(
                    x.astype(np.float64),
                    g.astype(np.float64) * factor,
                    rate * form.scale,
                    step + 1,
                    form.state,
                    form.attributes,
                )
                wrong = float(np.abs(expected - move).max()) if move.size else 0.0
                if wrong <= _TOLERANCE * max(largest, 1e-12):
                    left.append(form)
            if not left:
                raise _difference(params, i, proto, stages, step)
            forms[i] = left
            own[i] = (x.astype(np.float64) + move).astype(np.float32)
    chosen = [options[0] for options in forms]
    return Matched(proto, frozen, [f.decay for f in chosen], [f.scale for f in chosen])


def _difference(
    params: Any, leaf: int, proto: program_pb2.Optimizer, stages: Sequence[_Stage], step: int
) -> InvalidArgument:
    path = jax.tree_util.keystr(jax.tree_util.tree_flatten_with_path(params)[0][leaf][0])
    names = ", ".join(stage.name for stage in stages)
    return InvalidArgument(
        f"the optax transformation ({names}) does not move {path} as the daemon's {proto.name} does, from update "
        f"{step + 1} on. espalier.optimizers has the daemon's optimizers"
    )
