"""Layers of several inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from espalier.errors import InvalidArgument
from espalier.keras.layer import Layer, Spec
from espalier.keras.lowering import Lowering, Value, broadcast_shapes, known
from espalier.keras.tensor import Shape


def common_order(g: Lowering, values: Sequence[Value]) -> tuple[list[Any], Any]:
    """Tensors of values of equal rank in one order, that of the first; and the order."""
    order = values[0].order
    if any(len(v.shape) != len(values[0].shape) for v in values):
        return [g.plain(v) for v in values], None
    return [g.ordered(v, order) for v in values], order


class _Merge(Layer):
    op = "add"
    least, most = 2, 1_000_000

    def _build(self, shapes: list[Shape]) -> None:
        if not self.least <= len(shapes) <= self.most:
            takes = "two tensors" if self.most == 2 else "a list of at least two tensors"
            raise InvalidArgument(f"takes {takes}, got {len(shapes)}")

    def _outputs(self, specs: list[Spec], arguments: Mapping[str, Any]) -> list[Spec]:
        return [(self.compute_output_shape([shape for shape, _ in specs]), specs[0][1])]

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The inputs' shapes, broadcast."""
        shape = tuple(input_shape[0])
        for other in input_shape[1:]:
            if len(other) != len(shape):
                # As Keras: the shorter one gets dimensions of size 1 behind the batch.
                short, long = sorted((shape, tuple(other)), key=len)
                shape = broadcast_shapes((short[0], *(1,) * (len(long) - len(short)), *short[1:]), long)
            else:
                shape = broadcast_shapes(shape, tuple(other))
        return shape

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        rank = max(len(v.shape) for v in inputs)
        values = []
        for v in inputs:
            if len(v.shape) < rank:
                tensor = g.plain(v)
                for _ in range(rank - len(v.shape)):
                    tensor = g.unsqueeze(tensor, 1)
                v = Value(tensor, tensor.shape or ())
            values.append(v)
        tensors, order = common_order(g, values)
        y = tensors[0]
        for other in tensors[1:]:
            y = g.broadcast(self.op, y, other)
        shape = self.compute_output_shape([v.shape for v in values])
        return [self._end(g, Value(y, shape, order), len(inputs))]

    def _end(self, g: Lowering, value: Value, count: int) -> Value:
        return value


class Add(_Merge):
    """The sum of the inputs."""

    op = "add"


class Subtract(_Merge):
    """The first input minus the second."""

    op, most = "subtract", 2


class Multiply(_Merge):
    """The product of the inputs, element by element."""

    op = "multiply"


class Average(_Merge):
    """The mean of the inputs."""

    op = "add"

    def _end(self, g: Lowering, value: Value, count: int) -> Value:
        return g.map(value, "multiply_scalar", {"value": 1 / count})


class Maximum(_Merge):
    """The largest of the inputs, element by element."""

    op = "maximum"


class Minimum(_Merge):
    """The smallest of the inputs, element by element."""

    op = "minimum"


