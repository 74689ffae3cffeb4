"""Slices and concatenation, which several handlers and in-place writes need."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch

from espalier.torch.emitter import Emitter
from espalier.torch.values import Size, Value, broadcast, constant, is_known, same, size

_END = sys.maxsize


def slice_range(length: Size, start: Any = None, end: Any = None, step: Any = 1) -> tuple[Size, Size, int]:
    """Python's meaning of x[start:end:step] along a dimension of size `length`, from the front."""

    def place(value: Any, default: Size) -> Size:
        if value is None:
            return default
        value = size(value)
        if isinstance(value, int):
            if value >= _END - 1 or value == 0:
                return length if value else 0
            if isinstance(length, int):
                return max(0, min(length, value + length if value < 0 else value))
            return length + value if value < 0 else value
        return value

    return place(start, 0), place(end, length), int(step)


def sliced(emit: Emitter, value: Value, dim: int, start: Size, end: Size, step: int = 1) -> Value:
    """x[start:end:step] along dimension `dim`; places are from the front."""
    length = value.shape[dim]
    if same(start, 0) and same(end, length) and step == 1:
        return value
    count = size(end - start)
    if step != 1:
        count = -(-emit.number(count) // step)
    shape = (*value.shape[:dim], count, *value.shape[dim + 1 :])
    held = emit.padded(value)
    if not same(held[dim], length):  # broadcast along this dimension
        return Value(value.held, shape, value.dtype, value.held_shape)
    held_shape = (*held[:dim], count, *held[dim + 1 :])
    if isinstance(value.held, torch.Tensor):
        places = [slice(None)] * len(held)
        places[dim] = slice(emit.number(start), emit.number(end), step)
        return constant(value.held.reshape(emit.numbers(held))[tuple(places)], shape)
    value = value if len(value.held_shape) == value.rank else emit.whole(value)
    # The end follows the batch where it is the end of the dimension, or counts from there.
    last = 2**62 if same(end, length) else emit.number(end) if isinstance(end, int) else emit.number(end - length)
    if not isinstance(end, int) and not same(end, length) and last >= 0:
        last = emit.number(end)
    attributes = {"axes": [dim], "starts": [emit.number(start)], "ends": [last], "steps": [step]}
    made = emit.op("slice", [value], attributes, shape=held_shape, dtype=value.dtype)
    return Value(made.held, shape, value.dtype, held_shape)


def concat(emit: Emitter, values: Sequence[Value], dim: int) -> Value:
    """Values one after the other along dimension `dim`."""
    dtype = values[0].dtype
    total = size(sum((value.shape[dim] for value in values[1:]), values[0].shape[dim]))
    shape = (*values[0].shape[:dim], total, *values[0].shape[dim + 1 :])
    if len(values) == 1:
        return values[0]
    helds = [emit.padded(value) for value in values]
    if all(value.is_constant for value in values) and all(
        is_known(h) and same(h[dim], v.shape[dim]) for h, v in zip(helds, values, strict=True)
    ):
        common = [int(d) for d in broadcast(*((*h[:dim], 1, *h[dim + 1 :]) for h in helds))]
        parts = [
            v.held.reshape(h).expand(*common[:dim], h[dim], *common[dim + 1 :])  # type: ignore[union-attr]
            for v, h in zip(values, helds, strict=True)
        ]
        return constant(torch.cat(parts, dim), shape)
    return emit.op("concat", [emit.whole(value) for value in values], {"axis": dim}, shape=shape, dtype=dtype)
