"""gather, scatter and slices at computed places, as indexing and embedding lookups make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from espalier.jax.context import Context
from espalier.jax.convert_shape import concatenated, padded, reshape, sliced, squeezed
from espalier.jax.ir import Wire, is_static, same
from espalier.jax.registry import handles
from espalier.jax.values import Refused, Value, of_array, of_wire

if TYPE_CHECKING:
    from espalier.jax.interpret import Interpreter


def unwrapped(wire: Wire, size: Any) -> Wire:
    """i of where(i < 0, i + size, i): the daemon's lookups count negative indices from the end, too."""
    node = wire.node
    if node is None or not is_static(size):
        return wire
    if node.op in ("unsqueeze", "reshape", "cast") and node.inputs[0] is not None:
        return wire
    if node.op != "where":
        return wire
    condition, shifted, plain = node.inputs
    assert condition is not None
    assert shifted is not None
    if condition.node is None or condition.node.op != "less" or condition.node.inputs[0] is not plain:
        return wire
    if shifted.node is None or shifted.node.op != "add" or shifted.node.inputs[0] is not plain:
        return wire
    zero, added = condition.node.inputs[1], shifted.node.inputs[1]
    if zero is None or added is None or zero.data is None or added.data is None or plain is None:
        return wire
    if zero.data.size == 1 and added.data.size == 1 and int(zero.data) == 0 and int(added.data) == int(size):
        return plain
    return wire


def _index_value(context: Context, indices: Value, size: Any, mode: Any) -> Value:
    """Indices into a dimension: without the wrapping of negative ones, in range if JAX clamps them."""
    if indices.wire is not None:
        plain = unwrapped(indices.wire, size)
        if plain is not indices.wire:
            indices = Value(indices.shape, plain.dtype, indices.dims, wire=plain)
    if "CLIP" in str(mode) and not indices.is_constant:
        wire = context.stored(indices)
        wire = context.emit("clip", [wire], wire.shape, wire.dtype, min=0.0, max=float(context.number(size) - 1))
        indices = Value(indices.shape, indices.dtype, indices.dims, wire=wire)
    return indices


def _signed(context: Context, wire: Wire) -> Wire:
    return wire if wire.dtype in ("int32", "int64") else context.cast(wire, "int32")


@handles("gather")
def _gather(it: Interpreter, equation: Any, x: Value, indices: Value, *sizes: Any) -> Value:
    context, p = it.context, equation.params
    d = p["dimension_numbers"]
    shape = tuple(equation.outvars[0].aval.shape)
    slices = tuple(p["slice_sizes"])
    mapped, collapsed = list(d.start_index_map), list(d.collapsed_slice_dims)
    batching = list(d.operand_batching_dims)
    full = [same(s, x.shape[i]) for i, s in enumerate(slices)]
    for i in range(len(x.shape)):
        if i not in mapped and i not in batching and not full[i]:
            return _windows(context, equation, x, indices)  # a prefix of a dimension that is not looked up
    if any(m not in collapsed for m in mapped):
        return _windows(context, equation, x, indices)
    offset = list(d.offset_dims)
    places = [i for i in range(len(shape)) if i not in offset]  # of the indices' dimensions, in the result
    rest = [i for i in range(len(x.shape)) if i not in mapped and i not in batching and i not in collapsed]
    if len(mapped) == 1 and not batching:
        return _take(context, x, indices, mapped[0], rest, offset, places, shape, p["mode"])
    rows = [int(i) for i in d.start_indices_batching_dims]
    columns, rows, batching, mapped = _columns(context, x, indices, rows, batching, mapped)
    columns = [_index_value(context, c, x.shape[m], p["mode"]) for c, m in zip(columns, mapped, strict=True)]
    rank = len(indices.shape) - 1
    free = [i for i in range(rank) if i not in rows]
    source_order = [*batching, *mapped, *rest]
    source = context.broadcast(context.ordered(x, source_order, keep=True), tuple(x.shape[i] for i in source_order))
    index_order = [*rows, *free]
    index_shape = tuple(indices.shape[i] for i in index_order)
    wires = [
        _signed(context, context.broadcast(context.ordered(c, index_order, keep=True), index_shape)) for c in columns
    ]
    if not mapped:
        made = source
    elif len(mapped) == 1 and not rest and len(free) <= 1:
        axis = len(batching)
        wire = wires[0] if free else context.unsqueeze(wires[0], [axis])
        made = context.emit("gather_elements", [source, wire], wire.shape, x.dtype, axis=axis)
        if not free:
            made = context.emit("squeeze", [made], index_shape, x.dtype, axes=[axis])
    else:
        wires = [context.unsqueeze(w, [rank]) for w in wires]
        stacked = wires[0]
        if len(wires) > 1:
            stacked = context.emit("concat", wires, (*index_shape, len(wires)), wires[0].dtype, axis=rank)
        made_shape = (*index_shape, *(x.shape[i] for i in rest))
        made = context.emit("gather_nd", [source, stacked], made_shape, x.dtype, batch_dims=len(batching))
    order = [places[i] for i in index_order] + offset
    return context.view(made, order, shape)


