"""Scaled dot-product attention."""

from __future__ import annotations

import math
from typing import Any

import torch

from espalier.torch.convert_elementwise import where
from espalier.torch.convert_layers import dropout, matmul
from espalier.torch.emitter import Emitter
from espalier.torch.registry import handles
from espalier.torch.values import CannotConvert, Value, constant, same


@handles("scaled_dot_product_attention.default")
def _attention(
    emit: Emitter,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None = None,
    dropout_p: Any = 0.0,
    is_causal: bool = False,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Value:
    rate = float(emit.scalar(dropout_p))
    width = emit.number(q.shape[-1])
    factor = float(emit.scalar(scale)) if scale is not None else 1.0 / math.sqrt(width)
    fits = q.rank == 4 and same(v.shape[-1], width) and rate == 0.0 and factor > 0 and not emit.depends(mask)
    grouped = not same(q.shape[1], k.shape[1]) if q.rank == 4 else False
    if grouped and not enable_gqa:
        raise CannotConvert("other numbers of heads in query and key without enable_gqa")
    # The operator's rows start at the top left, as PyTorch's.
    if fits and (mask is None or mask.rank in (2, 4)):
        return _fused(emit, q, k, v, mask, is_causal, factor)
    if grouped:
        k, v = (_repeated(emit, value, q.shape[1]) for value in (k, v))
    return _composed(emit, q, k, v, mask, rate, is_causal, factor)


def _fused(emit: Emitter, q: Value, k: Value, v: Value, mask: Value | None, is_causal: bool, factor: float) -> Value:
    def rows(value: Value) -> Value:
        batch, heads, length, width = value.shape
        turned = emit.transpose(emit.whole(value), [0, 2, 1, 3])
        return emit.reshape(turned, [batch, length, heads * width])

    batch, heads, length, width = q.shape
    queries = rows(q)
    attributes = {"head_dim": emit.number(width), "causal": bool(is_causal), "scale": factor}
    inputs = [queries, rows(k), rows(v)]
    if mask is not None:
        inputs.append(_mask(emit, mask, q, k))
    made = emit.op("attention", inputs, attributes, shape=queries.shape)
    return emit.transpose(emit.reshape(made, [batch, length, heads, width]), [0, 2, 1, 3])


def _mask(emit: Emitter, mask: Value, q: Value, k: Value) -> Value:
    """A mask as the operator takes it: [S, T], [B, S, T] or [B, H, S, T]."""
    batch, heads, rows, columns = q.shape[0], q.shape[1], q.shape[2], k.shape[2]
    held = emit.padded(mask)
    held = (1,) * (4 - len(held)) + held
    plain = Value(mask.held, mask.held_shape, mask.dtype, mask.held_shape)
    if same(held[0], 1) and same(held[1], 1):
        target: tuple[Any, ...] = (rows, columns)
        shape = held[2:]
    elif same(held[1], 1):
        target, shape = (batch, rows, columns), (held[0], *held[2:])
    else:
        target, shape = (batch, heads, rows, columns), held
    made = emit.reshape(plain, shape)
    return emit.whole(Value(made.held, target, mask.dtype, made.held_shape))


def _repeated(emit: Emitter, value: Value, heads: Any) -> Value:
    batch, groups, length, width = value.shape
    raised = emit.reshape(value, [batch, groups, 1, length, width])
    shape = (batch, groups, heads // groups, length, width)
    return emit.reshape(Value(raised.held, shape, value.dtype, raised.held_shape), [batch, heads, length, width])


def _composed(
    emit: Emitter, q: Value, k: Value, v: Value, mask: Value | None, rate: float, is_causal: bool, factor: float
) -> Value:
    scores = emit.arithmetic("multiply", matmul(emit, q, k, transpose_b=True), factor, q.dtype)
    if is_causal:
        rows, columns = emit.number(q.shape[-2]), emit.number(k.shape[-2])
        mask = constant(torch.ones(rows, columns, dtype=torch.bool).tril())
    if mask is not None and mask.dtype == torch.bool:
        scores = _where(emit, mask, scores)
    elif mask is not None:
        scores = emit.elementwise("add", [scores, mask], dtype=q.dtype)
    weights = emit.op("softmax", [emit.whole(scores)], {"axis": -1}, shape=scores.shape, dtype=q.dtype)
    return matmul(emit, dropout(emit, weights, rate), v)


def _where(emit: Emitter, mask: Value, scores: Value) -> Value:
    kept = emit.outputs
    emit.outputs = [type(kept[0])(scores.shape, scores.dtype)]
    made = where(emit, mask, scores, float("-inf"))
    emit.outputs = kept
    return made
