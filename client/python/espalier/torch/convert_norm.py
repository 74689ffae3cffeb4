"""Normalization layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from espalier.torch.convert_reduce import reduce, variance
from espalier.torch.emitter import Emitter
from espalier.torch.registry import handles
from espalier.torch.values import CannotConvert, Value, product


def _per_channel(emit: Emitter, value: Value, rank: int) -> Value:
    """[C] as [C, 1, ...], to broadcast with x[N, C, ...]."""
    return emit.reshape(value, [value.shape[0], *(1,) * max(0, rank - 2)])


@handles("batch_norm.default")
def _batch_norm(
    emit: Emitter,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    var: Value | None,
    training: bool,
    momentum: Any,
    eps: Any,
    cudnn_enabled: bool = True,
) -> Value:
    x = emit.whole(x)
    channels = x.shape[1]
    if training and mean is not None and var is not None:
        # The running statistics are parameters that the operator moves itself.
        scale = weight if weight is not None else emit.fill(1.0, x.dtype, (channels,))
        offset = bias if bias is not None else emit.fill(0.0, x.dtype, (channels,))
        stats = emit.op("batch_norm_stats", [x], shape=(2, channels), dtype=x.dtype)
        attributes = {"epsilon": float(eps), "momentum": float(emit.scalar(momentum))}
        return emit.op("batch_norm", [x, emit.whole(scale), emit.whole(offset), mean, var, stats], attributes)
    if training or mean is None or var is None:
        axes = [dim for dim in range(x.rank) if dim != 1]
        var, mean = variance(emit, x, axes, False, 0.0)
    factor = emit.elementwise("rsqrt", [emit.arithmetic("add", var, float(eps), x.dtype)], dtype=x.dtype)
    if weight is not None:
        factor = emit.elementwise("multiply", [factor, weight], dtype=x.dtype)
    y = emit.elementwise("subtract", [x, _per_channel(emit, mean, x.rank)])
    y = emit.elementwise("multiply", [y, _per_channel(emit, factor, x.rank)])
    return y if bias is None else emit.elementwise("add", [y, _per_channel(emit, bias, x.rank)])


@handles("layer_norm.default")
def _layer_norm(
    emit: Emitter,
    x: Value,
    normalized: Sequence[Any],
    weight: Value | None = None,
    bias: Value | None = None,
    eps: Any = 1e-5,
    cudnn_enable: bool = True,
) -> Value:
    x, count = emit.whole(x), len(normalized)
    shape = x.shape
    if count > 1:
        elements = product(shape[-count:])
        x = emit.reshape(x, [*shape[:-count], elements])
        weight, bias = (v if v is None else emit.reshape(v, [elements]) for v in (weight, bias))
    inputs = [x, *(v if v is None else emit.whole(v) for v in (weight, bias))]
    return emit.reshape(emit.op("layer_norm", inputs, {"epsilon": float(eps)}, shape=x.shape), shape)


@handles("rms_norm.default")
def _rms_norm(
    emit: Emitter, x: Value, normalized: Sequence[Any], weight: Value | None = None, eps: Any = None
) -> Value:
    x, count = emit.whole(x), len(normalized)
    shape, elements = x.shape, product(x.shape[-count:])
    x = emit.reshape(x, [*shape[:-count], elements])
    scale = emit.fill(1.0, x.dtype, (elements,)) if weight is None else emit.reshape(weight, [elements])
    epsilon = float(eps) if eps is not None else torch.finfo(x.dtype).eps
    made = emit.op("rms_norm", [x, emit.whole(scale)], {"epsilon": epsilon}, shape=x.shape)
    return emit.reshape(made, shape)


@handles("group_norm.default")
def _group_norm(
    emit: Emitter,
    x: Value,
    groups: Any,
    weight: Value | None = None,
    bias: Value | None = None,
    eps: Any = 1e-5,
    cudnn_enabled: bool = True,
) -> Value:
    inputs = [emit.whole(x), *(v if v is None else emit.whole(v) for v in (weight, bias))]
    return emit.op("group_norm", inputs, {"groups": int(groups), "epsilon": float(eps)})


@handles("instance_norm.default")
def _instance_norm(
    emit: Emitter,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    mean: Value | None,
    var: Value | None,
    use_input_stats: bool,
    momentum: Any,
    eps: Any,
    cudnn_enabled: bool = True,
) -> Value:
    if not use_input_stats or mean is not None:
        raise CannotConvert("only with track_running_stats=False")
    return _group_norm(emit, x, emit.number(x.shape[1]), weight, bias, eps)


@handles("local_response_norm.default")
def _local_response_norm(
    emit: Emitter, x: Value, size: int, alpha: Any = 1e-4, beta: Any = 0.75, k: Any = 1.0
) -> Value:
    attributes = {"size": int(size), "alpha": float(alpha), "beta": float(beta), "bias": float(k)}
    return emit.op("lrn", [emit.whole(x)], attributes)


@handles("_weight_norm.default")
def _weight_norm(emit: Emitter, v: Value, g: Value, dim: int = 0) -> Value:
    axes = [d for d in range(v.rank) if d != dim % v.rank] if dim != -1 else None
    length = reduce(emit, "reduce_l2", v, axes, keepdim=axes is not None)
    return emit.elementwise("multiply", [v, emit.elementwise("divide", [g, length])])