def _take(
    context: Context,
    x: Value,
    indices: Value,
    axis: int,
    rest: list[int],
    offset: list[int],
    places: list[int],
    shape: tuple[Any, ...],
    mode: Any,
) -> Value:
    """x[..., i..., ...]: whole slices at the indices of one dimension."""
    column = _column(context, indices, 0)
    if column.is_constant and is_static(x.shape[axis]) and column.scalar is not None:
        place = int(column.scalar)
        place = min(max(place, 0), int(x.shape[axis]) - 1) if "CLIP" in str(mode) else place
        if 0 <= place < int(x.shape[axis]):
            starts, limits = [0] * len(x.shape), list(x.shape)
            starts[axis], limits[axis] = place, place + 1
            row = squeezed(context, sliced(context, x, starts, limits, [1] * len(x.shape)), [axis])
            dims: list[int | None] = [None] * len(shape)
            for k, position in enumerate(offset):
                dims[position] = row.dims[k]
            return Value(shape, x.dtype, tuple(dims), row.wire, row.array)
    column = _index_value(context, column, x.shape[axis], mode)
    ids = _signed(context, context.dense(column))
    before = [i for i in rest if i < axis]
    after = [i for i in rest if i > axis]
    source = context.dense(x)
    made_shape = (*(x.shape[i] for i in before), *ids.shape, *(x.shape[i] for i in after))
    if source.kind == "parameter" and axis == 0 and len(source.shape) == 2:
        made = context.emit("embedding", [ids, source], made_shape, x.dtype)
    else:
        made = context.emit("gather", [source, ids], made_shape, x.dtype, axis=axis)
    by_operand = dict(zip(rest, offset, strict=True))
    order = [by_operand[i] for i in before] + places + [by_operand[i] for i in after]
    return context.view(made, order, shape)


def _column(context: Context, indices: Value, k: int) -> Value:
    """Component k of index vectors; the last dimension is gone."""
    last = len(indices.shape) - 1
    starts, limits = [0] * (last + 1), list(indices.shape)
    starts[last], limits[last] = k, k + 1
    return squeezed(context, sliced(context, indices, starts, limits, [1] * (last + 1)), [last])


def _columns(
    context: Context, x: Value, indices: Value, rows: list[int], batching: list[int], mapped: list[int]
) -> tuple[list[Value], list[int], list[int], list[int]]:
    """The components of index vectors. A component that numbers the batch makes its dimension a batching one."""
    count = len(mapped)
    rank = len(indices.shape) - 1
    node = None if indices.wire is None else indices.wire.node
    if indices.is_constant or indices.dims[rank] is None:
        columns = [_column(context, indices, k) for k in range(count)]
    elif node is not None and node.op == "concat" and len(node.inputs) == count:
        columns = []
        for wire in node.inputs:
            assert wire is not None
            whole = context.view(wire, indices.order, (*indices.shape[:-1], 1))
            flat = context.emit(
                "squeeze",
                [wire],
                tuple(s for k, s in enumerate(wire.shape) if k != indices.dims[rank]),
                wire.dtype,
                axes=[indices.at(rank)],
            )
            order = [i for i in whole.order if i != rank]
            columns.append(context.view(flat, order, indices.shape[:-1]))
    else:
        columns = [_column(context, indices, k) for k in range(count)]
    kept_columns, kept_mapped = [], []
    for column, dimension in zip(columns, mapped, strict=True):
        place = None if is_static(x.shape[dimension]) else _numbers_batch(column)
        if place is not None and place not in rows:
            rows, batching = [*rows, place], [*batching, dimension]
        else:
            kept_columns.append(column)
            kept_mapped.append(dimension)
    return kept_columns, rows, batching, kept_mapped


