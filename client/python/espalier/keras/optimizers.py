"""Optimizers and learning-rate schedules, with Keras' names, arguments, defaults and formulas."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from espalier import optimizers as daemon
from espalier.errors import InvalidArgument
from espalier.keras.serialization import Configurable, find, named, serialize
from espalier.spelling import meant
from espalier.v1 import program_pb2


class LearningRateSchedule(Configurable):
    """Base of schedules. Only those below have a counterpart at the coordinator."""

    peak: float = 0.0

    def _schedule(self) -> daemon.Schedule:
        raise NotImplementedError

    def __call__(self, step: int) -> float:
        """The learning rate of a step, from 0."""
        raise NotImplementedError


class ExponentialDecay(LearningRateSchedule):
    """initial * rate ** (step / decay_steps), with staircase the exponent rounded down."""

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: int,
        decay_rate: float,
        staircase: bool = False,
        name: str = "ExponentialDecay",
    ):
        self.peak, self.decay_steps, self.decay_rate = float(initial_learning_rate), int(decay_steps), float(decay_rate)
        self.staircase = staircase

    def _schedule(self) -> daemon.Schedule:
        if self.staircase:
            return daemon.step(self.decay_steps, self.decay_rate)
        return daemon.step(1, self.decay_rate ** (1 / self.decay_steps))

    def __call__(self, step: int) -> float:
        """As LearningRateSchedule."""
        exponent = step // self.decay_steps if self.staircase else step / self.decay_steps
        return float(self.peak * self.decay_rate**exponent)


class PolynomialDecay(LearningRateSchedule):
    """(initial - end) * (1 - step / decay_steps) ** power + end; the end stays."""

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: int,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        name: str = "PolynomialDecay",
    ):
        if cycle:
            raise InvalidArgument("PolynomialDecay: cycle=True is not supported")
        self.peak, self.decay_steps = float(initial_learning_rate), int(decay_steps)
        self.end, self.power = float(end_learning_rate), float(power)

    def _schedule(self) -> daemon.Schedule:
        return daemon.polynomial(self.power, floor=self.end, steps=self.decay_steps)

    def __call__(self, step: int) -> float:
        """As LearningRateSchedule."""
        left = 1 - min(step, self.decay_steps) / self.decay_steps
        return float((self.peak - self.end) * left**self.power + self.end)


class CosineDecay(LearningRateSchedule):
    """Half a cosine from initial to alpha * initial; the end stays. With warmup_target, up to that before."""

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: int,
        alpha: float = 0.0,
        name: str = "CosineDecay",
        warmup_target: float | None = None,
        warmup_steps: int = 0,
    ):
        self.initial, self.decay_steps, self.alpha = float(initial_learning_rate), int(decay_steps), float(alpha)
        self.warmup = int(warmup_steps) if warmup_target is not None else 0
        self.peak = self.initial if warmup_target is None else float(warmup_target)

    def _schedule(self) -> daemon.Schedule:
        start = self.initial if self.warmup else None
        return daemon.cosine(self.warmup, self.alpha * self.peak, self.warmup + self.decay_steps, start)

    def __call__(self, step: int) -> float:
        """As LearningRateSchedule."""
        import math

        if step < self.warmup:
            return self.initial + (self.peak - self.initial) * step / self.warmup
        part = min(step - self.warmup, self.decay_steps) / self.decay_steps
        return float(self.peak * ((1 - self.alpha) * 0.5 * (1 + math.cos(math.pi * part)) + self.alpha))


class PiecewiseConstantDecay(LearningRateSchedule):
    """values[0] up to step boundaries[0], values[1] up to boundaries[1], and so on; one value more than boundaries."""

    def __init__(self, boundaries: Sequence[int], values: Sequence[float], name: str = "PiecewiseConstant"):
        if len(values) != len(boundaries) + 1:
            raise InvalidArgument(
                f"PiecewiseConstantDecay: {len(boundaries)} boundaries need {len(boundaries) + 1} values, "
                f"got {len(values)}"
            )
        self.boundaries, self.values = [int(b) for b in boundaries], [float(v) for v in values]
        self.peak = max(self.values)

    def _schedule(self) -> daemon.Schedule:
        return daemon.table(self(step) for step in range(max([-1, *self.boundaries]) + 2))

    def __call__(self, step: int) -> float:
        """As LearningRateSchedule."""
        return self.values[sum(step > boundary for boundary in self.boundaries)]


class schedules:  # noqa: N801
    """keras.optimizers.schedules."""

    LearningRateSchedule = LearningRateSchedule
    ExponentialDecay = ExponentialDecay
    PolynomialDecay = PolynomialDecay
    CosineDecay = CosineDecay
    PiecewiseConstantDecay = PiecewiseConstantDecay


_SCHEDULES: dict[str, Callable[..., LearningRateSchedule]] = {
    c.__name__: c for c in (ExponentialDecay, PolynomialDecay, CosineDecay, PiecewiseConstantDecay)
}


class Optimizer(Configurable):
    """Base of all optimizers."""

    _known: tuple[str, ...] = ()  # of the arguments that all optimizers of Keras have

    def __init__(self, learning_rate: Any, given: Mapping[str, Any]):
        self.name = given.get("name") or type(self).__name__.lower()
        if isinstance(learning_rate, (LearningRateSchedule, Mapping)):
            learning_rate = find("schedule", learning_rate, _SCHEDULES, LearningRateSchedule)
        elif callable(learning_rate):
            raise InvalidArgument(
                f"{self.name}: learning_rate is a function; accepted are numbers, ExponentialDecay, PolynomialDecay, "
                "CosineDecay and PiecewiseConstantDecay"
            )
        self._rate: float | LearningRateSchedule = (
            learning_rate if isinstance(learning_rate, LearningRateSchedule) else float(learning_rate)
        )
        self.weight_decay: float | None = given.get("weight_decay")
        self._clip = self._clipping(given)
        # Weights that do not decay, by path or by a part of their name.
        self.no_decay_paths: tuple[str, ...] = ()
        self.no_decay_names: tuple[str, ...] = ()

    def exclude_from_weight_decay(
        self, var_list: Sequence[Any] | None = None, var_names: Sequence[str] | None = None
    ) -> None:
        """Lets weights keep their size: those of var_list, and those in whose name one of var_names is found.

        Names are those without the layer's, such as "bias"; var_names are regular expressions. Before the training.
        """
        self.no_decay_paths = tuple(str(variable.path) for variable in var_list or ())
        self.no_decay_names = tuple(var_names or ())

    def decays(self, name: str, path: str) -> bool:
        """Whether weight_decay is for a weight of this name and path."""
        found = any(re.search(part, name) for part in self.no_decay_names)
        return not found and path not in self.no_decay_paths

    def _clipping(self, given: Mapping[str, Any]) -> float:
        neutral = {
            "clipnorm": None,
            "clipvalue": None,
            "use_ema": False,
            "loss_scale_factor": None,
            "gradient_accumulation_steps": None,
        }
        for argument, value in given.items():
            if argument in neutral and value not in (neutral[argument], 0 if argument != "use_ema" else False):
                hint = "; use global_clipnorm" if argument.startswith("clip") else ""
                raise InvalidArgument(f"{self.name}: {argument}={value!r} is not supported{hint}")
        allowed = {
            *neutral,
            "name",
            "weight_decay",
            "global_clipnorm",
            "ema_momentum",
            "ema_overwrite_frequency",
            "jit_compile",
        }
        unknown = sorted(set(given) - allowed)
        if unknown:
            known = [*inspect.signature(type(self).__init__).parameters, *allowed]
            hint = "".join(meant(name, known) for name in unknown)
            raise InvalidArgument(f"{type(self).__name__}: no argument {', '.join(map(repr, unknown))}{hint}")
        return float(given.get("global_clipnorm") or 0.0)

    @property
    def learning_rate(self) -> Any:
        """The learning rate, or its schedule. May be set before `fit`."""
        return self._rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self._rate = value if isinstance(value, LearningRateSchedule) else float(value)

    lr = learning_rate

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal optimizer."""
        config = super().get_config()
        config["learning_rate"] = serialize(self._rate)
        return config

    def _attributes(self) -> tuple[str, dict[str, Any]]:
        raise NotImplementedError

    def proto(self) -> program_pb2.Optimizer:
        """The coordinator's optimizer."""
        name, attributes = self._attributes()
        if isinstance(self._rate, LearningRateSchedule):
            return daemon.make(name, self._rate.peak, self._rate._schedule(), clip_norm=self._clip, **attributes)
        return daemon.make(name, self._rate, clip_norm=self._clip, **attributes)

    def _no_decay(self, why: str) -> None:
        if self.weight_decay:
            raise InvalidArgument(
                f"{self.name}: weight_decay={self.weight_decay}: {why}; use AdamW, Lion or a regularizer"
            )


