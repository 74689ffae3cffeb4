"""Lookups: indices, gather, embedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from espalier.torch.convert_elementwise import where
from espalier.torch.emitter import Emitter
from espalier.torch.registry import handles
from espalier.torch.values import CannotConvert, Value, axis, broadcast, constant, same


@handles("embedding.default")
def _embedding(
    emit: Emitter, weight: Value, ids: Value, padding_idx: Any = -1, scale_by_freq: bool = False, sparse: bool = False
) -> Value:
    if scale_by_freq:
        raise CannotConvert("only with scale_grad_by_freq=False")
    rows = emit.op("embedding", [emit.whole(ids), emit.whole(weight)])
    padding = emit.number(padding_idx)
    if padding < 0:
        return rows
    # The row of the padding gets no gradient from here.
    is_padding = emit.elementwise("equal", [ids, padding], dtype=torch.bool, inputs_dtype=ids.dtype)
    is_padding = emit.reshape(is_padding, [*ids.shape, 1])
    attributes = {"axes": [0], "starts": [padding], "ends": [padding + 1]}
    row = emit.op("slice", [emit.whole(weight)], attributes, shape=(1, weight.shape[1]), dtype=weight.dtype)
    return where(emit, is_padding, emit.stop_gradient(row), rows)


@handles("gather.default")
def _gather(emit: Emitter, x: Value, dim: int, index: Value, sparse_grad: bool = False) -> Value:
    dim = axis(dim, x.rank)
    x, index = _narrowed(emit, x, index, dim)
    return emit.op("gather_elements", [x, emit.whole(index)], {"axis": dim})


@handles("take_along_dim.default")
def _take_along_dim(emit: Emitter, x: Value, index: Value, dim: int | None = None) -> Value:
    if dim is None:
        return _gather(emit, emit.reshape(x, [-1]), 0, emit.reshape(index, [-1]))
    dim = axis(dim, x.rank)
    shape = broadcast((*x.shape[:dim], 1, *x.shape[dim + 1 :]), (*index.shape[:dim], 1, *index.shape[dim + 1 :]))
    x = Value(x.held, (*shape[:dim], x.shape[dim], *shape[dim + 1 :]), x.dtype, x.held_shape)
    index = Value(index.held, (*shape[:dim], index.shape[dim], *shape[dim + 1 :]), index.dtype, index.held_shape)
    return _gather(emit, x, dim, index)


def _narrowed(emit: Emitter, x: Value, index: Value, dim: int) -> tuple[Value, Value]:
    """`x` cut to the size of `index` in the other dimensions, where PyTorch lets it be larger."""
    from espalier.torch.shapes import sliced

    x = emit.whole(x)
    for other in range(x.rank):
        if other != dim and not same(x.shape[other], index.shape[other]):
            x = sliced(emit, x, other, 0, index.shape[other])
    return x, index


@handles("index_select.default")
def _index_select(emit: Emitter, x: Value, dim: int, index: Value) -> Value:
    return emit.op("gather", [emit.whole(x), emit.whole(index)], {"axis": axis(dim, x.rank)})


def _index_arrays(emit: Emitter, x: Value, indices: Sequence[Value | None]) -> list[Value | None]:
    """Indices of integers; a known mask is replaced by the places where it is true."""
    made: list[Value | None] = []
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            made.append(index)
        elif index.is_constant:
            made.extend(constant(place) for place in torch.nonzero(index.elements(), as_tuple=True))
        else:
            raise CannotConvert("a mask of data chooses elements, so the shape depends on it; use torch.where(m, x, 0)")
    return made


@handles("index.Tensor")
def _index(emit: Emitter, x: Value, indices: Sequence[Value | None]) -> Value:
    arrays = _index_arrays(emit, x, indices)
    dims = [dim for dim, index in enumerate(arrays) if index is not None]
    used = [index for index in arrays if index is not None]
    shape = broadcast(*(index.shape for index in used))
    follows = dims == list(range(dims[0], dims[-1] + 1))
    batched = _batched(emit, x, dims, used, shape)
    if batched is not None:
        return batched
    if len(dims) == 1:
        made = emit.op(
            "gather",
            [emit.whole(x), emit.whole(used[0])],
            {"axis": dims[0]},
            shape=(*x.shape[: dims[0]], *shape, *x.shape[dims[0] + 1 :]),
        )
        return made
    # The indexed dimensions to the front, their places as rows of one array.
    rest = [dim for dim in range(x.rank) if dim not in dims]
    front = emit.transpose(x, [*dims, *rest])
    columns = []
    for index in used:
        whole = emit.whole(Value(index.held, shape, index.dtype, index.held_shape))
        columns.append(emit.reshape(emit.cast(whole, torch.int64), [*shape, 1]))
    from espalier.torch.shapes import concat

    places = concat(emit, columns, len(shape))
    made = emit.op("gather_nd", [emit.whole(front), emit.whole(places)], shape=(*shape, *front.shape[len(dims) :]))
    if follows and dims[0] > 0:
        count = dims[0]
        order = [*range(len(shape), len(shape) + count), *range(len(shape)), *range(len(shape) + count, made.rank)]
        made = emit.transpose(made, order)
    return made


def _batched(emit: Emitter, x: Value, dims: list[int], used: list[Value], shape: tuple[Any, ...]) -> Value | None:
    """x[arange(batch), i]: a lookup in each example, which follows the batch and can be split along it."""
    first = used[0]
    if len(dims) != 2 or dims != [0, 1] or not _is_range(first, x.shape[0]) or first.rank < 1:
        return None
    if not same(first.shape[0], x.shape[0]) or any(not same(length, 1) for length in first.shape[1:]):
        return None
    index = used[1]
    whole = emit.whole(Value(index.held, shape, index.dtype, index.held_shape))
    places = emit.reshape(emit.cast(whole, torch.int64), [*shape, 1])
    result = (*shape, *x.shape[2:])
    return emit.op("gather_nd", [emit.whole(x), places], {"batch_dims": 1}, shape=result, dtype=x.dtype)


def _is_range(index: Value, length: Any) -> bool:
    if not isinstance(index.held, torch.Tensor) or index.held.numel() < 2:
        return False
    flat = index.held.reshape(-1)
    return bool(torch.equal(flat, torch.arange(flat.numel(), dtype=flat.dtype)))


def _scatter(reduction: str) -> Any:
    def handler(emit: Emitter, x: Value, dim: int, index: Value, source: Any) -> Value:
        if not isinstance(source, Value):
            source = emit.fill(emit.scalar(source), x.dtype, index.shape)
        dim = axis(dim, x.rank)
        source, _ = _narrowed(emit, source, index, x.rank)
        updates = emit.whole(source)
        inputs = [emit.whole(x), emit.whole(index), updates]
        return emit.op("scatter_elements", inputs, {"axis": dim, "reduction": reduction})

    return handler


handles("scatter.src", "scatter.value")(_scatter("none"))
handles("scatter_add.default")(_scatter("add"))


@handles("index_put.default")
def _index_put(
    emit: Emitter, x: Value, indices: Sequence[Value | None], values: Value, accumulate: bool = False
) -> Value:
    if len(indices) == 1 and indices[0] is not None and indices[0].dtype == torch.bool and not accumulate:
        mask = indices[0]
        if values.rank == 0 or all(same(length, 1) for length in values.shape):
            mask = emit.reshape(mask, [*mask.shape, *(1,) * (x.rank - mask.rank)])
            return where(emit, mask, emit.reshape(values, []), x)
    arrays = _index_arrays(emit, x, indices)
    used = [index for index in arrays if index is not None]
    if any(index is None for index in arrays[: len(used)]):
        raise CannotConvert("only with indices of the first dimensions")
    shape = broadcast(*(index.shape for index in used))
    columns = []
    for index in used:
        whole = emit.whole(Value(index.held, shape, index.dtype, index.held_shape))
        columns.append(emit.reshape(emit.cast(whole, torch.int64), [*shape, 1]))
    from espalier.torch.shapes import concat

    places = concat(emit, columns, len(shape)) if len(columns) > 1 else columns[0]
    target = (*shape, *x.shape[len(used) :])
    updates = emit.whole(Value(values.held, target, values.dtype, values.held_shape))
    reduction = {"reduction": "add" if accumulate else "none"}
    return emit.op("scatter_nd", [emit.whole(x), emit.whole(places), emit.cast(updates, x.dtype)], reduction)


@handles("one_hot.default")
def _one_hot(emit: Emitter, x: Value, classes: int = -1) -> Value:
    if classes < 0:
        raise CannotConvert("only with num_classes")
    return emit.op("one_hot", [emit.whole(x)], {"depth": int(classes), "dtype": "i64"})