def _numbers_batch(column: Value) -> int | None:
    """The dimension along which a value is 0, 1, 2, ... over the batch; None if there is none."""
    wire = column.wire
    while wire is not None and wire.node is not None and wire.node.op in ("unsqueeze", "squeeze", "cast", "add"):
        if wire.node.op == "add" and not (wire.node.inputs[1] is not None and _is_zeros(wire.node.inputs[1])):
            return None
        wire = wire.node.inputs[0]
    if wire is None or wire.node is None or wire.node.op != "cumsum" or not wire.node.attributes.get("exclusive"):
        return None
    symbolic = [i for i, d in enumerate(column.shape) if not is_static(d) and column.dims[i] is not None]
    return symbolic[0] if len(symbolic) == 1 else None


def _is_zeros(wire: Wire) -> bool:
    return wire.data is not None and not np.any(wire.data)


def _windows(context: Context, equation: Any, x: Value, indices: Value) -> Value:
    """Slices of more than one element: for one place, a slice along each dimension."""
    p = equation.params
    d = p["dimension_numbers"]
    if d.operand_batching_dims or any(not same(s, 1) for s in indices.shape[:-1]):
        raise Refused("windows at several places")
    starts: list[Value] = [of_array(np.int32(0))] * len(x.shape)
    for k, dimension in enumerate(d.start_index_map):
        column = _column(context, indices, k)
        starts[dimension] = Value((), column.dtype, (), column.wire, column.array)
        if column.array is not None:
            starts[dimension] = of_array(column.array.reshape(()))
        elif column.wire is not None and column.wire.shape:
            starts[dimension] = of_wire(context.reshape(column.wire, ()))
    result = dynamic_slice(context, x, starts, list(p["slice_sizes"]))
    return reshape(context, result, tuple(equation.outvars[0].aval.shape))


@handles("dynamic_slice")
def _dynamic_slice(it: Interpreter, equation: Any, x: Value, *starts: Value) -> Value:
    return dynamic_slice(it.context, x, list(starts)[: len(x.shape)], list(equation.params["slice_sizes"]))


def dynamic_slice(context: Context, x: Value, starts: list[Value], sizes: list[Any]) -> Value:
    """A slice whose start is clamped so that it fits, as JAX does."""
    for axis, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        if same(size, x.shape[axis]):
            continue
        if not is_static(x.shape[axis]) or not is_static(size):
            raise Refused("a part of the batch")
        last = int(x.shape[axis]) - int(size)
        if start.scalar is not None:
            first = min(max(int(start.scalar), 0), last)
            begins, limits = [0] * len(x.shape), list(x.shape)
            begins[axis], limits[axis] = first, first + int(size)
            x = sliced(context, x, begins, limits, [1] * len(x.shape))
            continue
        wire = _signed(context, unwrapped(context.stored(start), x.shape[axis]))
        wrapped = wire is not context.stored(start)
        if wrapped:
            size_wire = context.scalar(int(x.shape[axis]), wire.dtype)
            wire = context.emit(
                "modulo", [context.emit("add", [wire, size_wire], (), wire.dtype), size_wire], (), wire.dtype
            )
        wire = context.emit("clip", [wire], (), wire.dtype, min=0.0, max=float(last))
        ids = context.emit(
            "add", [wire, context.program.constant(np.arange(int(size), dtype=wire.dtype))], (int(size),), wire.dtype
        )
        source = context.dense(x)
        shape = tuple(size if i == axis else s for i, s in enumerate(x.shape))
        x = of_wire(context.emit("gather", [source, ids], shape, x.dtype, axis=axis))
    return x


@handles("dynamic_update_slice")
def _dynamic_update_slice(it: Interpreter, equation: Any, x: Value, update: Value, *starts: Value) -> Value:
    if any(s.scalar is None for s in starts):
        raise Refused("at a place that is computed")
    return updated(it.context, x, update, [int(s.scalar) for s in starts])


