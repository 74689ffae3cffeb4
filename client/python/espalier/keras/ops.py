"""Arithmetic on tensors of models, with the names of keras.ops: what `call` of your own classes may use."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from espalier.errors import InvalidArgument
from espalier.graph import Tensor, dtype_name
from espalier.keras import activations
from espalier.keras.layer import Layer, Spec
from espalier.keras.layers.merging import common_order
from espalier.keras.lowering import Lowering, Value, broadcast_shapes, known
from espalier.keras.tensor import KerasTensor, Shape

_UNARY = {
    "absolute": "abs",
    "negative": "neg",
    "exp": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "reciprocal": "reciprocal",
    "sin": "sin",
    "cos": "cos",
    "tan": "tan",
    "sinh": "sinh",
    "cosh": "cosh",
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
    "erf": "erf",
    "sign": "sign",
    "floor": "floor",
    "ceil": "ceil",
    "round": "round",
}
_BINARY = {
    "add": "add",
    "subtract": "subtract",
    "multiply": "multiply",
    "divide": "divide",
    "power": "power",
    "maximum": "maximum",
    "minimum": "minimum",
}
_REDUCTIONS = {
    "sum": "reduce_sum",
    "mean": "reduce_mean",
    "max": "reduce_max",
    "min": "reduce_min",
    "prod": "reduce_prod",
}


class Operation(Layer):
    """One of the functions of this module, as it stands in a model."""

    _named_by_call = True

    def __init__(self, function: str, arguments: Mapping[str, Any] | None = None, **kwargs: Any):
        kwargs.setdefault("name", None)
        super().__init__(**kwargs)
        self.function = function
        self.arguments = dict(arguments or {})

    def _outputs(self, specs: list[Spec], arguments: Mapping[str, Any]) -> list[Spec]:
        dtype = self.arguments.get("dtype", specs[0][1]) if self.function == "cast" else specs[0][1]
        return [(self._shape([shape for shape, _ in specs]), dtype)]

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Shape of the result."""
        several = input_shape and isinstance(input_shape[0], (list, tuple))
        return self._shape([tuple(s) for s in input_shape] if several else [tuple(input_shape)])

    def _axes(self, rank: int) -> list[int]:
        axis = self.arguments.get("axis")
        if axis is None:
            return list(range(1, rank))
        return sorted(a % rank for a in (axis if isinstance(axis, (list, tuple)) else [axis]))

    def _shape(self, shapes: list[Shape]) -> Shape:
        shape, function, given = shapes[0], self.function, self.arguments
        if function in _BINARY:
            shape = broadcast_shapes(shape, shapes[1] if len(shapes) > 1 else np.shape(given["other"]))
            if len(shape) < 1 or shape[0] is not None:
                raise InvalidArgument(f"{function}: the result {shape} has no batch")
            return shape
        if function in _REDUCTIONS:
            axes = self._axes(len(shape))
            if 0 in axes:
                raise InvalidArgument(f"{function}: axis 0 is the batch, whose examples cannot be combined in a layer")
            return tuple(1 if d in axes else s for d, s in enumerate(shape) if given.get("keepdims") or d not in axes)
        if function == "matmul":
            a, b = shapes
            if a[-1] != b[-2]:
                raise InvalidArgument(f"matmul: shapes {a} and {b} do not go together")
            return (*broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])
        if function == "take_along_axis":
            return self._taken(*shapes)
        if function == "transpose":
            return tuple(shape[d] for d in self._perm(len(shape)))
        if function == "expand_dims":
            axis = given["axis"] % (len(shape) + 1)
            return (*shape[:axis], 1, *shape[axis:])
        if function == "squeeze":
            axis = given["axis"] % len(shape)
            if shape[axis] != 1:
                raise InvalidArgument(f"squeeze: dimension {axis} of {shape} is not 1")
            return (*shape[:axis], *shape[axis + 1 :])
        if function == "get_item":
            return self._slices(shape)[0]
        return shape

    def _taken(self, shape: Shape, indices: Shape) -> Shape:
        if len(shape) != len(indices):
            raise InvalidArgument(f"take_along_axis: {shape} and indices of {indices} have unequal dimensions")
        axis = self.arguments["axis"] % len(shape)
        if axis == 0:
            raise InvalidArgument("take_along_axis: axis 0 is the batch, whose examples cannot be combined in a layer")
        if any(a != b for d, (a, b) in enumerate(zip(shape, indices, strict=True)) if d != axis):
            raise InvalidArgument(f"take_along_axis: {shape} and indices of {indices} differ beside axis {axis}")
        return indices

    def _perm(self, rank: int) -> list[int]:
        axes = self.arguments.get("axes")
        perm = list(range(rank))[::-1] if axes is None else [a % rank for a in axes]
        if perm[0] != 0:
            raise InvalidArgument(f"transpose: axes={axes} moves the batch from dimension 0")
        return perm

    def _slices(self, shape: Shape) -> tuple[Shape, list[tuple[int, int, int, int]], list[int]]:
        # The result's shape; (axis, start, end, step); dimensions to leave out.
        key = self.arguments["key"]
        key = key if isinstance(key, tuple) else (key,)
        if Ellipsis in key:
            at = key.index(Ellipsis)
            key = (*key[:at], *[slice(None)] * (len(shape) - len(key) + 1), *key[at + 1 :])
        if not key or key[0] != slice(None) or len(key) > len(shape):
            raise InvalidArgument(f"[{key}] of {shape}: the batch is taken whole, as x[:, ...]")
        taken, gone, sizes = [], [], list(shape)
        for d, k in enumerate(key):
            if k == slice(None):
                continue
            (size,) = known([shape[d]], "a slice")
            if isinstance(k, int):
                if not -size <= k < size:
                    raise InvalidArgument(f"[{k}] of dimension {d}, which has size {size}")
                taken.append((d, k % size, k % size + 1, 1))
                gone.append(d)
            elif isinstance(k, slice):
                start, stop, step = k.indices(size)
                count = len(range(start, stop, step))
                if count == 0 or step < 0:
                    raise InvalidArgument(f"{k} of dimension {d}, which has size {size}: nothing, or backwards")
                taken.append((d, start, stop, step))
                sizes[d] = count
            else:
                raise InvalidArgument(f"[{k!r}]: accepted are integers and slices")
        return tuple(s for d, s in enumerate(sizes) if d not in gone), taken, gone

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        function, given = self.function, self.arguments
        shape = self._shape([v.shape for v in inputs])
        if function in _UNARY:
            return [g.map(inputs[0], _UNARY[function])]
        if function == "stop_gradient":
            return [g.map(inputs[0], "stop_gradient")]
        if function in _BINARY:
            return [self._binary(g, inputs, shape)]
        if function == "clip":
            return [g.map(inputs[0], "clip", {"min": float(given["x_min"]), "max": float(given["x_max"])})]
        x = g.plain(inputs[0])
        if function in _REDUCTIONS:
            axes = self._axes(len(inputs[0].shape))
            known([inputs[0].shape[a] for a in axes], function)
            y = g.reduce(_REDUCTIONS[function], x, axes, bool(given.get("keepdims")))
        elif function == "matmul":
            y = g.op("matmul", [x, g.plain(inputs[1])], shape=shape)
        elif function == "take_along_axis":
            axis = given["axis"] % len(shape)
            y = g.op("gather_elements", [x, g.plain(inputs[1])], {"axis": axis}, shape=shape, dtype=inputs[0].dtype)
        elif function == "transpose":
            y = g.transpose(x, self._perm(len(inputs[0].shape)))
        elif function == "expand_dims":
            y = g.unsqueeze(x, given["axis"] % (len(inputs[0].shape) + 1))
        elif function == "squeeze":
            y = g.squeeze(x, given["axis"] % len(inputs[0].shape))
        elif function == "cast":
            y = g.cast(x, given["dtype"])
        elif function == "get_item":
            y = self._get_item(g, x, inputs[0].shape)
        else:
            raise InvalidArgument(f"no operation {function}")
        return [Value(y, shape)]

    def _binary(self, g: Lowering, inputs: list[Value], shape: Shape) -> Value:
        function, given = self.function, self.arguments
        if len(inputs) == 2:
            (a, b), order = common_order(g, inputs)
            return Value(g.broadcast(_BINARY[function], a, b), shape, order)
        other: Any = given["other"]
        x, order = (inputs[0].tensor, inputs[0].order) if np.ndim(other) == 0 else (g.plain(inputs[0]), None)
        constant: Tensor = g.constant(np.asarray(other), x.dtype)
        a, b = (constant, x) if given.get("swapped") else (x, constant)
        return Value(g.broadcast(_BINARY[function], a, b, x.dtype), shape, order)

    def _get_item(self, g: Lowering, x: Tensor, shape: Shape) -> Tensor:
        _, taken, gone = self._slices(shape)
        if taken:
            sizes = list(shape)
            for d, start, stop, step in taken:
                sizes[d] = len(range(start, stop, step))
            attributes = {
                "axes": [t[0] for t in taken],
                "starts": [t[1] for t in taken],
                "ends": [t[2] for t in taken],
                "steps": [t[3] for t in taken],
            }
            x = g.op("slice", [x], attributes, shape=tuple(sizes), dtype=x.dtype or "float32")
        for d in reversed(gone):
            x = g.squeeze(x, d)
        return x


