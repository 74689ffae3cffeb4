"""Tensors made of sizes and numbers alone."""

from __future__ import annotations

from typing import Any

import torch

from espalier.torch.emitter import Emitter
from espalier.torch.registry import handles
from espalier.torch.values import Value, constant


def _filled(value: Any) -> Any:
    def handler(emit: Emitter, *_: Any, **__: Any) -> Value:
        return emit.fill(value, emit.output.dtype, emit.output.shape)

    return handler


handles("zeros.default", "zeros_like.default", "new_zeros.default")(_filled(0))
handles("ones.default", "ones_like.default", "new_ones.default")(_filled(1))
# Elements that are not set; what reads them before they are written reads anything.
handles("empty.memory_format", "empty_like.default", "new_empty.default", "empty_permuted.default")(_filled(0))


@handles("full.default", "full_like.default", "new_full.default")
def _full(emit: Emitter, _: Any, value: Any, *more: Any, **__: Any) -> Value:
    number = more[0] if more and not isinstance(more[0], torch.dtype) else value
    return emit.fill(emit.scalar(number), emit.output.dtype, emit.output.shape)


@handles("scalar_tensor.default")
def _scalar_tensor(emit: Emitter, value: Any, **_: Any) -> Value:
    return emit.fill(emit.scalar(value), emit.output.dtype)


@handles("arange.default", "arange.start", "arange.start_step")
def _arange(emit: Emitter, start: Any, end: Any = None, step: Any = 1, **_: Any) -> Value:
    """A range up to a size that depends on the batch."""
    if end is None:
        start, end = 0, start
    first, last, stride = emit.scalar(start), emit.scalar(end), emit.scalar(step)
    elements = torch.arange(first, last, stride, dtype=emit.output.dtype)
    return constant(elements, emit.output.shape)


@handles("fill.Tensor", "fill.Scalar")
def _fill(emit: Emitter, x: Value, value: Any) -> Value:
    if isinstance(value, Value):
        cast = emit.cast(value, x.dtype)
        return Value(cast.held, x.shape, x.dtype, cast.held_shape)
    return emit.fill(emit.scalar(value), x.dtype, x.shape)


@handles("copy.default")
def _copy(emit: Emitter, x: Value, source: Value, non_blocking: bool = False) -> Value:
    cast = emit.cast(source, x.dtype)
    return Value(cast.held, x.shape, x.dtype, cast.held_shape)
