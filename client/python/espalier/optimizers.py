"""Optimizers, with PyTorch's names and arguments, and learning-rate schedules.

    espalier.fit(graph, data, optimizer=AdamW(lr=3e-4, weight_decay=0.1, schedule=cosine(warmup=100)), ...)

What each computes is in docs/reference/operators.md (sgd_update, adam_update, ...).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from espalier.errors import InvalidArgument
from espalier.spelling import meant
from espalier.v1 import graph_pb2, program_pb2

_Schedule = program_pb2.LearningRateSchedule

# Name -> default learning rate, attributes of its update operator.
_KNOWN: dict[str, tuple[float, tuple[str, ...]]] = {
    "sgd": (0.01, ("momentum", "weight_decay", "nesterov")),
    "adam": (1e-3, ("beta1", "beta2", "epsilon", "weight_decay", "decoupled", "epsilon_hat")),
    "adamw": (1e-3, ("beta1", "beta2", "epsilon", "weight_decay", "decoupled", "epsilon_hat")),
    "adagrad": (0.01, ("lr_decay", "weight_decay", "initial_accumulator_value", "eps", "eps_in_sqrt")),
    "rmsprop": (0.01, ("alpha", "eps", "weight_decay", "momentum", "centered", "eps_in_sqrt")),
    "adafactor": (0.01, ("beta2_decay", "eps1", "eps2", "d", "weight_decay")),
    "lion": (1e-4, ("beta1", "beta2", "weight_decay")),
}
_FLAGS = ("nesterov", "centered", "decoupled", "epsilon_hat", "eps_in_sqrt")
_TABLE = 65536  # rates of a table, at most


@dataclass(frozen=True)
class Schedule:
    """How the learning rate changes; the optimizer's learning rate is its peak. See `cosine` and the others."""

    kind: str = "constant"
    warmup: int = 0  # steps of a linear rise from 0
    steps: int = 0  # at which it ends; 0: those of the job
    floor: float | None = None  # the last learning rate; None: cosine a tenth of the peak, others 0
    step_size: int = 0
    gamma: float = 0.1
    power: float = 1.0
    initial: float = 0.0
    rise: float = 0.0
    warmup_from: float | None = None  # rate of step 0, from which step `warmup` has the peak; None: peak / warmup
    rates: tuple[float, ...] = ()  # of a table

    def proto(self, peak: float) -> program_pb2.LearningRateSchedule:
        """The message for a peak. InvalidArgument for an unknown kind."""
        kinds = {
            "constant": _Schedule.CONSTANT,
            "cosine": _Schedule.COSINE,
            "step": _Schedule.STEP,
            "linear": _Schedule.LINEAR,
            "polynomial": _Schedule.POLYNOMIAL,
            "one-cycle": _Schedule.ONE_CYCLE,
            "table": _Schedule.TABLE,
        }
        if self.kind not in kinds:
            raise InvalidArgument(f"schedule {self.kind!r}: accepted are {', '.join(kinds)}{meant(self.kind, kinds)}")
        floors = {"cosine": peak / 10, "one-cycle": peak / 25 / 1e4}
        floor = floors.get(self.kind, 0.0) if self.floor is None else self.floor
        message = _Schedule(
            kind=kinds[self.kind], peak=peak, floor=floor, warmup_steps=self.warmup, total_steps=self.steps
        )
        if self.kind == "step":
            message.step_size, message.gamma = self.step_size, self.gamma
        if self.kind == "polynomial":
            message.power = self.power
        if self.kind == "one-cycle":
            message.initial, message.rise = self.initial, self.rise
        if self.warmup_from is not None:
            message.warmup_from = self.warmup_from
        if self.kind == "table":
            message.values.extend(self.rates)
        return message


def constant(warmup: int = 0, warmup_from: float | None = None) -> Schedule:
    """Always the learning rate, after `warmup` steps of a linear rise.

    The rise ends in step warmup - 1, or with `warmup_from`, the rate of step 0, in step `warmup`.
    """
    return Schedule("constant", warmup, warmup_from=warmup_from)


def cosine(warmup: int = 0, floor: float | None = None, steps: int = 0, warmup_from: float | None = None) -> Schedule:
    """Half a cosine down to `floor` (None: a tenth of the learning rate) at step `steps` (0: the job's last)."""
    return Schedule("cosine", warmup, steps, floor, warmup_from=warmup_from)


