"""From layers to a graph: values with a layout, and the operators that layers share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from espalier.errors import InvalidArgument
from espalier.graph import AttributeValue, Graph, Tensor
from espalier.keras.regularizers import Regularizer
from espalier.keras.tensor import Shape
from espalier.keras.variable import Variable

Order = tuple[int, ...]


@dataclass
class Value:
    """A tensor of the model in a graph.

    Its dimensions may lie in another order than the model's: those of channels_last images lie as the coordinator's
    operators take them, channels first, until a layer needs the model's order.
    """

    tensor: Tensor
    shape: Shape  # the model's
    order: Order | None = None  # dimension i of `tensor` is dimension order[i] of `shape`; None: the same order
    # What a softmax (over the last dimension) or sigmoid was applied to: losses read it instead.
    logits: tuple[str, Value] | None = None
    turned: dict[Order, Tensor] = field(default_factory=dict)

    @property
    def dtype(self) -> str:
        """Element type."""
        return self.tensor.dtype or "float32"


def channels_first_order(rank: int) -> Order:
    """The order in which a channels_last tensor lies channels first."""
    return (0, rank - 1, *range(1, rank - 1))


def _permuted(shape: Sequence[int | None], order: Sequence[int]) -> Shape:
    return tuple(shape[d] for d in order)


class Lowering:
    """A graph under construction, and the weights that it has so far."""

    def __init__(self, graph: Graph):
        self.graph = graph
        self.variables: dict[str, Variable] = {}  # by the name of the graph's parameter
        self.penalties: list[tuple[Value, Regularizer]] = []  # activity regularizers
        self.training: bool | None = None  # False: within a model that was called with training=False
        self.pointed_out: set[str] = set()  # warnings that were given
        self._tensors: dict[int, Tensor] = {}
        self._scope: list[str] = []
        self._source = ""

    @contextmanager
    def layer(self, name: str, source: str) -> Iterator[None]:
        """Operators made inside are named after the layer and point to the user's line."""
        before = self._source
        self._scope.append(name)
        self._source = source or before
        try:
            yield
        finally:
            self._scope.pop()
            self._source = before

    def op(
        self,
        op: str,
        inputs: Sequence[Tensor | None],
        attributes: Mapping[str, AttributeValue] | None = None,
        *,
        shape: Shape,
        dtype: str = "float32",
    ) -> Tensor:
        """Applies an operator of one output."""
        name = "/".join([*self._scope, op]) if self._scope else op
        return self.graph.op(op, inputs, attributes, name=name, source=self._source, dtype=dtype, shape=shape)

    def op_n(
        self,
        op: str,
        inputs: Sequence[Tensor | None],
        attributes: Mapping[str, AttributeValue] | None,
        shapes: Sequence[Shape],
        dtypes: Sequence[str] = (),
    ) -> tuple[Tensor, ...]:
        """Applies an operator of several outputs."""
        name = "/".join([*self._scope, op])
        made = self.graph.op(op, inputs, attributes, outputs=len(shapes), name=name, source=self._source)
        for i, (tensor, shape) in enumerate(zip(made, shapes, strict=True)):
            tensor.shape, tensor.dtype = shape, dtypes[i] if dtypes else "float32"
        return made

    def weight(self, variable: Variable) -> Tensor:
        """The weight as a parameter of the graph, in the graph's layout; one for all its uses."""
        found = self._tensors.get(id(variable))
        if found is None:
            name = variable.path
            if name in self.variables:
                raise InvalidArgument(f"two weights of the model are named {name!r}: give their layers other names")
            message = variable.message()
            if message is None:
                data = variable.layout.to_graph(variable.numpy())
                found = self.graph.parameter(name, data=data, trainable=variable.trainable)
            else:
                found = self.graph.parameter(
                    name, variable.layout.shape, "float32", initializer=message, trainable=variable.trainable
                )
            self.variables[name] = variable
            self._tensors[id(variable)] = found
        return found

    def constant(self, array: Any, dtype: str | None = None) -> Tensor:
        """A constant; numbers are float32."""
        array = np.asarray(array)
        if dtype is None:
            dtype = "float32" if array.dtype.kind == "f" else array.dtype.name
        return self.graph.constant(array.astype(dtype), dtype=dtype)

    # Layouts.

    def ordered(self, value: Value, order: Order | None) -> Tensor:
        """The value with its dimensions in `order`."""
        rank = len(value.shape)
        identity = tuple(range(rank))
        wanted, have = order or identity, value.order or identity
        if wanted == have:
            return value.tensor
        if wanted not in value.turned:
            perm = [have.index(d) for d in wanted]
            value.turned[wanted] = self.op(
                "transpose", [value.tensor], {"perm": perm}, shape=_permuted(value.shape, wanted), dtype=value.dtype
            )
        return value.turned[wanted]

    def plain(self, value: Value) -> Tensor:
        """The value in the model's order."""
        return self.ordered(value, None)

    def channels_first(self, value: Value, data_format: str) -> Tensor:
        """The value as [N, C, spatial...]."""
        return self.ordered(value, channels_first_order(len(value.shape)) if data_format == "channels_last" else None)

    def from_channels_first(self, tensor: Tensor, data_format: str) -> Value:
        """A value of the model from [N, C, spatial...]."""
        shape = tensor.shape
        assert shape is not None
        if data_format == "channels_first" or len(shape) < 3:
            return Value(tensor, shape)
        return Value(tensor, (shape[0], *shape[2:], shape[1]), channels_first_order(len(shape)))

    # Operators that several layers use.

    def map(self, value: Value, op: str, attributes: Mapping[str, AttributeValue] | None = None) -> Value:
        """An operator on every element, whatever the order."""
        tensor = self.op(op, [value.tensor], attributes, shape=value.tensor.shape or value.shape, dtype=value.dtype)
        return Value(tensor, value.shape, value.order)

    def reshape(self, tensor: Tensor, shape: Sequence[int | None]) -> Tensor:
        """The tensor with other dimensions; the first one is the batch before and after."""
        target = [0 if d is None else d for d in shape]
        if tensor.shape == tuple(shape):
            return tensor
        return self.op("reshape", [tensor], {"shape": target}, shape=tuple(shape), dtype=tensor.dtype or "float32")

    def merge_batch(self, tensor: Tensor, dims: int) -> Tensor:
        """The first `dims` dimensions, the batch among them, as one."""
        assert tensor.shape is not None
        rest = tensor.shape[dims:]
        target = [-1, *(int(d or 0) for d in rest)]
        return self.op("reshape", [tensor], {"shape": target}, shape=(None, *rest), dtype=tensor.dtype or "float32")

    def split_batch(self, tensor: Tensor, dims: Sequence[int | None]) -> Tensor:
        """The first dimension as the batch and dims[1:]."""
        assert tensor.shape is not None
        rest = tensor.shape[1:]
        target = [-1, *(int(d or 0) for d in (*dims[1:], *rest))]
        shape = (None, *dims[1:], *rest)
        return self.op("reshape", [tensor], {"shape": target}, shape=shape, dtype=tensor.dtype or "float32")

    def transpose(self, tensor: Tensor, perm: Sequence[int]) -> Tensor:
        """Dimension d of the result is dimension perm[d]."""
        assert tensor.shape is not None
        if list(perm) == list(range(len(perm))):
            return tensor
        shape = _permuted(tensor.shape, perm)
        return self.op("transpose", [tensor], {"perm": list(perm)}, shape=shape, dtype=tensor.dtype or "float32")

    def unsqueeze(self, tensor: Tensor, axis: int) -> Tensor:
        """A dimension of size 1 put in as dimension `axis`, which is not negative."""
        shape = list(tensor.shape or ())
        shape.insert(axis, 1)
        return self.op("unsqueeze", [tensor], {"axes": [axis]}, shape=tuple(shape), dtype=tensor.dtype or "float32")

    def squeeze(self, tensor: Tensor, axis: int) -> Tensor:
        """Without dimension `axis`, which has size 1."""
        shape = list(tensor.shape or ())
        del shape[axis]
        return self.op("squeeze", [tensor], {"axes": [axis]}, shape=tuple(shape), dtype=tensor.dtype or "float32")

    def reduce(self, op: str, tensor: Tensor, axes: Sequence[int], keepdims: bool = False) -> Tensor:
        """A reduction over `axes`, which are not negative."""
        shape = tuple(
            1 if d in axes else size for d, size in enumerate(tensor.shape or ()) if keepdims or d not in axes
        )
        return self.op(
            op, [tensor], {"axes": list(axes), "keepdims": keepdims}, shape=shape, dtype=tensor.dtype or "float32"
        )

    def broadcast(self, op: str, a: Tensor, b: Tensor, dtype: str | None = None) -> Tensor:
        """A binary operator with NumPy's broadcasting."""
        shape = broadcast_shapes(a.shape or (), b.shape or ())
        return self.op(op, [a, b], shape=shape, dtype=dtype or a.dtype or "float32")

    def scalar(self, op: str, tensor: Tensor, value: float) -> Tensor:
        """multiply_scalar, add_scalar and the like."""
        return self.op(op, [tensor], {"value": float(value)}, shape=tensor.shape or (), dtype=tensor.dtype or "float32")

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        """The tensor in another element type."""
        from espalier.graph import ATTRIBUTE_DTYPES

        if tensor.dtype == dtype:
            return tensor
        return self.op("cast", [tensor], {"to": ATTRIBUTE_DTYPES[dtype]}, shape=tensor.shape or (), dtype=dtype)

    def in_training(self, like: Tensor) -> Tensor:
        """1 while training and 0 in evaluation, in every element of `like`'s shape.

        Dropout at rate 1/2 makes 0 or 2 of ones, and leaves them in evaluation.
        """
        same = self.op("equal", [like, like], shape=like.shape or (), dtype="bool")
        dropped = self.op("dropout", [self.cast(same, "float32")], {"rate": 0.5}, shape=like.shape or ())
        return self.op("abs", [self.scalar("add_scalar", dropped, -1.0)], shape=like.shape or ())


def broadcast_shapes(a: Sequence[int | None], b: Sequence[int | None]) -> Shape:
    """The shape of an element-wise result; InvalidArgument if the shapes do not go together."""
    rank = max(len(a), len(b))
    left, right = [1] * (rank - len(a)) + list(a), [1] * (rank - len(b)) + list(b)
    shape: list[int | None] = []
    for x, y in zip(left, right, strict=True):
        if x == 1:
            shape.append(y)
        elif y == 1 or x == y or y is None:
            shape.append(x)
        elif x is None:
            shape.append(y)
        else:
            raise InvalidArgument(f"shapes {tuple(a)} and {tuple(b)} do not go together")
    return tuple(shape)


def known(shape: Sequence[int | None], what: str) -> tuple[int, ...]:
    """The sizes, all of which must be known."""
    if any(d is None for d in shape):
        raise InvalidArgument(f"{what} needs known sizes, got {tuple(shape)}; give the input's shape without None")
    return tuple(int(d) for d in shape if d is not None)


def product(shape: Sequence[int | None]) -> int | None:
    """The number of elements; None if it is not known."""
    return None if any(d is None for d in shape) else math.prod(int(d or 0) for d in shape)
