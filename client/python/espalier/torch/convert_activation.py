"""Activation functions."""

from __future__ import annotations

from typing import Any

import torch

from espalier.torch.convert_elementwise import where
from espalier.torch.emitter import Emitter
from espalier.torch.registry import handles
from espalier.torch.values import CannotConvert, Value

for _name, _operator in {
    "relu": "relu",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "silu": "silu",
    "mish": "mish",
    "hardswish": "hard_swish",
    "selu": "selu",
    "softsign": "softsign",
}.items():

    def _activation(emit: Emitter, x: Value, operator: str = _operator) -> Value:
        return emit.unary(operator, x)

    handles(f"{_name}.default", elementwise=True)(_activation)


@handles("gelu.default", elementwise=True)
def _gelu(emit: Emitter, x: Value, approximate: str = "none") -> Value:
    return emit.unary("gelu", x, {"approximate": approximate})


@handles("hardtanh.default", elementwise=True)
def _hardtanh(emit: Emitter, x: Value, min_val: Any = -1.0, max_val: Any = 1.0) -> Value:
    return _open_clip(emit, x, float(min_val), float(max_val))


@handles("relu6.default", elementwise=True)
def _relu6(emit: Emitter, x: Value) -> Value:
    return _open_clip(emit, x, 0.0, 6.0)


def _open_clip(emit: Emitter, x: Value, low: float, high: float) -> Value:
    # PyTorch's gradient is zero at the bounds, that of clip is one; exact zeros are common (padding, dead channels).
    if low == 0.0:
        return emit.unary("clip", emit.unary("relu", x), {"max": high})
    inside = emit.elementwise(
        "logical_and",
        [
            emit.elementwise("greater", [x, low], dtype=torch.bool, inputs_dtype=x.dtype),
            emit.elementwise("less", [x, high], dtype=torch.bool, inputs_dtype=x.dtype),
        ],
        dtype=torch.bool,
    )
    bounds = where(emit, emit.elementwise("greater", [x, low], dtype=torch.bool, inputs_dtype=x.dtype), high, low)
    return where(emit, inside, x, bounds)


@handles("hardsigmoid.default", elementwise=True)
def _hardsigmoid(emit: Emitter, x: Value) -> Value:
    return emit.unary("hard_sigmoid", x, {"alpha": 1.0 / 6.0, "beta": 0.5})


@handles("leaky_relu.default", elementwise=True)
def _leaky_relu(emit: Emitter, x: Value, negative_slope: Any = 0.01) -> Value:
    return emit.unary("leaky_relu", x, {"alpha": float(negative_slope)})


@handles("elu.default", elementwise=True)
def _elu(emit: Emitter, x: Value, alpha: Any = 1.0, scale: Any = 1.0, input_scale: Any = 1.0) -> Value:
    if scale != 1 or input_scale != 1:
        raise CannotConvert("only with scale 1 and input_scale 1")
    return emit.unary("elu", x, {"alpha": float(alpha)})


@handles("celu.default", elementwise=True)
def _celu(emit: Emitter, x: Value, alpha: Any = 1.0) -> Value:
    return emit.unary("celu", x, {"alpha": float(alpha)})


@handles("prelu.default")
def _prelu(emit: Emitter, x: Value, weight: Value) -> Value:
    if x.rank > 2 and weight.rank == 1:
        weight = emit.reshape(weight, [weight.shape[0], *(1,) * (x.rank - 2)])
    return emit.elementwise("prelu", [x, weight])


@handles("softplus.default", elementwise=True)
def _softplus(emit: Emitter, x: Value, beta: Any = 1, threshold: Any = 20) -> Value:
    beta = float(emit.scalar(beta))
    scaled = emit.arithmetic("multiply", x, beta)
    y = emit.arithmetic("divide", emit.unary("softplus", scaled), beta)
    # Above the threshold PyTorch takes x itself.
    linear = emit.elementwise("greater", [scaled, float(threshold)], dtype=torch.bool, inputs_dtype=x.dtype)
    return where(emit, linear, x, y)


@handles("log_sigmoid.default", elementwise=True)
def _log_sigmoid(emit: Emitter, x: Value) -> Value:
    return emit.unary("neg", emit.unary("softplus", emit.unary("neg", x)))


@handles("threshold.default", elementwise=True)
def _threshold(emit: Emitter, x: Value, threshold: Any, value: Any) -> Value:
    above = emit.elementwise("greater", [x, threshold], dtype=torch.bool, inputs_dtype=x.dtype)
    return where(emit, above, x, value)


@handles("hardshrink.default", elementwise=True)
def _hardshrink(emit: Emitter, x: Value, lambd: Any = 0.5) -> Value:
    return emit.unary("shrink", x, {"bias": 0.0, "lambd": float(lambd)})


@handles("softshrink.default", elementwise=True)
def _softshrink(emit: Emitter, x: Value, lambd: Any = 0.5) -> Value:
    return emit.unary("shrink", x, {"bias": float(lambd), "lambd": float(lambd)})


@handles("glu.default")
def _glu(emit: Emitter, x: Value, dim: int = -1) -> Value:
    from espalier.torch.shapes import sliced
    from espalier.torch.values import axis

    dim = axis(dim, x.rank)
    length = x.shape[dim]
    half = length // 2
    gate = emit.unary("sigmoid", sliced(emit, x, dim, half, length))
    return emit.elementwise("multiply", [sliced(emit, x, dim, 0, half), gate])


def _softmax(operator: str) -> Any:
    def handler(emit: Emitter, x: Value, dim: int, *_: Any) -> Value:
        value = emit.whole(emit.cast(x, emit.output.dtype))
        return emit.op(operator, [value], {"axis": int(dim)})

    return handler


handles("softmax.int", "_softmax.default")(_softmax("softmax"))
handles("log_softmax.int", "_log_softmax.default")(_softmax("log_softmax"))


@handles("special_expit.default", elementwise=True)
def _expit(emit: Emitter, x: Value) -> Value:
    return emit.unary("sigmoid", x)