def linear(warmup: int = 0, floor: float = 0.0, steps: int = 0, warmup_from: float | None = None) -> Schedule:
    """A straight line down to `floor` at step `steps` (0: the job's last)."""
    return Schedule("linear", warmup, steps, floor, warmup_from=warmup_from)


def polynomial(
    power: float, warmup: int = 0, floor: float = 0.0, steps: int = 0, warmup_from: float | None = None
) -> Schedule:
    """floor + (learning rate - floor) * (1 - s / steps) ** power."""
    return Schedule("polynomial", warmup, steps, floor, power=power, warmup_from=warmup_from)


def step(
    step_size: int, gamma: float = 0.1, warmup: int = 0, floor: float = 0.0, warmup_from: float | None = None
) -> Schedule:
    """Times `gamma` every `step_size` steps, as PyTorch's StepLR called at each step."""
    return Schedule("step", warmup, 0, floor, step_size=step_size, gamma=gamma, warmup_from=warmup_from)


def one_cycle(rise: float = 0.3, initial: float = 0.0, floor: float | None = None, steps: int = 0) -> Schedule:
    """PyTorch's OneCycleLR: up from `initial` (0: a 25th of the peak) in `rise` of the steps, then down to `floor`."""
    return Schedule("one-cycle", 0, steps, floor, initial=initial, rise=rise)


def table(rates: Iterable[float]) -> Schedule:
    """The rate of each step from step 0 on, at most 65536 of them; afterwards the last one stays."""
    values = tuple(float(rate) for rate in rates)
    if not 0 < len(values) <= _TABLE:
        raise InvalidArgument(f"a table of {len(values)} learning rates; accepted are 1 to {_TABLE}")
    return Schedule("table", rates=values)


@dataclass(frozen=True)
class Group:
    """Parameters with options of their own, by name; "*" stands for any characters. A parameter is of the first one."""

    parameters: Sequence[str]
    learning_rate_scale: float | None = None  # of the schedule's rate
    weight_decay: float | None = None  # instead of the optimizer's


def make(
    name: str,
    learning_rate: float | None = None,
    schedule: Schedule | str | None = None,
    *,
    clip_norm: float = 0.0,
    l1: float | Mapping[str, float] = 0.0,
    l2: float | Mapping[str, float] = 0.0,
    groups: Iterable[Group] = (),
    **attributes: float | bool,
) -> program_pb2.Optimizer:
    """The message for an optimizer: "sgd", "adam", "adamw", "adagrad", "rmsprop", "adafactor" or "lion".

    `clip_norm` clips the gradient's global norm (0: off). `l1` and `l2` are penalties on all parameters, or by name:
    {"fc*": 1e-4}. Parameters of `groups` have options of their own. `attributes` are those of the update
    operator. InvalidArgument for what it does not have.
    """
    if name.lower() not in _KNOWN:
        raise InvalidArgument(f"optimizer {name!r}: accepted are {', '.join(_KNOWN)}{meant(name, _KNOWN)}")
    default, known = _KNOWN[name.lower()]
    rate = default if learning_rate is None else float(learning_rate)
    if not rate >= 0:
        raise InvalidArgument(f"optimizer {name}: the learning rate is {rate}; accepted: 0 or more")
    plan = Schedule(schedule) if isinstance(schedule, str) else schedule or Schedule()
    message = program_pb2.Optimizer(name=name.lower(), clip_norm=clip_norm)
    message.learning_rate.CopyFrom(plan.proto(rate))
    for key, value in attributes.items():
        if key not in known:
            has = f"it has {', '.join(known)}{meant(key, known)}"
            raise InvalidArgument(f"optimizer {name} has no argument {key!r}; {has}")
        attribute = graph_pb2.Attribute(b=bool(value)) if key in _FLAGS else graph_pb2.Attribute(f=float(value))
        message.attributes[key].CopyFrom(attribute)
    for norm, given in (("l1", l1), ("l2", l2)):
        penalties = given if isinstance(given, Mapping) else {"": given} if given else {}
        for parameter, factor in penalties.items():
            regularizer = message.regularizers.add(parameter=parameter)
            setattr(regularizer, norm, float(factor))
    for group in groups:
        message.groups.add(
            parameters=group.parameters,
            learning_rate_scale=group.learning_rate_scale,
            weight_decay=group.weight_decay,
        )
    return message