class Concatenate(_Merge):
    """The inputs one after the other along `axis`."""

    least = 1

    def __init__(self, axis: int = -1, **kwargs: Any):
        super().__init__(**kwargs)
        self.axis = int(axis)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The first shape with the sum of the sizes along the axis."""
        first = tuple(input_shape[0])
        axis = self.axis % len(first)
        if axis == 0:
            raise InvalidArgument("Concatenate cannot put examples of several batches into one; axis=0 is the batch")
        total: int | None = 0
        for shape in input_shape:
            same = len(shape) == len(first) and all(
                a == b or a is None or b is None for d, (a, b) in enumerate(zip(shape, first, strict=True)) if d != axis
            )
            if not same:
                raise InvalidArgument(f"shapes {', '.join(str(tuple(s)) for s in input_shape)} differ off axis {axis}")
            total = None if total is None or shape[axis] is None else total + shape[axis]
        return (*first[:axis], total, *first[axis + 1 :])

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        tensors, order = common_order(g, inputs)
        shape = self.compute_output_shape([v.shape for v in inputs])
        axis = self.axis % len(shape)
        lies = axis if order is None else order.index(axis)
        physical = shape if order is None else tuple(shape[d] for d in order)
        return [Value(g.op("concat", tensors, {"axis": lies}, shape=physical, dtype=inputs[0].dtype), shape, order)]


class Dot(_Merge):
    """Sums of products over one dimension of each of two inputs."""

    most = 2

    def __init__(self, axes: Any, normalize: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        self.axes = (int(axes), int(axes)) if isinstance(axes, int) else (int(axes[0]), int(axes[1]))
        self.normalize = normalize

    def _dims(self, a: Sequence[int | None], b: Sequence[int | None]) -> tuple[int, int]:
        i, j = self.axes[0] % len(a), self.axes[1] % len(b)
        if i == 0 or j == 0 or len(a) not in (2, 3) or len(b) not in (2, 3):
            raise InvalidArgument(f"Dot takes tensors of 2 or 3 dimensions and no batch axis, got {a}, {b}")
        if a[i] != b[j]:
            raise InvalidArgument(f"sizes {a[i]} and {b[j]} of {tuple(a)} and {tuple(b)} along axes={self.axes} differ")
        return i, j

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The batch, then the other dimensions of both inputs."""
        a, b = (tuple(shape) for shape in input_shape)
        i, j = self._dims(a, b)
        rest = [*(s for d, s in enumerate(a) if d not in (0, i)), *(s for d, s in enumerate(b) if d not in (0, j))]
        return (a[0], *(rest or [1]))

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        a, b = (g.plain(v) for v in inputs)
        i, j = self._dims(inputs[0].shape, inputs[1].shape)
        shape = self.compute_output_shape([v.shape for v in inputs])
        if self.normalize:
            a, b = _normalized(g, a, i), _normalized(g, b, j)
        # [N, rows, size] and [N, size, columns].
        if len(inputs[0].shape) == 2:
            a = g.unsqueeze(a, 1)
        elif i == 1:
            a = g.transpose(a, [0, 2, 1])
        if len(inputs[1].shape) == 2:
            b = g.unsqueeze(b, 2)
        elif j == 2:
            b = g.transpose(b, [0, 2, 1])
        assert a.shape is not None
        assert b.shape is not None
        y = g.op("matmul", [a, b], shape=(None, a.shape[1], b.shape[2]))
        known(shape[1:], "Dot")
        return [Value(g.reshape(y, shape), shape)]


def _normalized(g: Lowering, x: Any, axis: int) -> Any:
    squares = g.reduce("reduce_sum_square", x, [axis], keepdims=True)
    bounded = g.op("clip", [squares], {"min": 1e-12}, shape=squares.shape or ())
    return g.broadcast("multiply", x, g.op("rsqrt", [bounded], shape=squares.shape or ()))


def add(inputs: Any, **kwargs: Any) -> Any:
    """Add()(inputs)."""
    return Add(**kwargs)(inputs)


def subtract(inputs: Any, **kwargs: Any) -> Any:
    """Subtract()(inputs)."""
    return Subtract(**kwargs)(inputs)


def multiply(inputs: Any, **kwargs: Any) -> Any:
    """Multiply()(inputs)."""
    return Multiply(**kwargs)(inputs)


def average(inputs: Any, **kwargs: Any) -> Any:
    """Average()(inputs)."""
    return Average(**kwargs)(inputs)


def maximum(inputs: Any, **kwargs: Any) -> Any:
    """Maximum()(inputs)."""
    return Maximum(**kwargs)(inputs)


def minimum(inputs: Any, **kwargs: Any) -> Any:
    """Minimum()(inputs)."""
    return Minimum(**kwargs)(inputs)


def concatenate(inputs: Any, axis: int = -1, **kwargs: Any) -> Any:
    """Concatenate(axis)(inputs)."""
    return Concatenate(axis=axis, **kwargs)(inputs)


def dot(inputs: Any, axes: Any = -1, **kwargs: Any) -> Any:
    """Dot(axes)(inputs)."""
    return Dot(axes=axes, **kwargs)(inputs)
