"""torch.optim's optimizers as those of the daemon: exactly, or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from espalier import optimizers
from espalier.errors import InvalidArgument


def _must(name: str, options: Mapping[str, Any], **values: Any) -> None:
    for key, value in values.items():
        if options.get(key, value) != value:
            raise InvalidArgument(f"torch.optim.{name}: {key}={options[key]} is not supported; only {key}={value}")


def _sgd(name: str, o: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    _must(name, o, dampening=0, maximize=False)
    return "sgd", {"momentum": o["momentum"], "weight_decay": o["weight_decay"], "nesterov": o["nesterov"]}


def _adam(name: str, o: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    _must(name, o, amsgrad=False, maximize=False)
    decoupled = name == "AdamW" or o.get("decoupled_weight_decay", False)
    beta1, beta2 = o["betas"]
    values = {"beta1": beta1, "beta2": beta2, "epsilon": o["eps"], "weight_decay": o["weight_decay"]}
    return ("adamw" if decoupled else "adam"), values


def _adagrad(name: str, o: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    _must(name, o, maximize=False)
    keys = ("lr_decay", "weight_decay", "initial_accumulator_value", "eps")
    return "adagrad", {key: o[key] for key in keys}


def _rmsprop(name: str, o: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    _must(name, o, maximize=False)
    return "rmsprop", {key: o[key] for key in ("alpha", "eps", "weight_decay", "momentum", "centered")}


def _adafactor(name: str, o: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    _must(name, o, maximize=False)
    first, second = o["eps"]
    if first is None or first > 1e-20:
        # PyTorch bounds a mean of squares by it from below, the daemon adds it to squares; a tiny one does nothing.
        raise InvalidArgument(
            f"torch.optim.Adafactor: eps=({first}, {second}) means something else here; only a first one of at most "
            f"1e-20 gives the same numbers: eps=(1e-30, {second})"
        )
    values = {"beta2_decay": o["beta2_decay"], "eps1": first, "eps2": second, "d": o["d"]}
    return "adafactor", values | {"weight_decay": o["weight_decay"]}


_KNOWN: dict[str, Callable[[str, Mapping[str, Any]], tuple[str, dict[str, Any]]]] = {
    "SGD": _sgd,
    "Adam": _adam,
    "AdamW": _adam,
    "Adagrad": _adagrad,
    "RMSprop": _rmsprop,
    "Adafactor": _adafactor,
}


# Options that a group of parameters may have of its own; those that schedulers derive follow from lr.
_OWN = ("lr", "initial_lr", "max_lr", "min_lr", "weight_decay")


def _options(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The options of the first group of parameters. Others may only differ in learning rate and weight decay."""
    name = type(optimizer).__name__
    first, *others = ({k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups)
    for place, group in enumerate(others, 1):
        for key, value in group.items():
            if key not in _OWN and first.get(key) != value:
                raise InvalidArgument(
                    f"torch.optim.{name}: groups of parameters have {key} {first.get(key)} and {value} (group "
                    f"{place}); one value for all is supported, but for lr and weight_decay"
                )
    return first


def _groups(optimizer: torch.optim.Optimizer, names: Mapping[int, str], rate: str) -> list[optimizers.Group]:
    """Groups that differ from the first one in learning rate (option `rate`) or weight decay."""
    first, *others = optimizer.param_groups
    base, found = float(first[rate]), []
    for group in others:
        own, decay = float(group[rate]), group.get("weight_decay")
        parameters = [names[id(p)] for p in group["params"] if id(p) in names]
        if not parameters or (own == base and decay == first.get("weight_decay")):
            continue
        if base == 0:
            raise InvalidArgument(
                f"torch.optim.{type(optimizer).__name__}: the first group has lr 0 and another {own:g}; put one that "
                "learns first"
            )
        scale = own / base
        found.append(
            optimizers.Group(
                parameters,
                learning_rate_scale=None if scale == 1 else scale,
                weight_decay=None if decay == first.get("weight_decay") else float(decay),
            )
        )
    return found


def check(optimizer: Any, schedule: Any, clip_norm: float) -> None:
    """InvalidArgument for an optimizer that is unknown, or whose options the daemon does not have."""
    if isinstance(optimizer, type):
        raise InvalidArgument(
            f"optimizer is the class {optimizer.__name__}; give an object: {optimizer.__name__}(module.parameters())"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        if schedule is not None or clip_norm:
            raise InvalidArgument(
                "scheduler= and clip_norm= go with torch.optim's; give the optimizer a schedule= itself"
            )
        optimizers.resolve(optimizer)
        return
    kind = type(optimizer)
    name = kind.__name__
    if name not in _KNOWN or not kind.__module__.startswith("torch.optim"):
        why = ": it computes the loss several times in a step" if name == "LBFGS" else ""
        raise InvalidArgument(
            f"optimizer {kind.__module__}.{name} is not supported{why}; accepted of torch.optim are {', '.join(_KNOWN)}"
        )
    _KNOWN[name](name, _options(optimizer))


def check_parameters(optimizer: Any, module: torch.nn.Module) -> None:
    """InvalidArgument for an optimizer of torch.optim that has none of the module's parameters."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return
    have = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not have & {id(parameter) for parameter in module.parameters()}:
        name = type(optimizer).__name__
        raise InvalidArgument(
            f"optimizer: this torch.optim.{name} has none of the module's parameters; make it of them: "
            f"torch.optim.{name}(module.parameters())"
        )


def convert(optimizer: Any, schedule: optimizers.Schedule | None, clip_norm: float, names: Mapping[int, str]) -> Any:
    """The message of an optimizer of torch.optim, or what espalier.fit takes. InvalidArgument for one unknown.

    `names` are those of the trained parameters, by the tensor's id.
    """
    check(optimizer, schedule, clip_norm)
    if not isinstance(optimizer, torch.optim.Optimizer):
        return optimizers.resolve(optimizer)
    name = type(optimizer).__name__
    if any(optimizer.state.values()):
        # Adagrad has its sums from the beginning.
        steps = [float(state.get("step", 0)) for state in optimizer.state.values()]
        if name != "Adagrad" or any(steps):
            raise InvalidArgument(
                f"torch.optim.{name} has made steps, and its state is not taken over; give a new optimizer"
            )
    options = _options(optimizer)
    unknown = {key for key in options if key.startswith("hook")}
    if unknown or optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise InvalidArgument(f"torch.optim.{name}: hooks are not called, as steps run in the daemon; remove them")
    target, attributes = _KNOWN[name](name, options)
    attributes = {k: v if isinstance(v, bool) else float(v) for k, v in attributes.items()}
    rate = "initial_lr" if schedule is not None and "initial_lr" in options else "lr"
    groups = _groups(optimizer, names, rate)
    return optimizers.make(target, float(options[rate]), schedule, clip_norm=clip_norm, groups=groups, **attributes)


def trained_by(optimizer: Any) -> set[int] | None:
    """Ids of the parameters that an optimizer of torch.optim updates; None: all."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return None
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