class SGD(Optimizer):
    """Gradient descent, with momentum or Nesterov's."""

    def __init__(self, learning_rate: Any = 0.01, momentum: float = 0.0, nesterov: bool = False, **kwargs: Any):
        if "lr" in kwargs:
            learning_rate = kwargs.pop("lr")
        super().__init__(learning_rate, kwargs)
        self.momentum, self.nesterov = float(momentum), bool(nesterov)

    def _attributes(self) -> tuple[str, dict[str, Any]]:
        if self.momentum > 0:
            self._no_decay("with momentum it is decoupled in Keras")
            if isinstance(self._rate, LearningRateSchedule):
                raise InvalidArgument(
                    f"{self.name}: momentum with a schedule: Keras' velocity keeps the rates of earlier steps, the "
                    "coordinator's does not; use a constant rate, or espalier.optimizers.make('sgd', ...) for PyTorch's"
                )
        decay = float(self.weight_decay or 0.0)
        attributes: dict[str, Any] = {"momentum": self.momentum, "weight_decay": decay}
        if self.nesterov and self.momentum > 0:
            attributes["nesterov"] = True
        return "sgd", attributes


class Adam(Optimizer):
    """Adam; weight_decay is decoupled."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **kwargs: Any,
    ):
        if "lr" in kwargs:
            learning_rate = kwargs.pop("lr")
        super().__init__(learning_rate, kwargs)
        if amsgrad:
            raise InvalidArgument(f"{self.name}: amsgrad=True is not supported")
        self.beta_1, self.beta_2, self.epsilon = float(beta_1), float(beta_2), float(epsilon)

    def _attributes(self) -> tuple[str, dict[str, Any]]:
        attributes: dict[str, Any] = {
            "beta1": self.beta_1,
            "beta2": self.beta_2,
            "epsilon": self.epsilon,
            "epsilon_hat": True,
        }
        if self.weight_decay:
            return "adamw", attributes | {"weight_decay": float(self.weight_decay)}
        return "adam", attributes


class AdamW(Adam):
    """Adam with decoupled weight decay."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        weight_decay: float = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, beta_1, beta_2, epsilon, amsgrad, weight_decay=weight_decay, **kwargs)