def _apply(function: str, inputs: Sequence[Any], **arguments: Any) -> Any:
    from espalier.keras import backend

    name = backend.automatic_name(function)
    return Operation(function, arguments, name=name)(list(inputs))


def _binary(function: str, x1: Any, x2: Any) -> Any:
    if isinstance(x1, KerasTensor) and isinstance(x2, KerasTensor):
        return _apply(function, [x1, x2])
    tensor, other, swapped = (x1, x2, False) if isinstance(x1, KerasTensor) else (x2, x1, True)
    if not isinstance(tensor, KerasTensor):
        raise InvalidArgument(f"{function}: neither operand is a tensor of a model")
    if hasattr(other, "assign"):
        raise InvalidArgument(f"{function}: weights of a layer of your own in arithmetic are not supported; use Dense")
    value = np.asarray(other)
    if value.dtype.kind not in "fiub":
        raise InvalidArgument(f"{function}: {type(other).__name__} is no number and no array")
    return _apply(function, [tensor], other=value if value.ndim else value.item(), swapped=swapped)


def add(x1: Any, x2: Any) -> Any:
    """x1 + x2."""
    return _binary("add", x1, x2)


def subtract(x1: Any, x2: Any) -> Any:
    """x1 - x2."""
    return _binary("subtract", x1, x2)


