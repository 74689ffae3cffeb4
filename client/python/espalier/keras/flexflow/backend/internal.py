"""FlexFlow's layers behind the functions of its `backend`."""

from __future__ import annotations

from typing import Any

from espalier.errors import InvalidArgument
from espalier.keras import ops
from espalier.keras.layer import Spec


class _Named(ops.Operation):
    """One function, as a layer."""

    _function = ""

    def __init__(self, arguments: dict[str, Any] | None = None, **kwargs: Any):
        super().__init__(self._function, arguments, **kwargs)


class BatchMatmul(_Named):
    """The matrix product of each example."""

    _function = "matmul"

    def _outputs(self, specs: list[Spec], arguments: Any) -> list[Spec]:
        if [len(shape) for shape, _ in specs] != [3, 3]:
            raise InvalidArgument(f"batch_dot takes two tensors of 3 dimensions, got {[shape for shape, _ in specs]}")
        return super()._outputs(specs, arguments)


class Sin(_Named):
    """sin x."""

    _function = "sin"


class Cos(_Named):
    """cos x."""

    _function = "cos"


class Exp(_Named):
    """e to the power of x."""

    _function = "exp"


class Rsqrt(_Named):
    """1 / sqrt(x)."""

    _function = "rsqrt"


class Pow(_Named):
    """x to the power of a number."""

    _function = "power"

    def __init__(self, a: float, **kwargs: Any):
        super().__init__({"other": float(a)}, **kwargs)


class ReduceSum(_Named):
    """The sum along dimensions; of all but the batch for None."""

    _function = "sum"

    def __init__(self, axis: Any = None, keepdims: bool = False, **kwargs: Any):
        super().__init__({"axis": axis, "keepdims": bool(keepdims)}, **kwargs)


class Gather(_Named):
    """Elements by their places along a dimension, as torch.gather; called with [x, indices]."""

    _function = "take_along_axis"

    def __init__(self, axis: int = 0, **kwargs: Any):
        super().__init__({"axis": int(axis)}, **kwargs)


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x)."""
    return Rsqrt()(x)


def gather(x: Any, indices: Any, axis: int) -> Any:
    """x[..., indices[i], ...] for each element of indices, along axis."""
    return Gather(axis)([x, indices])


__all__ = ["BatchMatmul", "Cos", "Exp", "Gather", "Pow", "ReduceSum", "Rsqrt", "Sin", "gather", "rsqrt"]