class RMSprop(Optimizer):
    """RMSprop."""

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, kwargs)
        self.rho, self.momentum, self.epsilon, self.centered = (
            float(rho),
            float(momentum),
            float(epsilon),
            bool(centered),
        )

    def _attributes(self) -> tuple[str, dict[str, Any]]:
        self._no_decay("it is decoupled in Keras")
        if self.momentum > 0 and isinstance(self._rate, LearningRateSchedule):
            raise InvalidArgument(f"{self.name}: momentum with a schedule is computed otherwise than in Keras")
        return "rmsprop", {
            "alpha": self.rho,
            "eps": self.epsilon,
            "momentum": self.momentum,
            "centered": self.centered,
            "eps_in_sqrt": True,
        }


class Adagrad(Optimizer):
    """Adagrad."""

    def __init__(
        self, learning_rate: Any = 0.001, initial_accumulator_value: float = 0.1, epsilon: float = 1e-7, **kwargs: Any
    ):
        super().__init__(learning_rate, kwargs)
        self.initial_accumulator_value, self.epsilon = float(initial_accumulator_value), float(epsilon)

    def _attributes(self) -> tuple[str, dict[str, Any]]:
        self._no_decay("it is decoupled in Keras")
        return "adagrad", {
            "initial_accumulator_value": self.initial_accumulator_value,
            "eps": self.epsilon,
            "eps_in_sqrt": True,
        }


