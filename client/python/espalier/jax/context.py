"""What handlers of primitives emit with: stored layouts, broadcasting, and sizes that depend on the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from espalier.graph import AttributeValue
from espalier.jax.ir import Dim, Program, Shape, Wire, is_static, same
from espalier.jax.values import Refused, Value

ACCEPTED = ("float32", "bfloat16", "float16", "int32", "int64", "bool", "int8", "uint8")


class Context:
    """Emits nodes of one graph. `batch_size` is that of the job: some programs compute with it."""

    def __init__(self, program: Program, batch_size: int, lazy_layout: bool = True):
        self.program = program
        self.batch_size = batch_size
        self.lazy_layout = lazy_layout
        self.uses_batch_size = False
        self.notes: list[str] = []
        self.like: Wire | None = None  # any input with a batch
        self.drawn: dict[Any, Value] = {}  # random numbers, by the key they come from

    def note(self, text: str) -> None:
        """Something that the user may not expect, said once."""
        if text not in self.notes:
            self.notes.append(text)

    # Sizes

    def number(self, dim: Dim) -> int:
        """A dimension's size at the job's batch size."""
        if is_static(dim):
            return int(dim)
        self.uses_batch_size = True
        return self.at(dim, self.batch_size)

    @staticmethod
    def at(dim: Dim, batch: int) -> int:
        """A dimension's size at a batch size."""
        if is_static(dim):
            return int(dim)
        return int(dim._evaluate(dict.fromkeys(dim._get_vars(), batch)))

    # Wires of views

    def stored(self, value: Value) -> Wire:
        """The wire that holds a value; a constant becomes one."""
        if value.wire is None:
            if value.dtype not in ACCEPTED:
                raise Refused(f"a constant of type {value.dtype}; accepted are {', '.join(ACCEPTED)}")
            assert value.array is not None
            self.uses_batch_size = self.uses_batch_size or value.sized
            value.wire = self.program.constant(value.array)
        return value.wire

    def emit(self, op: str, inputs: Sequence[Wire | None], shape: Shape, dtype: str, /, **attributes: Any) -> Wire:
        """One node with one output."""
        if dtype not in ACCEPTED:
            raise Refused(f"a result of type {dtype}; accepted are {', '.join(ACCEPTED)}")
        wire: Wire = self.program.emit(op, inputs, shape, dtype, **attributes)
        return wire

    def transpose(self, wire: Wire, perm: Sequence[int]) -> Wire:
        """Dimension d of the result is dimension perm[d]."""
        if list(perm) == list(range(len(perm))):
            return wire
        shape = tuple(wire.shape[p] for p in perm)
        if wire.kind == "constant":
            assert wire.data is not None
            return self.program.constant(np.transpose(wire.data, perm))
        if wire.node is not None and wire.node.op == "transpose":
            inner = wire.node.ints("perm")
            source = wire.node.inputs[0]
            assert source is not None
            return self.transpose(source, [inner[p] for p in perm])
        return self.emit("transpose", [wire], shape, wire.dtype, perm=[int(p) for p in perm])

    def unsqueeze(self, wire: Wire, axes: Sequence[int]) -> Wire:
        """Puts dimensions of size 1 in, so that they are dimensions `axes` of the result."""
        if not axes:
            return wire
        shape: list[Dim] = list(wire.shape)
        for axis in sorted(axes):
            shape.insert(axis, 1)
        if wire.kind == "constant":
            assert wire.data is not None
            return self.program.constant(wire.data.reshape(shape))
        return self.emit("unsqueeze", [wire], tuple(shape), wire.dtype, axes=[int(a) for a in sorted(axes)])

    def reshape(self, wire: Wire, shape: Shape) -> Wire:
        """The elements in order, in another shape."""
        shape = tuple(shape)
        if len(shape) == len(wire.shape) and all(same(a, b) for a, b in zip(shape, wire.shape, strict=True)):
            return wire
        if wire.kind == "constant" and all(is_static(d) for d in shape):
            assert wire.data is not None
            return self.program.constant(wire.data.reshape(shape))
        sizes: list[int] = []
        for i, dim in enumerate(shape):
            if is_static(dim):
                sizes.append(int(dim))
            elif i < len(wire.shape) and same(dim, wire.shape[i]):
                sizes.append(0)
            else:
                sizes.append(-1)
        if sizes.count(-1) > 1:
            raise Refused(f"reshape from {wire.shape} to {shape}: more than one size depends on the batch")
        return self.emit("reshape", [wire], shape, wire.dtype, shape=sizes)

    def cast(self, wire: Wire, dtype: str) -> Wire:
        """In another element type; numbers become true where they are not 0."""
        from espalier.graph import ATTRIBUTE_DTYPES

        if wire.dtype == dtype:
            return wire
        if dtype not in ACCEPTED:
            raise Refused(f"a result of type {dtype}; accepted are {', '.join(ACCEPTED)}")
        if wire.kind == "constant" and dtype != "bfloat16":
            assert wire.data is not None
            return self.program.constant(wire.data.astype(dtype))
        if dtype == "bool":
            return self.emit("not_equal", [wire, self.scalar(0, wire.dtype)], wire.shape, "bool")
        return self.emit("cast", [wire], wire.shape, dtype, to=ATTRIBUTE_DTYPES[dtype])

    def scalar(self, value: Any, dtype: str) -> Wire:
        """A constant of no dimensions."""
        if dtype == "bfloat16":
            import ml_dtypes

            return self.program.constant(np.asarray(value, ml_dtypes.bfloat16))
        return self.program.constant(np.asarray(value, dtype))

    def ordered(self, value: Value, order: Sequence[int], keep: bool = False) -> Wire:
        """The value's held dimensions in the given order of its dimensions, which names them all.

        Those of `order` that are not held have size 1; leading ones are left out unless `keep`.
        """
        wire = self.stored(value)
        held = [i for i in order if value.dims[i] is not None]
        wire = self.transpose(wire, [value.at(i) for i in held])
        if not keep:
            first = next((k for k, i in enumerate(order) if value.dims[i] is not None), len(order))
            order = order[first:]
        return self.unsqueeze(wire, [k for k, i in enumerate(order) if value.dims[i] is None])

    def align(self, values: Sequence[Value]) -> tuple[list[Wire], tuple[int | None, ...], Shape, Shape]:
        """Brings values to one layout, ready for an operator with NumPy's broadcasting.

        Returns the wires, the dims and logical shape of the result, and its stored shape.
        """
        rank = max(len(v.shape) for v in values)
        full = [v for v in values if len(v.shape) == rank]
        leader = max(full, key=lambda v: (sum(d is not None for d in v.dims), not v.is_constant))
        order = leader.order
        held = {i for v in full for i, d in enumerate(v.dims) if d is not None}
        extra = sorted(held - set(order))
        order = sorted(held) if order == sorted(order) else extra + order
        wires = [self.ordered(v, order if len(v.shape) == rank else []) for v in values]
        dims: list[int | None] = [None] * rank
        for position, i in enumerate(order):
            dims[i] = position
        shape = leader.shape
        return wires, tuple(dims), shape, tuple(shape[i] for i in order)

    def dense(self, value: Value) -> Wire:
        """The wire of all elements in order, broadcast where the value is."""
        rank = len(value.shape)
        wire = self.ordered(value, range(rank), keep=True)
        if all(same(a, b) for a, b in zip(wire.shape, value.shape, strict=True)):
            return wire
        return self.broadcast(wire, value.shape)

    def broadcast(self, wire: Wire, shape: Shape) -> Wire:
        """Repeats dimensions of size 1 until the shape is `shape`."""
        sizes = [int(d) if is_static(d) else 1 for d in shape]
        now = tuple(d if is_static(d) else wire.shape[i] for i, d in enumerate(shape))
        if any(not same(a, b) for a, b in zip(wire.shape, now, strict=True)):
            if wire.kind == "constant":
                assert wire.data is not None
                wire = self.program.constant(np.broadcast_to(wire.data, [int(d) for d in now]))
            else:
                wire = self.emit("expand", [wire], now, wire.dtype, shape=sizes)
        for i, dim in enumerate(shape):
            if not same(wire.shape[i], dim):
                wire = self._repeat_over_batch(wire, i, dim)
        return wire

    def batch_false(self) -> Wire:
        """bool[batch], all false."""
        if self.like is None:
            raise Refused("no input of the loss has a batch dimension to take the batch size from")
        row = self.like
        if len(row.shape) > 1:
            rank = len(row.shape)
            row = self.emit(
                "slice",
                [row],
                (row.shape[0],) + (1,) * (rank - 1),
                row.dtype,
                axes=list(range(1, rank)),
                starts=[0] * (rank - 1),
                ends=[1] * (rank - 1),
            )
            row = self.reshape(row, (self.like.shape[0],))
        return self.emit("not_equal" if row.dtype == "bool" else "less", [row, row], row.shape, "bool")

    def _repeat_over_batch(self, wire: Wire, axis: int, dim: Dim) -> Wire:
        falses = self.batch_false()
        if not same(falses.shape[0], dim):
            raise Refused(f"broadcasting to {dim} rows, which is not the batch itself")
        falses = self.unsqueeze(falses, range(1, len(wire.shape) - axis))
        shape = tuple(dim if i == axis else d for i, d in enumerate(wire.shape))
        if wire.dtype == "bool":
            return self.emit("logical_or", [wire, falses], shape, "bool")
        return self.emit("add", [wire, self.cast(falses, wire.dtype)], shape, wire.dtype)

    # Values

    def elementwise(self, op: str, values: Sequence[Value], dtype: str, **attributes: AttributeValue) -> Value:
        """Applies an operator of NumPy's broadcasting to values."""
        wires, dims, shape, stored = self.align(values)
        return Value(shape, dtype, dims, wire=self.emit(op, wires, stored, dtype, **attributes))

    def constant(self, like: Value, number: Any) -> Value:
        """`number` in the type of `like`, of no dimensions."""
        wire = self.scalar(number, like.dtype)
        return Value((), like.dtype, (), array=wire.data)

    def view(self, wire: Wire, order: Sequence[int], shape: Shape) -> Value:
        """The view whose dimension order[k] is dimension k of the wire."""
        dims: list[int | None] = [None] * len(shape)
        for k, i in enumerate(order):
            dims[i] = k
        if not self.lazy_layout:
            held = sorted(order)
            wire = self.transpose(wire, [list(order).index(i) for i in held])
            for k, i in enumerate(held):
                dims[i] = k
        return Value(tuple(shape), wire.dtype, tuple(dims), wire=wire)

    def full(self, value: Value) -> np.ndarray[Any, Any]:
        """All elements of a constant in order. Refused where a size depends on the batch."""
        if value.array is None:
            raise Refused("needs a value that is known when the program is converted")
        if not all(is_static(d) for d in value.shape):
            raise Refused(f"a constant of shape {value.shape}")
        rank = len(value.shape)
        array = np.transpose(value.array, [value.at(i) for i in value.order])
        array = array.reshape([value.shape[i] if value.dims[i] is not None else 1 for i in range(rank)])
        return np.broadcast_to(array, [int(d) for d in value.shape])


def natural(value: Value) -> Value:
    """A constant stored in the order of its dimensions."""
    assert value.array is not None
    order = sorted(value.order)
    perm = [value.at(i) for i in order]
    dims: list[int | None] = [None] * len(value.shape)
    for k, i in enumerate(order):
        dims[i] = k
    array = np.transpose(value.array, perm)
    return Value(value.shape, value.dtype, tuple(dims), array=array)
