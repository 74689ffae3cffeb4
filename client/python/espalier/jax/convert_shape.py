"""Shapes: broadcasting, reshaping, slicing, joining, padding. Most are views, without a node."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from espalier.jax.context import Context, natural
from espalier.jax.ir import Dim, is_static, same
from espalier.jax.registry import handles
from espalier.jax.values import Any3, Refused, Size, Value, of_array, of_wire

if TYPE_CHECKING:
    from espalier.jax.interpret import Interpreter


@handles("broadcast_in_dim")
def _broadcast_in_dim(it: Interpreter, equation: Any, x: Any3, *sizes: Any3) -> Any3:
    shape = tuple(equation.outvars[0].aval.shape)
    if isinstance(x, Size):
        if not shape:
            return x
        x = it.concrete(x)
    assert isinstance(x, Value)
    dims: list[int | None] = [None] * len(shape)
    drop = []  # stored dimensions of size 1 that the result repeats
    for i, target in enumerate(equation.params["broadcast_dimensions"]):
        if x.dims[i] is None:
            continue
        if same(x.shape[i], shape[target]):
            dims[target] = x.dims[i]
        else:
            drop.append(i)
    if drop:
        x = squeezed(it.context, x, drop)
        dims = [None] * len(shape)
        kept = [t for i, t in enumerate(equation.params["broadcast_dimensions"]) if i not in drop]
        for i, target in enumerate(kept):
            dims[target] = x.dims[i]
    return Value(shape, x.dtype, tuple(dims), x.wire, x.array)


def squeezed(context: Context, x: Value, axes: list[int]) -> Value:
    """Without dimensions of size 1."""
    kept = [i for i in range(len(x.shape)) if i not in axes]
    stored = sorted(x.at(a) for a in axes if x.dims[a] is not None)
    shape = tuple(x.shape[i] for i in kept)
    rank = sum(d is not None for d in x.dims)
    left = [d for d in range(rank) if d not in stored]
    dims = tuple(left.index(x.at(i)) if x.dims[i] is not None else None for i in kept)
    if x.array is not None:
        return Value(shape, x.dtype, dims, array=x.array.reshape([x.array.shape[d] for d in left]))
    wire = x.wire
    assert wire is not None
    if stored:
        wire = context.emit("squeeze", [wire], tuple(wire.shape[d] for d in left), wire.dtype, axes=stored)
    return Value(shape, x.dtype, dims, wire=wire)


def expanded(x: Value, axes: list[int]) -> Value:
    """With dimensions of size 1 at `axes` of the result."""
    shape: list[Dim] = list(x.shape)
    dims: list[int | None] = list(x.dims)
    for axis in sorted(axes):
        shape.insert(axis, 1)
        dims.insert(axis, None)
    return Value(tuple(shape), x.dtype, tuple(dims), x.wire, x.array)


@handles("squeeze")
def _squeeze(it: Interpreter, equation: Any, x: Value) -> Value:
    return squeezed(it.context, x, [int(a) for a in equation.params["dimensions"]])


@handles("expand_dims")
def _expand_dims(it: Interpreter, equation: Any, x: Value) -> Value:
    return expanded(x, [int(a) for a in equation.params["dimensions"]])


@handles("transpose")
def _transpose(it: Interpreter, equation: Any, x: Value) -> Value:
    perm = equation.params["permutation"]
    result = Value(tuple(x.shape[p] for p in perm), x.dtype, tuple(x.dims[p] for p in perm), x.wire, x.array)
    if result.array is not None:
        return natural(result)
    return result if it.context.lazy_layout else of_wire(it.context.dense(result))


@handles("reshape")
def _reshape(it: Interpreter, equation: Any, x: Value, *sizes: Any3) -> Value:
    shape = tuple(equation.outvars[0].aval.shape)
    if equation.params.get("dimensions") is not None:
        raise Refused("a permutation within reshape")
    return reshape(it.context, x, shape)


def reshape(context: Context, x: Value, shape: tuple[Dim, ...]) -> Value:
    """The elements in order, in another shape. Only dimensions of size 1 that come or go: a view."""
    old = [i for i, d in enumerate(x.shape) if not same(d, 1)]
    new = [i for i, d in enumerate(shape) if not same(d, 1)]
    if len(old) == len(new) and all(same(x.shape[i], shape[j]) for i, j in zip(old, new, strict=True)):
        ones = [i for i in range(len(x.shape)) if i not in old]
        kept = squeezed(context, x, ones)
        dims: list[int | None] = [None] * len(shape)
        for k, j in enumerate(new):
            dims[j] = kept.dims[k]
        return Value(shape, x.dtype, tuple(dims), kept.wire, kept.array)
    if x.array is not None and x.scalar is not None:
        return Value(shape, x.dtype, (None,) * len(shape), array=x.array.reshape(-1)[0].reshape(()))
    return of_wire(context.reshape(context.dense(x), shape))


@handles("slice")
def _slice(it: Interpreter, equation: Any, x: Value) -> Value:
    p = equation.params
    strides = p["strides"] or (1,) * len(x.shape)
    return sliced(it.context, x, list(p["start_indices"]), list(p["limit_indices"]), list(strides))


def sliced(context: Context, x: Value, starts: list[Dim], limits: list[Dim], strides: list[int]) -> Value:
    """x[start:limit:stride] along every dimension."""
    shape, axes = list(x.shape), []
    for i, (start, limit, stride) in enumerate(zip(starts, limits, strides, strict=True)):
        if same(start, 0) and same(limit, x.shape[i]) and stride == 1:
            continue
        if not (is_static(start) and is_static(limit)) or not is_static(x.shape[i]):
            raise Refused("a slice of the batch dimension")
        shape[i] = len(range(int(start), int(limit), int(stride)))
        axes.append(i)
    held = [i for i in axes if x.dims[i] is not None]
    if x.array is not None:
        index: list[Any] = [slice(None)] * x.array.ndim
        for i in held:
            index[x.at(i)] = slice(int(starts[i]), int(limits[i]), int(strides[i]))
        return Value(tuple(shape), x.dtype, x.dims, array=x.array[tuple(index)])
    wire = x.wire
    assert wire is not None
    if held:
        stored = list(wire.shape)
        for i in held:
            stored[x.at(i)] = shape[i]
        wire = context.emit(
            "slice",
            [wire],
            tuple(stored),
            wire.dtype,
            axes=[x.at(i) for i in held],
            starts=[int(starts[i]) for i in held],
            ends=[int(limits[i]) for i in held],
            steps=[int(strides[i]) for i in held],
        )
    return Value(tuple(shape), x.dtype, x.dims, wire=wire)


@handles("split")
def _split(it: Interpreter, equation: Any, x: Value) -> list[Value]:
    axis, sizes = int(equation.params["axis"]), [int(s) for s in equation.params["sizes"]]
    results, start = [], 0
    for size in sizes:
        starts, limits = [0] * len(x.shape), list(x.shape)
        starts[axis], limits[axis] = start, start + size
        results.append(sliced(it.context, x, starts, limits, [1] * len(x.shape)))
        start += size
    return results


@handles("unstack")
def _unstack(it: Interpreter, equation: Any, x: Value) -> list[Value]:
    axis = int(equation.params["axis"])
    results = []
    for k in range(int(x.shape[axis])):
        starts, limits = [0] * len(x.shape), list(x.shape)
        starts[axis], limits[axis] = k, k + 1
        results.append(squeezed(it.context, sliced(it.context, x, starts, limits, [1] * len(x.shape)), [axis]))
    return results


@handles("concatenate")
def _concatenate(it: Interpreter, equation: Any, *parts: Value) -> Value:
    return concatenated(it.context, list(parts), int(equation.params["dimension"]))


def concatenated(context: Context, parts: list[Value], axis: int) -> Value:
    """Parts one after the other along an axis, in the layout of the first that is computed."""
    if len(parts) == 1:
        return parts[0]
    rank = len(parts[0].shape)
    total: Dim = 0
    for part in parts:
        total = total + part.shape[axis]
    shape = tuple(total if i == axis else d for i, d in enumerate(parts[0].shape))
    whole = [p for p in parts if all(d is not None for d in p.dims) and not p.is_constant]
    order = whole[0].order if whole else list(range(rank))
    wires = []
    for part in parts:
        wire = context.ordered(part, order, keep=True)
        wires.append(context.broadcast(wire, tuple(part.shape[i] for i in order)))
    stored = tuple(shape[i] for i in order)
    made = context.emit("concat", wires, stored, parts[0].dtype, axis=order.index(axis))
    return context.view(made, order, shape)


@handles("stack")
def _stack(it: Interpreter, equation: Any, *parts: Value) -> Value:
    axis = int(equation.params["axis"])
    return concatenated(it.context, [expanded(p, [axis]) for p in parts], axis)


@handles("pad")
def _pad(it: Interpreter, equation: Any, x: Value, filler: Value) -> Value:
    config = equation.params["padding_config"]
    return padded(it.context, x, filler, [(int(low), int(high), int(inner)) for low, high, inner in config])


def padded(context: Context, x: Value, filler: Value, config: list[tuple[int, int, int]]) -> Value:
    """Adds (or cuts off) elements before, after and between those of each dimension."""
    if any(inner for _, _, inner in config):
        return _dilated(context, x, filler, config)
    if filler.scalar is None:
        raise Refused("padding with a value that is computed")
    if not any(low or high for low, high, _ in config):
        return x
    axes = [i for i, (low, high, _) in enumerate(config) if low or high]
    if any(not is_static(x.shape[i]) for i in axes):
        raise Refused("padding of the batch dimension")
    order = x.order
    if any(x.dims[i] is None for i in axes):
        dense = of_wire(context.dense(x))
        x, order = dense, dense.order
    wire = context.stored(x)
    shape = tuple(d + config[i][0] + config[i][1] if i in axes else d for i, d in enumerate(x.shape))
    made = context.emit(
        "pad",
        [wire],
        tuple(shape[i] for i in order),
        x.dtype,
        pads=[config[i][0] for i in order] + [config[i][1] for i in order],
        value=float(filler.scalar),
    )
    return context.view(made, order, shape)


def _dilated(context: Context, x: Value, filler: Value, config: list[tuple[int, int, int]]) -> Value:
    """Elements between: [.., n, ..] becomes [.., n, 1 + inner, ..] with the filler, then [.., n * (1 + inner), ..]."""
    for i, (_, _, inner) in enumerate(config):
        if not inner:
            continue
        size = int(x.shape[i])
        pair = expanded(of_wire(context.dense(x)), [i + 1])
        pads = [(0, 0, 0)] * len(pair.shape)
        pads[i + 1] = (0, inner, 0)
        pair = padded(context, of_wire(context.dense(pair)), filler, pads)
        shape = (*x.shape[:i], size * (1 + inner), *x.shape[i + 1 :])
        whole = of_wire(context.reshape(context.dense(pair), shape))
        starts, limits = [0] * len(shape), list(shape)
        limits[i] = size * (1 + inner) - inner if size else 0
        x = sliced(context, whole, starts, limits, [1] * len(shape))
    return padded(context, x, filler, [(low, high, 0) for low, high, _ in config])


@handles("tile")
def _tile(it: Interpreter, equation: Any, x: Value) -> Value:
    context, shape = it.context, tuple(equation.outvars[0].aval.shape)
    repeated = [i for i in range(len(shape)) if not same(shape[i], x.shape[i])]
    ones = [i for i in repeated if same(x.shape[i], 1)]
    if ones:
        x = expanded(squeezed(context, x, ones), ones)
        x = Value(tuple(shape[i] if i in ones else d for i, d in enumerate(x.shape)), x.dtype, x.dims, x.wire, x.array)
    rest = [i for i in repeated if i not in ones]
    if any(not is_static(shape[i]) for i in rest):
        raise Refused("of the batch")
    held = [i for i in rest if x.dims[i] is not None]
    wire, repeats = context.stored(x), [1] * sum(d is not None for d in x.dims)
    for i in held:
        repeats[x.at(i)] = int(shape[i]) // int(x.shape[i])
    stored = tuple(d * r for d, r in zip(wire.shape, repeats, strict=True))
    made = context.emit("tile", [wire], stored, x.dtype, repeats=repeats) if held else wire
    return Value(shape, x.dtype, x.dims, wire=made)


@handles("rev")
def _rev(it: Interpreter, equation: Any, x: Value) -> Value:
    axes = [int(a) for a in equation.params["dimensions"] if x.dims[int(a)] is not None]
    if not axes:
        return x
    wire = it.context.stored(x)
    made = it.context.emit("reverse", [wire], wire.shape, x.dtype, axes=[x.at(a) for a in axes])
    return Value(x.shape, x.dtype, x.dims, wire=made)


@handles("iota")
def _iota(it: Interpreter, equation: Any, *sizes: Any3) -> Value:
    shape = tuple(equation.params["shape"])
    axis, dtype = int(equation.params["dimension"]), str(np.dtype(equation.params["dtype"]).name)
    dims: list[int | None] = [None] * len(shape)
    dims[axis] = 0
    if is_static(shape[axis]):
        numbers = of_array(np.arange(int(shape[axis]), dtype=dtype))
        return Value(shape, dtype, tuple(dims), array=numbers.array)
    context = it.context
    zeros = context.cast(context.batch_false(), "int32")
    if not same(zeros.shape[0], shape[axis]):
        raise Refused(f"numbers up to {shape[axis]}, which is not the batch itself")
    ones = context.emit("add", [zeros, context.scalar(1, "int32")], zeros.shape, "int32")
    rows = context.emit("cumsum", [ones], ones.shape, "int32", axis=0, exclusive=True)
    return Value(shape, dtype, tuple(dims), wire=context.cast(rows, dtype))


@handles("dim_as_value")
def _dim_as_value(it: Interpreter, equation: Any) -> Size:
    return Size(equation.params["dim"], str(equation.outvars[0].aval.dtype))
