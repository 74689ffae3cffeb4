"""What handlers write graphs with: operators with PyTorch's broadcasting and types, sizes, reshapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from espalier.graph import ATTRIBUTE_DTYPES, AttributeValue, Graph, Tensor, dtype_name
from espalier.torch.values import (
    CannotConvert,
    NeedsBatchSize,
    Shape,
    Value,
    axis,
    broadcast,
    constant,
    is_known,
    product,
    same,
    same_shape,
    size,
    sizes,
)


@dataclass
class Output:
    """What PyTorch says of a result."""

    shape: Shape
    dtype: torch.dtype


def graph_dtype(dtype: torch.dtype) -> str:
    """Name of an element type in a graph. Double precision is not there."""
    if dtype == torch.float64:
        raise CannotConvert("it computes in float64; convert the module and its inputs with .float()")
    return dtype_name(dtype)


class Emitter:
    """Adds operators to a graph. `batch` is the batch size, where it is known."""

    def __init__(self, graph: Graph, batch: int | None):
        self.graph = graph
        self.batch = batch
        self.source = ""  # line of the user's program
        self.name: str | None = None  # of the next node
        self.outputs: list[Output] = []  # of the operator that is being converted
        self.trainable: set[int] = set()  # values of the graph that depend on trained parameters
        self._made_by: dict[int, Any] = {}  # value of the graph -> its node
        self.shapes: dict[int, Shape] = {}  # of values of the graph that operators read
        self._reshaped: dict[int, Value] = {}  # value of the graph -> what it is a reshape of
        self._transposed: dict[int, tuple[Value, tuple[int, ...]]] = {}

    @property
    def output(self) -> Output:
        """The first result of the operator that is being converted."""
        return self.outputs[0]

    # Sizes.

    def number(self, value: Any) -> int:
        """A size as a number. NeedsBatchSize if it depends on the batch and that is not known."""
        value = size(value)
        if isinstance(value, int):
            return value
        if self.batch is None:
            raise NeedsBatchSize(f"size {value} depends on the batch size; give batch_size=")
        (symbol,) = value.free_symbols
        return int(value.subs(symbol, self.batch))

    def numbers(self, shape: Shape) -> list[int]:
        """Sizes as numbers, as `number`."""
        return [self.number(dimension) for dimension in shape]

    def scalar(self, value: Any) -> float | int | bool:
        """A Python number, or one computed from the batch size."""
        node = getattr(value, "node", None)
        expression = node.expr if node is not None and hasattr(node, "expr") else value
        if not isinstance(expression, sympy.Basic):
            return expression  # type: ignore[no-any-return]
        symbols = list(expression.free_symbols)
        if symbols and self.batch is None:
            raise NeedsBatchSize(f"number {expression} depends on the batch size; give batch_size=")
        known = expression.subs(symbols[0], self.batch) if symbols else expression
        return int(known) if known.is_integer else float(known)

    # Operators.

    def op(
        self,
        name: str,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, AttributeValue] | None = None,
        *,
        shape: Shape | None = None,
        dtype: torch.dtype | None = None,
    ) -> Value:
        """Applies an operator with one result; by default it has the shape and type that PyTorch says."""
        shape = self.output.shape if shape is None else shape
        dtype = self.output.dtype if dtype is None else dtype
        (made,) = self.ops(name, inputs, attributes, [(shape, dtype)])
        return made

    def ops(
        self,
        name: str,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, AttributeValue] | None,
        results: Sequence[tuple[Shape, torch.dtype]],
    ) -> tuple[Value, ...]:
        """Applies an operator with several results."""
        operands = [None if value is None else self.tensor(value) for value in inputs]
        made = self.graph.op(
            name, operands, attributes, outputs=len(results), name=self.name or name, source=self.source
        )
        self._made_by.update((tensor.index, self.graph.proto.nodes[-1]) for tensor in made)
        for operand, value in zip(operands, inputs, strict=True):
            if operand is not None and value is not None:
                self.shapes[operand.index] = value.held_shape
        if any(operand is not None and operand.index in self.trainable for operand in operands):
            self.trainable.update(tensor.index for tensor in made)
        return tuple(Value(tensor, shape, dtype, shape) for tensor, (shape, dtype) in zip(made, results, strict=True))

    def tensor(self, value: Value) -> Tensor:
        """The value of the graph that holds `value`, not broadcast."""
        if isinstance(value.held, Tensor):
            return value.held
        elements = value.held.detach().cpu().contiguous()
        if elements.dtype == torch.float64:
            elements = elements.float()
        if elements.dtype == torch.bfloat16:
            return self.graph.constant(elements.float().numpy(), dtype="bfloat16")
        return self.graph.constant(elements.numpy(), dtype=graph_dtype(elements.dtype))

    def depends(self, value: Value | None) -> bool:
        """Whether the value depends on trained parameters."""
        return value is not None and isinstance(value.held, Tensor) and value.held.index in self.trainable

    def is_probability(self, value: Value) -> bool:
        """Whether the value comes from a softmax or sigmoid, as the coordinator sees it."""
        index = value.held.index if isinstance(value.held, Tensor) else -1
        while (node := self.producer(index)) is not None:
            if node.op in ("softmax", "log_softmax", "sigmoid"):
                return True
            if node.op not in ("reshape", "transpose", "cast", "slice", "identity", "squeeze", "unsqueeze", "flatten"):
                return False
            index = next((i for i in node.inputs if i >= 0), -1)
        return False

    def producer(self, index: int) -> Any:
        """The node of the graph that makes a value; None of inputs, parameters and constants."""
        return self._made_by.get(index)

    def fill(self, value: float | int | bool, dtype: torch.dtype, shape: Shape = ()) -> Value:
        """A number, as a tensor that broadcasts to `shape`."""
        return constant(torch.full((1,) * len(shape), value, dtype=dtype), shape)

    def whole(self, value: Value) -> Value:
        """`value` with all its elements, where it was to be broadcast."""
        if value.is_whole:
            return value
        target = value.shape
        if value.is_constant and is_known(target):
            return constant(value.elements().contiguous())
        wanted = [1 if same(h, t) else self.number(t) for h, t in zip(self.padded(value), target, strict=True)]
        held = Value(value.held, value.held_shape, value.dtype, value.held_shape)
        return self.op("expand", [held], {"shape": wanted}, shape=target, dtype=value.dtype)

    @staticmethod
    def padded(value: Value) -> Shape:
        """Shape of what is held, with as many dimensions as the module sees."""
        return (1,) * (value.rank - len(value.held_shape)) + value.held_shape

    # Types.

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        """`value` in another element type."""
        if value.dtype == dtype:
            return value
        if isinstance(value.held, torch.Tensor):
            return Value(value.held.to(dtype), value.shape, dtype, value.held_shape)
        held = self._op_held("cast", [value], {"to": ATTRIBUTE_DTYPES[graph_dtype(dtype)]}, dtype)
        return Value(held.held, value.shape, dtype, value.held_shape)

    def _op_held(
        self, name: str, inputs: Sequence[Value], attributes: Mapping[str, AttributeValue] | None, dtype: torch.dtype
    ) -> Value:
        shape = broadcast(*(value.held_shape for value in inputs))
        return self.op(name, inputs, attributes, shape=shape, dtype=dtype)

    # Elementwise operators.

    def as_value(self, operand: Any, dtype: torch.dtype) -> Value:
        """A tensor or a number as a value of a type."""
        if isinstance(operand, Value):
            return self.cast(operand, dtype)
        return self.fill(self.scalar(operand), dtype)

    def elementwise(
        self,
        name: str,
        operands: Sequence[Any],
        attributes: Mapping[str, AttributeValue] | None = None,
        *,
        dtype: torch.dtype | None = None,
        inputs_dtype: torch.dtype | None = None,
    ) -> Value:
        """An operator with numpy's broadcasting; operands are cast to `inputs_dtype`, or else to the result's type."""
        dtype = self.output.dtype if dtype is None else dtype
        values = [self.as_value(operand, inputs_dtype or dtype) for operand in operands]
        held = self._op_held(name, values, attributes, dtype)
        return Value(held.held, broadcast(*(value.shape for value in values)), dtype, held.held_shape)

    def arithmetic(self, name: str, a: Any, b: Any, dtype: torch.dtype | None = None) -> Value:
        """add, subtract, multiply, divide or power, of tensors and numbers."""
        dtype = self.output.dtype if dtype is None else dtype
        if dtype.is_floating_point and isinstance(a, Value):
            number = self._as_number(b)
            if number is not None:
                neutral = {"add": 0, "subtract": 0, "multiply": 1, "divide": 1, "power": 1}[name]
                value = self.cast(a, dtype)
                if number == neutral:
                    return value
                held = self._op_held(f"{name}_scalar", [value], {"value": float(number)}, dtype)
                return Value(held.held, value.shape, dtype, held.held_shape)
        if dtype.is_floating_point and name in ("add", "multiply") and self._as_number(a) is not None:
            return self.arithmetic(name, b, a, dtype)
        return self.elementwise(name, [a, b], dtype=dtype)

    def _as_number(self, operand: Any) -> float | int | bool | None:
        if not isinstance(operand, Value):
            return self.scalar(operand)
        if isinstance(operand.held, torch.Tensor) and operand.rank == 0:
            return operand.held.item()  # type: ignore[no-any-return]
        return None

    def unary(self, name: str, value: Value, attributes: Mapping[str, AttributeValue] | None = None) -> Value:
        """An operator of one operand, of the result's type."""
        return self.elementwise(name, [value], attributes)

    # Shapes.

    def reshape(self, value: Value, shape: Sequence[Any]) -> Value:
        """The same elements in another shape, of which one size at most may depend on the batch."""
        target = sizes(shape)
        if any(same(dimension, -1) for dimension in target):
            known = product(dimension for dimension in target if not same(dimension, -1))
            missing = size(sympy.cancel(sympy.sympify(product(value.shape)) / known))
            target = tuple(missing if same(dimension, -1) else dimension for dimension in target)
        value = self._without_reshape(self.whole(value))
        if same_shape(value.shape, target):
            return value
        if isinstance(value.held, torch.Tensor):
            return constant(value.held.reshape(self.numbers(target)), target)
        made = self.op(
            "reshape", [value], {"shape": self.reshape_sizes(value, target)}, shape=target, dtype=value.dtype
        )
        assert isinstance(made.held, Tensor)
        self._reshaped[made.held.index] = value
        return made

    def reshape_sizes(self, value: Value, target: Shape) -> list[int]:
        """`target` as attribute `shape` of the operator: one size that follows the batch is -1 or 0."""
        wanted: list[int] = []
        inferred = False
        for place, dimension in enumerate(target):
            if isinstance(dimension, int):
                wanted.append(dimension)
            elif place < value.rank and same(value.shape[place], dimension):
                wanted.append(0)
            elif not inferred:
                inferred = True
                wanted.append(-1)
            else:
                wanted.append(self.number(dimension))
        return wanted

    def _without_reshape(self, value: Value) -> Value:
        while isinstance(value.held, Tensor) and value.held.index in self._reshaped:
            value = self._reshaped[value.held.index]
        return value

    def before_reshape(self, value: Value) -> Value:
        """What `value` is a reshape of, or itself."""
        return self._without_reshape(value)

    def transpose(self, value: Value, permutation: Sequence[int]) -> Value:
        """Dimension d of the result is dimension permutation[d]."""
        permutation = tuple(axis(p, value.rank) for p in permutation)
        if isinstance(value.held, torch.Tensor):
            held = value.held.reshape(self.numbers(self.padded(value))).permute(permutation)
            return constant(held, [value.shape[p] for p in permutation])
        value = self.whole(value)
        assert isinstance(value.held, Tensor)
        if value.held.index in self._transposed:
            value, first = self._transposed[value.held.index]
            permutation = tuple(first[p] for p in permutation)
        if permutation == tuple(range(value.rank)):
            return value
        shape = tuple(value.shape[p] for p in permutation)
        made = self.op("transpose", [value], {"perm": list(permutation)}, shape=shape, dtype=value.dtype)
        assert isinstance(made.held, Tensor)
        self._transposed[made.held.index] = (value, permutation)
        return made

    def stop_gradient(self, value: Value) -> Value:
        """`value`, through which no gradient flows."""
        if value.is_constant or not value.dtype.is_floating_point:
            return value
        return self.elementwise("stop_gradient", [value], dtype=value.dtype)