class Optimizer:
    """An optimizer with its arguments; `proto` is the message. Base of the classes below."""

    def __init__(self, proto: program_pb2.Optimizer):
        self.proto = proto

    @property
    def learning_rate(self) -> float:
        """The peak of the schedule."""
        return float(self.proto.learning_rate.peak)

    def __repr__(self) -> str:
        values = ", ".join(f"{key}={a.b if key in _FLAGS else a.f:g}" for key, a in self.proto.attributes.items())
        return f"<{type(self).__name__} lr={self.learning_rate:g}{', ' if values else ''}{values}>"


class SGD(Optimizer):
    """Stochastic gradient descent, as torch.optim.SGD."""

    def __init__(
        self,
        lr: float = 1e-3,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        schedule: Schedule | str | None = None,
        clip_norm: float = 0.0,
    ):
        super().__init__(
            make(
                "sgd",
                lr,
                schedule,
                clip_norm=clip_norm,
                momentum=momentum,
                weight_decay=weight_decay,
                nesterov=nesterov,
            )
        )


class Adam(Optimizer):
    """Adam, as torch.optim.Adam: weight decay is added to the gradient."""

    _name = "adam"

    def __init__(
        self,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        schedule: Schedule | str | None = None,
        clip_norm: float = 0.0,
    ):
        super().__init__(
            make(
                self._name,
                lr,
                schedule,
                clip_norm=clip_norm,
                beta1=betas[0],
                beta2=betas[1],
                epsilon=eps,
                weight_decay=weight_decay,
            )
        )


class AdamW(Adam):
    """Adam with decoupled weight decay, as torch.optim.AdamW."""

    _name = "adamw"

    def __init__(
        self,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        schedule: Schedule | str | None = None,
        clip_norm: float = 0.0,
    ):
        super().__init__(lr, betas, eps, weight_decay, schedule=schedule, clip_norm=clip_norm)


class Adagrad(Optimizer):
    """Adagrad, as torch.optim.Adagrad."""

    def __init__(
        self,
        lr: float = 1e-2,
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-10,
        *,
        schedule: Schedule | str | None = None,
        clip_norm: float = 0.0,
    ):
        super().__init__(
            make(
                "adagrad",
                lr,
                schedule,
                clip_norm=clip_norm,
                lr_decay=lr_decay,
                weight_decay=weight_decay,
                initial_accumulator_value=initial_accumulator_value,
                eps=eps,
            )
        )


class RMSprop(Optimizer):
    """RMSprop, as torch.optim.RMSprop."""

    def __init__(
        self,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        schedule: Schedule | str | None = None,
        clip_norm: float = 0.0,
    ):
        super().__init__(
            make(
                "rmsprop",
                lr,
                schedule,
                clip_norm=clip_norm,
                alpha=alpha,
                eps=eps,
                weight_decay=weight_decay,
                momentum=momentum,
                centered=centered,
            )
        )


class Adafactor(Optimizer):
    """Adafactor, as in its paper. `eps`: added to squares of gradients, least scale of a step.

    torch.optim.Adafactor adds nothing; it bounds second moments from below by its eps[0] squared.
    """

    def __init__(
        self,
        lr: float = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float, float] = (1e-30, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        schedule: Schedule | str | None = None,
        clip_norm: float = 0.0,
    ):
        super().__init__(
            make(
                "adafactor",
                lr,
                schedule,
                clip_norm=clip_norm,
                beta2_decay=beta2_decay,
                eps1=eps[0],
                eps2=eps[1],
                d=d,
                weight_decay=weight_decay,
            )
        )


class Lion(Optimizer):
    """Lion (Chen et al., 2023); weight decay is decoupled."""

    def __init__(
        self,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        schedule: Schedule | str | None = None,
        clip_norm: float = 0.0,
    ):
        super().__init__(
            make(
                "lion",
                lr,
                schedule,
                clip_norm=clip_norm,
                beta1=betas[0],
                beta2=betas[1],
                weight_decay=weight_decay,
            )
        )


def resolve(optimizer: str | Optimizer | program_pb2.Optimizer) -> program_pb2.Optimizer:
    """The message for what fit's `optimizer` may be: a name, an object of this module, a message."""
    if isinstance(optimizer, str):
        return make(optimizer)
    if isinstance(optimizer, Optimizer):
        return optimizer.proto
    if isinstance(optimizer, program_pb2.Optimizer):
        return optimizer
    raise InvalidArgument(
        f"optimizer is a {type(optimizer).__name__}; accepted: a name ({', '.join(_KNOWN)}) or an object of "
        "espalier.optimizers"
    )
