"""FlexFlow's `backend`: functions of tensors of a model. espalier.keras.ops has more."""

from __future__ import annotations

from typing import Any

from espalier.errors import InvalidArgument
from espalier.keras.flexflow.backend.internal import BatchMatmul, Cos, Exp, Pow, ReduceSum, Sin


def batch_dot(x: Any, y: Any) -> Any:
    """The matrix product of each example: [batch, m, k] and [batch, k, n]."""
    return BatchMatmul()([x, y])


def sin(x: Any) -> Any:
    """sin x."""
    return Sin()(x)


def cos(x: Any) -> Any:
    """cos x."""
    return Cos()(x)


def exp(x: Any) -> Any:
    """e to the power of x."""
    return Exp()(x)


def pow(x: Any, a: float) -> Any:
    """x to the power of a number."""
    return Pow(a)(x)


def sum(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The sum along dimensions, of all but the batch without `axis`."""
    return ReduceSum(axis, keepdims)(x)


def get_value(x: Any) -> Any:
    """`x` itself, such as a learning rate."""
    return x


def set_value(x: Any, value: Any) -> None:
    """Always InvalidArgument: a number that was read cannot be set."""
    raise InvalidArgument(
        "backend.set_value: assign instead, as model.optimizer.learning_rate = ... or variable.assign(...)"
    )


def backend() -> str:
    """ "espalier"."""
    return "espalier"


__all__ = ["backend", "batch_dot", "cos", "exp", "get_value", "pow", "set_value", "sin", "sum"]
