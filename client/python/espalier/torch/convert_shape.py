"""Operators that move elements: reshapes, permutations, slices, concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from espalier.torch.emitter import Emitter
from espalier.torch.registry import handles
from espalier.torch.shapes import concat, slice_range, sliced
from espalier.torch.values import CannotConvert, Value, axis, constant, same, size


@handles(
    "view.default",
    "reshape.default",
    "_unsafe_view.default",
    "flatten.using_ints",
    "unflatten.int",
    "view_as.default",
    "reshape_as.default",
)
def _reshape(emit: Emitter, x: Value, *_: Any, **__: Any) -> Value:
    return emit.reshape(x, emit.output.shape)


@handles("squeeze.default", "squeeze.dim", "squeeze.dims", "unsqueeze.default")
def _ones(emit: Emitter, x: Value, *_: Any, **__: Any) -> Value:
    """Dimensions of size 1 come or go, so what is held follows without being broadcast."""
    shape = emit.output.shape
    if x.is_whole:
        return emit.reshape(x, shape)
    held = list(emit.padded(x))
    kept = [dim for dim, length in enumerate(x.shape) if not same(length, 1)]
    wanted: list[Any] = [1] * len(shape)
    places = [dim for dim, length in enumerate(shape) if not same(length, 1)]
    for source, target in zip(kept, places, strict=True):
        wanted[target] = held[source]
    plain = Value(x.held, x.held_shape, x.dtype, x.held_shape)
    made = emit.reshape(plain, wanted)
    return Value(made.held, shape, x.dtype, made.held_shape)


@handles("transpose.int", "swapaxes.default", "swapdims.default")
def _transpose(emit: Emitter, x: Value, a: int, b: int) -> Value:
    order = list(range(x.rank))
    a, b = axis(a, x.rank), axis(b, x.rank)
    if order:
        order[a], order[b] = order[b], order[a]
    return emit.transpose(x, order)


@handles("permute.default", "movedim.int", "movedim.intlist")
def _permute(emit: Emitter, x: Value, order: Any, destination: Any = None) -> Value:
    if destination is not None:
        sources = [axis(s, x.rank) for s in ([order] if isinstance(order, int) else order)]
        targets = [axis(d, x.rank) for d in ([destination] if isinstance(destination, int) else destination)]
        rest = [dim for dim in range(x.rank) if dim not in sources]
        order = [sources[targets.index(place)] if place in targets else rest.pop(0) for place in range(x.rank)]
    return emit.transpose(x, order)


@handles("t.default", "numpy_T.default", "mT.default", "adjoint.default")
def _t(emit: Emitter, x: Value) -> Value:
    order = list(range(x.rank))
    if x.rank >= 2:
        order[-1], order[-2] = order[-2], order[-1]
    return emit.transpose(x, order)


@handles("expand.default", "expand_as.default", "broadcast_to.default")
def _expand(emit: Emitter, x: Value, *_: Any, **__: Any) -> Value:
    return Value(x.held, emit.output.shape, x.dtype, x.held_shape)


@handles("broadcast_tensors.default")
def _broadcast_tensors(emit: Emitter, values: Sequence[Value]) -> tuple[Value, ...]:
    return tuple(
        Value(v.held, output.shape, v.dtype, v.held_shape) for v, output in zip(values, emit.outputs, strict=True)
    )


@handles("slice.Tensor")
def _slice(emit: Emitter, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Value:
    dim = axis(dim, x.rank)
    first, last, stride = slice_range(x.shape[dim], start, end, step)
    return sliced(emit, x, dim, first, last, stride)


@handles("narrow.int")
def _narrow(emit: Emitter, x: Value, dim: int, start: Any, length: Any) -> Value:
    dim = axis(dim, x.rank)
    first, _, _ = slice_range(x.shape[dim], start)
    return sliced(emit, x, dim, first, size(first + size(length)))


@handles("select.int")
def _select(emit: Emitter, x: Value, dim: int, index: Any) -> Value:
    dim = axis(dim, x.rank)
    place = size(index)
    if isinstance(place, int) and place < 0:
        place = size(x.shape[dim] + place)
    made = sliced(emit, x, dim, place, size(place + 1))
    return _drop(emit, made, dim)


def _drop(emit: Emitter, x: Value, dim: int) -> Value:
    """`x` without dimension `dim`, of size 1."""
    held = emit.padded(x)
    plain = Value(x.held, x.held_shape, x.dtype, x.held_shape)
    made = emit.reshape(plain, [*held[:dim], *held[dim + 1 :]])
    return Value(made.held, (*x.shape[:dim], *x.shape[dim + 1 :]), x.dtype, made.held_shape)


@handles("split.Tensor", "split_with_sizes.default", "split.sizes", "chunk.default", "tensor_split.sections")
def _split(emit: Emitter, x: Value, parts: Any, dim: int = 0) -> tuple[Value, ...]:
    dim = axis(dim, x.rank)
    lengths = [output.shape[dim] for output in emit.outputs]
    if len(lengths) == 1:
        return (x,)
    return pieces(emit, x, dim, lengths)


def pieces(emit: Emitter, x: Value, dim: int, lengths: Sequence[Any]) -> tuple[Value, ...]:
    """Consecutive parts of `x` along dimension `dim`."""
    if x.is_constant:
        made, start = [], 0
        for length in lengths:
            made.append(sliced(emit, x, dim, start, start + length))
            start += length
        return tuple(made)
    shapes = [(*x.shape[:dim], length, *x.shape[dim + 1 :]) for length in lengths]
    attributes: dict[str, Any] = {"axis": dim, "sizes": [emit.number(length) for length in lengths]}
    return emit.ops("split", [emit.whole(x)], attributes, [(shape, x.dtype) for shape in shapes])


@handles("unbind.int")
def _unbind(emit: Emitter, x: Value, dim: int = 0) -> tuple[Value, ...]:
    dim = axis(dim, x.rank)
    count = emit.number(x.shape[dim])
    parts = pieces(emit, x, dim, [1] * count) if count > 1 else (x,)
    return tuple(_drop(emit, part, dim) for part in parts)


@handles("cat.default", "concat.default", "concatenate.default")
def _cat(emit: Emitter, values: Sequence[Value], dim: int = 0) -> Value:
    rank = len(emit.output.shape)
    kept = [emit.cast(value, emit.output.dtype) for value in values if value.shape != (0,)]
    return concat(emit, kept, axis(dim, rank))


@handles("stack.default")
def _stack(emit: Emitter, values: Sequence[Value], dim: int = 0) -> Value:
    dim = axis(dim, len(emit.output.shape))
    raised = []
    for value in values:
        held = emit.padded(value)
        plain = Value(value.held, value.held_shape, value.dtype, value.held_shape)
        made = emit.reshape(plain, [*held[:dim], 1, *held[dim:]])
        raised.append(Value(made.held, (*value.shape[:dim], 1, *value.shape[dim:]), value.dtype, made.held_shape))
    return concat(emit, [emit.cast(value, emit.output.dtype) for value in raised], dim)


@handles("repeat.default", "tile.default")
def _repeat(emit: Emitter, x: Value, repeats: Sequence[Any]) -> Value:
    rank = max(x.rank, len(repeats))
    times = [1] * (rank - len(repeats)) + [size(r) for r in repeats]
    shape = (1,) * (rank - x.rank) + x.shape
    if all(same(length, 1) or same(time, 1) for length, time in zip(shape, times, strict=True)):
        # Repeats of one element are a broadcast, which follows the batch.
        held = (1,) * (rank - len(x.held_shape)) + x.held_shape
        return Value(
            emit.reshape(Value(x.held, x.held_shape, x.dtype, x.held_shape), held).held,
            emit.output.shape,
            x.dtype,
            held,
        )
    value = emit.reshape(x, shape)
    return emit.op("tile", [value], {"repeats": [emit.number(time) for time in times]})


@handles("repeat_interleave.self_int")
def _repeat_interleave(emit: Emitter, x: Value, repeats: Any, dim: int | None = None, **_: Any) -> Value:
    if dim is None:
        x, dim = emit.reshape(x, [-1]), 0
    dim = axis(dim, x.rank)
    raised = emit.reshape(x, [*x.shape[: dim + 1], 1, *x.shape[dim + 1 :]])
    shape = (*x.shape[: dim + 1], emit.number(repeats), *x.shape[dim + 1 :])
    return emit.reshape(Value(raised.held, shape, x.dtype, raised.held_shape), emit.output.shape)


@handles("roll.default")
def _roll(emit: Emitter, x: Value, shifts: Any, dims: Any = ()) -> Value:
    shifts = [shifts] if not isinstance(shifts, (list, tuple)) else shifts
    dims = [dims] if isinstance(dims, int) else dims
    if not dims:
        raise CannotConvert("only with dims")
    for shift, dim in zip(shifts, dims, strict=True):
        dim = axis(dim, x.rank)
        length = emit.number(x.shape[dim])
        moved = emit.number(shift) % length
        if moved == 0:
            continue
        tail = sliced(emit, x, dim, length - moved, length)
        x = concat(emit, [tail, sliced(emit, x, dim, 0, length - moved)], dim)
    return x


@handles("flip.default")
def _flip(emit: Emitter, x: Value, dims: Sequence[int]) -> Value:
    return emit.op("reverse", [emit.whole(x)], {"axes": [axis(d, x.rank) for d in dims]})


def pads(rank: int, amounts: Sequence[Any]) -> list[int]:
    """PyTorch's padding, from the last dimension on, as attribute `pads`."""
    result = [0] * (2 * rank)
    for place in range(len(amounts) // 2):
        dim = rank - 1 - place
        result[dim], result[rank + dim] = int(amounts[2 * place]), int(amounts[2 * place + 1])
    return result


@handles("pad.default", "constant_pad_nd.default")
def _pad(emit: Emitter, x: Value, amounts: Sequence[Any], mode: Any = "constant", value: Any = None) -> Value:
    if not isinstance(mode, str):  # of constant_pad_nd
        mode, value = "constant", mode
    if all(int(a) == 0 for a in amounts):
        return x
    modes = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    attributes: dict[str, Any] = {"pads": pads(x.rank, amounts), "mode": modes[mode]}
    if mode == "constant":
        attributes["value"] = float(emit.scalar(value or 0))
    return emit.op("pad", [emit.whole(x)], attributes)


@handles("reflection_pad1d.default", "reflection_pad2d.default")
def _reflection_pad(emit: Emitter, x: Value, amounts: Sequence[Any]) -> Value:
    return _pad(emit, x, amounts, "reflect")


@handles("replication_pad1d.default", "replication_pad2d.default")
def _replication_pad(emit: Emitter, x: Value, amounts: Sequence[Any]) -> Value:
    return _pad(emit, x, amounts, "replicate")


@handles("pixel_shuffle.default")
def _pixel_shuffle(emit: Emitter, x: Value, factor: int) -> Value:
    if x.rank != 4:
        raise CannotConvert("only of x[N, C, H, W]")
    return emit.op("depth_to_space", [emit.whole(x)], {"blocksize": int(factor), "mode": "CRD"})


@handles("pixel_unshuffle.default")
def _pixel_unshuffle(emit: Emitter, x: Value, factor: int) -> Value:
    *first, channels, height, width = x.shape
    split = emit.reshape(x, [*first, channels, height // factor, factor, width // factor, factor])
    rank = split.rank
    order = [*range(rank - 5), rank - 5, rank - 3, rank - 1, rank - 4, rank - 2]
    return emit.reshape(emit.transpose(split, order), emit.output.shape)


@handles("channel_shuffle.default", "native_channel_shuffle.default")
def _channel_shuffle(emit: Emitter, x: Value, groups: int) -> Value:
    batch, channels, *rest = x.shape
    split = emit.reshape(x, [batch, groups, channels // groups, *rest])
    return emit.reshape(emit.transpose(split, [0, 2, 1, *range(3, split.rank)]), emit.output.shape)


@handles("tril.default")
def _tril(emit: Emitter, x: Value, diagonal: int = 0) -> Value:
    return emit.op("triangle", [emit.whole(x)], {"upper": False, "k": int(diagonal)})


@handles("triu.default")
def _triu(emit: Emitter, x: Value, diagonal: int = 0) -> Value:
    return emit.op("triangle", [emit.whole(x)], {"upper": True, "k": int(diagonal)})


@handles("unfold.default")
def _unfold(emit: Emitter, x: Value, dim: int, length: int, step: int) -> Value:
    """Windows along a dimension, as a lookup of their places."""
    dim = axis(dim, x.rank)
    count = emit.number(emit.output.shape[dim])
    places = constant(torch.arange(count)[:, None] * step + torch.arange(length)[None, :])
    shape = (*x.shape[:dim], count, length, *x.shape[dim + 1 :])
    made = emit.op("gather", [emit.whole(x), places], {"axis": dim}, shape=shape, dtype=x.dtype)
    order = [d for d in range(made.rank) if d != dim + 1]
    return emit.transpose(made, [*order, dim + 1])


@handles("diff.default")
def _diff(emit: Emitter, x: Value, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Value:
    dim = axis(dim, x.rank)
    parts = [part for part in (prepend, x, append) if part is not None]
    x = concat(emit, parts, dim) if len(parts) > 1 else x
    for _ in range(n):
        length = x.shape[dim]
        later, earlier = sliced(emit, x, dim, 1, length), sliced(emit, x, dim, 0, size(length - 1))
        if x.dtype == torch.bool:
            x = emit.elementwise("logical_xor", [later, earlier], dtype=torch.bool)
        else:
            x = emit.elementwise("subtract", [later, earlier], dtype=x.dtype)
    return x


@handles("meshgrid.default", "meshgrid.indexing")
def _meshgrid(emit: Emitter, values: Sequence[Value], indexing: str = "ij") -> tuple[Value, ...]:
    made = []
    for place, (value, output) in enumerate(zip(values, emit.outputs, strict=True)):
        where = place if indexing == "ij" or place > 1 else 1 - place
        shape: list[Any] = [1] * len(values)
        shape[where] = value.shape[0] if value.rank else 1
        held = emit.reshape(value, shape)
        made.append(Value(held.held, output.shape, value.dtype, held.held_shape))
    return tuple(made)