def updated(context: Context, x: Value, update: Value, starts: Sequence[int]) -> Value:
    """x with `update` written at constant places."""
    axes = [i for i in range(len(x.shape)) if not same(x.shape[i], update.shape[i])]
    if any(not is_static(x.shape[i]) for i in axes):
        raise Refused("a part of the batch")
    firsts = {i: min(max(starts[i], 0), int(x.shape[i]) - int(update.shape[i])) for i in axes}
    if not axes:
        return update
    if len(axes) == 1:
        (axis,) = axes
        parts = []
        size, width = int(x.shape[axis]), int(update.shape[axis])
        for begin, end in ((0, firsts[axis]), (firsts[axis] + width, size)):
            begins, limits = [0] * len(x.shape), list(x.shape)
            begins[axis], limits[axis] = begin, end
            parts.append(sliced(context, x, begins, limits, [1] * len(x.shape)) if end > begin else None)
        return concatenated(context, [p for p in (parts[0], update, parts[1]) if p is not None], axis)
    mask = np.zeros([int(x.shape[i]) for i in axes], bool)
    mask[tuple(slice(firsts[i], firsts[i] + int(update.shape[i])) for i in axes)] = True
    dims: list[int | None] = [None] * len(x.shape)
    for k, i in enumerate(axes):
        dims[i] = k
    where = Value(x.shape, "bool", tuple(dims), array=mask)
    config = [
        (firsts[i], int(x.shape[i]) - firsts[i] - int(update.shape[i]), 0) if i in axes else (0, 0, 0)
        for i in range(len(x.shape))
    ]
    wide = padded(context, update, of_array(np.zeros((), update.dtype)), config)
    return context.elementwise("where", [where, wide, x], x.dtype)


_REDUCTIONS = {
    "scatter": "none",
    "scatter-add": "add",
    "scatter_add": "add",
    "scatter-mul": "multiply",
    "scatter_mul": "multiply",
    "scatter-max": "maximum",
    "scatter_max": "maximum",
    "scatter-min": "minimum",
    "scatter_min": "minimum",
}


@handles(*_REDUCTIONS)
def _scatter(it: Interpreter, equation: Any, x: Value, indices: Value, updates: Value) -> Value:
    context, p = it.context, equation.params
    d = p["dimension_numbers"]
    reduction = _REDUCTIONS[equation.primitive.name]
    mapped = list(d.scatter_dims_to_operand_dims)
    if d.operand_batching_dims:
        raise Refused("with batching dimensions")
    if sorted(d.inserted_window_dims) != sorted(mapped):
        return _scatter_window(context, x, indices, updates, d, reduction)
    window = list(d.update_window_dims)
    rest = [i for i in range(len(x.shape)) if i not in mapped]
    rank = len(indices.shape) - 1
    columns = [_index_value(context, _column(context, indices, k), x.shape[m], p["mode"]) for k, m in enumerate(mapped)]
    wires = [context.unsqueeze(_signed(context, context.dense(c)), [rank]) for c in columns]
    stacked = wires[0]
    if len(wires) > 1:
        stacked = context.emit("concat", wires, (*indices.shape[:-1], len(wires)), wires[0].dtype, axis=rank)
    order = [*mapped, *rest]
    source = context.broadcast(context.ordered(x, order, keep=True), tuple(x.shape[i] for i in order))
    update_order = [i for i in range(len(updates.shape)) if i not in window] + window
    update = context.broadcast(
        context.ordered(updates, update_order, keep=True), tuple(updates.shape[i] for i in update_order)
    )
    made = context.emit("scatter_nd", [source, stacked, update], source.shape, x.dtype, reduction=reduction)
    return context.view(made, order, x.shape)


def _scatter_window(context: Context, x: Value, indices: Value, updates: Value, d: Any, reduction: str) -> Value:
    """One window at a constant place, as x.at[:, 2:5].set(...) makes it."""
    if not indices.is_constant or any(not same(s, 1) for s in indices.shape[:-1]):
        raise Refused("windows at computed places")
    starts = [0] * len(x.shape)
    for k, dimension in enumerate(d.scatter_dims_to_operand_dims):
        array = _column(context, indices, k).array
        assert array is not None
        starts[dimension] = int(array.reshape(-1)[0])
    window = list(d.update_window_dims)
    sizes = iter(updates.shape[i] for i in window)
    shape = [1 if i in d.inserted_window_dims else next(sizes) for i in range(len(x.shape))]
    update = reshape(context, updates, tuple(shape))
    if reduction == "none":
        return updated(context, x, update, starts)
    if reduction != "add":
        raise Refused(f"of reduction {reduction} in a window")
    config = [(starts[i], int(context.number(x.shape[i] - starts[i] - shape[i])), 0) for i in range(len(x.shape))]
    wide = padded(context, update, of_array(np.zeros((), update.dtype)), config)
    return context.elementwise("add", [x, wide], x.dtype)