class Lion(Optimizer):
    """Lion; weight_decay is decoupled."""

    def __init__(self, learning_rate: Any = 0.001, beta_1: float = 0.9, beta_2: float = 0.99, **kwargs: Any):
        super().__init__(learning_rate, kwargs)
        self.beta_1, self.beta_2 = float(beta_1), float(beta_2)

    def _attributes(self) -> tuple[str, dict[str, Any]]:
        attributes = {"beta1": self.beta_1, "beta2": self.beta_2, "weight_decay": float(self.weight_decay or 0.0)}
        return "lion", attributes


class Espalier(Optimizer):
    """An optimizer of espalier.optimizers, with its own arguments."""

    def __init__(self, optimizer: Any):
        message = daemon.resolve(optimizer)
        super().__init__(message.learning_rate.peak, {"name": message.name})
        self._message = message

    def get_config(self) -> dict[str, Any]:
        """As Optimizer."""
        from google.protobuf import json_format

        return {"message": json_format.MessageToDict(self.proto())}

    def proto(self) -> program_pb2.Optimizer:
        """The coordinator's optimizer."""
        message = program_pb2.Optimizer()
        message.CopyFrom(self._message)
        message.learning_rate.peak = float(self._rate) if not isinstance(self._rate, LearningRateSchedule) else 0.0
        return message


_CLASSES: dict[str, Callable[..., Optimizer]] = {c.__name__: c for c in (SGD, Adam, AdamW, RMSprop, Adagrad, Lion)}
_CLASSES |= {name.lower(): c for name, c in _CLASSES.items()}
_NOT_HERE = ("Adadelta", "Adafactor", "Adamax", "Ftrl", "Lamb", "LossScaleOptimizer", "Muon", "Nadam")


def get(identifier: Any) -> Optimizer:
    """The optimizer of a name ("adam"), a configuration or an object; those of espalier.optimizers, too."""
    if isinstance(identifier, (daemon.Optimizer, program_pb2.Optimizer)):
        return Espalier(identifier)
    made = named(identifier)
    if made is not None and made[0] == "Espalier":
        from google.protobuf import json_format

        return Espalier(json_format.ParseDict(made[1]["message"], program_pb2.Optimizer()))
    found: Optimizer = find("optimizer", identifier, _CLASSES, Optimizer)
    if not isinstance(identifier, Optimizer):
        _take_exclusions(found, identifier)
    return found


def _take_exclusions(optimizer: Optimizer, identifier: Any) -> None:
    # What exclude_from_weight_decay was told of an optimizer of the real Keras, which its configuration lacks.
    pattern = getattr(identifier, "_exclude_from_weight_decay_pattern", None)
    if getattr(identifier, "_exclude_from_weight_decay", None):
        raise InvalidArgument(
            f"{optimizer.name}: exclude_from_weight_decay(var_list=...) of an optimizer of Keras: its variables are "
            "others than this model's; call it on an optimizer of espalier.keras, or give var_names"
        )
    if pattern is not None:
        optimizer.exclude_from_weight_decay(var_names=[pattern.pattern])


def __getattr__(name: str) -> Any:
    if name in _NOT_HERE:
        raise InvalidArgument(
            f"optimizer {name} is not supported: accepted are {', '.join(c for c in _CLASSES if c[0].isupper())}, and "
            "those of espalier.optimizers"
        )
    raise AttributeError(f"espalier.keras.optimizers has no {name}")