def multiply(x1: Any, x2: Any) -> Any:
    """x1 * x2, element by element."""
    return _binary("multiply", x1, x2)


def divide(x1: Any, x2: Any) -> Any:
    """x1 / x2."""
    return _binary("divide", x1, x2)


true_divide = divide


def power(x1: Any, x2: Any) -> Any:
    """x1 to the power of x2."""
    return _binary("power", x1, x2)


def maximum(x1: Any, x2: Any) -> Any:
    """The larger of both, element by element."""
    return _binary("maximum", x1, x2)


def minimum(x1: Any, x2: Any) -> Any:
    """The smaller of both, element by element."""
    return _binary("minimum", x1, x2)


def matmul(x1: Any, x2: Any) -> Any:
    """Products of the matrices in the last two dimensions."""
    return _apply("matmul", [x1, x2])


def take_along_axis(x: Any, indices: Any, axis: int) -> Any:
    """Elements of x by their places along a dimension; the result has the shape of `indices`."""
    return _apply("take_along_axis", [x, indices], axis=axis)


def square(x: Any) -> Any:
    """x * x."""
    return _binary("multiply", x, x)


def stop_gradient(variable: Any) -> Any:
    """The tensor, through which no gradient flows."""
    return _apply("stop_gradient", [variable])


def clip(x: Any, x_min: float, x_max: float) -> Any:
    """x, at least x_min and at most x_max."""
    return _apply("clip", [x], x_min=float(x_min), x_max=float(x_max))


def cast(x: Any, dtype: Any) -> Any:
    """x in another element type."""
    return _apply("cast", [x], dtype=dtype_name(dtype))


def reshape(x: Any, newshape: Sequence[int]) -> Any:
    """x with other dimensions; the first one is the batch, written -1."""
    from espalier.keras.layers.reshaping import Reshape

    sizes = list(newshape)
    if not sizes or sizes[0] not in (-1, None):
        raise InvalidArgument(f"reshape: newshape={tuple(newshape)}; its first dimension is the batch, written -1")
    target = list(sizes[1:])
    if -1 not in target and math.prod(target) != math.prod(known(x.shape[1:], "reshape")):
        raise InvalidArgument(f"reshape: examples of shape {x.shape[1:]} have no shape {tuple(target)}")
    return Reshape(target)(x)


def transpose(x: Any, axes: Sequence[int] | None = None) -> Any:
    """The dimensions in another order; the batch stays first."""
    return _apply("transpose", [x], axes=None if axes is None else list(axes))


def expand_dims(x: Any, axis: int) -> Any:
    """A dimension of size 1 put in."""
    return _apply("expand_dims", [x], axis=axis)


def squeeze(x: Any, axis: int) -> Any:
    """Without a dimension of size 1."""
    return _apply("squeeze", [x], axis=axis)


def get_item(x: Any, key: Any) -> Any:
    """x[:, ...] with integers and slices."""
    return _apply("get_item", [x], key=key)


def concatenate(xs: Sequence[Any], axis: int = 0) -> Any:
    """Tensors one after the other."""
    from espalier.keras.layers.merging import Concatenate

    return Concatenate(axis=axis)(list(xs))


def softmax(x: Any, axis: int = -1) -> Any:
    """exp(x) / sum of exp(x)."""
    from espalier.keras.layers.activation import Softmax

    return Softmax(axis=axis)(x)


def __getattr__(name: str) -> Callable[..., Any]:
    alias = {"abs": "absolute", "amax": "max", "amin": "min"}.get(name, name)
    if alias in _UNARY:
        return lambda x: _apply(alias, [x])
    if alias in _REDUCTIONS:
        return lambda x, axis=None, keepdims=False: _apply(alias, [x], axis=axis, keepdims=keepdims)
    if name in activations.FUNCTIONS or name in activations.ALIASES:
        return activations.get(name)
    raise AttributeError(f"espalier.keras.ops has no {name}")
