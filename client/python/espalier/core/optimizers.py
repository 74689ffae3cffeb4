"""Optimizers, with FlexFlow's names and arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from espalier.errors import InvalidArgument
from espalier.optimizers import make
from espalier.v1 import program_pb2

if TYPE_CHECKING:
    from espalier.core.model import FFModel


class Optimizer:
    """Base of all optimizers."""

    def __init__(self, ffmodel: FFModel | None, learning_rate: float):
        self._model = ffmodel
        self.learning_rate = float(learning_rate)

    def proto(self) -> program_pb2.Optimizer:
        """The daemon's message."""
        raise NotImplementedError

    def set_learning_rate(self, learning_rate: float) -> None:
        """The rate of the next updates."""
        if not learning_rate >= 0:
            raise InvalidArgument(f"the learning rate is {learning_rate}; accepted: 0 or more")
        self.learning_rate = float(learning_rate)
        if self._model is not None:
            self._model._learning_rate_changed(self)


class SGDOptimizer(Optimizer):
    """Stochastic gradient descent; weight_decay is added to the gradient as weight_decay * w."""

    def __init__(
        self,
        ffmodel: FFModel | None,
        lr: float = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ):
        super().__init__(ffmodel, lr)
        self.momentum, self.nesterov, self.weight_decay = float(momentum), bool(nesterov), float(weight_decay)

    def proto(self) -> program_pb2.Optimizer:
        """The daemon's message."""
        return make(
            "sgd",
            self.learning_rate,
            momentum=self.momentum,
            nesterov=self.nesterov,
            weight_decay=self.weight_decay,
        )


class AdamOptimizer(Optimizer):
    """Adam; weight_decay is added to the gradient. epsilon is added after the bias correction, as PyTorch does."""

    def __init__(
        self,
        ffmodel: FFModel | None,
        alpha: float = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        weight_decay: float = 0.0,
        epsilon: float = 1e-8,
    ):
        super().__init__(ffmodel, alpha)
        self.beta1, self.beta2 = float(beta1), float(beta2)
        self.weight_decay, self.epsilon = float(weight_decay), float(epsilon)

    def proto(self) -> program_pb2.Optimizer:
        """The daemon's message."""
        return make(
            "adam",
            self.learning_rate,
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            weight_decay=self.weight_decay,
        )


class _Other(Optimizer):
    """An optimizer of espalier.optimizers, or one of its names."""

    def __init__(self, ffmodel: FFModel | None, given: Any):
        from espalier.optimizers import resolve

        self._message = resolve(given)
        super().__init__(ffmodel, self._message.learning_rate.peak)

    def proto(self) -> program_pb2.Optimizer:
        """The daemon's message."""
        message = program_pb2.Optimizer()
        message.CopyFrom(self._message)
        message.learning_rate.peak = self.learning_rate
        return message


def get(given: Any, ffmodel: FFModel) -> Optimizer | None:
    """What compile's `optimizer` may be: an optimizer of this module or of espalier.optimizers, a name, None."""
    if given is None or isinstance(given, Optimizer):
        if given is not None and given._model is None:
            given._model = ffmodel
        return given
    if isinstance(given, str) and given.lower() in ("sgd", "adam"):
        return SGDOptimizer(ffmodel) if given.lower() == "sgd" else AdamOptimizer(ffmodel)
    return _Other(ffmodel, given)
