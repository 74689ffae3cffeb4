"""Arithmetic, comparisons and logic of each element."""

from __future__ import annotations

from typing import Any

import torch

from espalier.torch.emitter import Emitter
from espalier.torch.registry import handles
from espalier.torch.values import CannotConvert, Value


def _common(emit: Emitter, *operands: Any) -> torch.dtype:
    """The type in which PyTorch compares: numbers do not widen tensors of their kind."""
    tensors = [torch.empty((1,) * o.rank, dtype=o.dtype) if isinstance(o, Value) else emit.scalar(o) for o in operands]
    dtype = tensors[0].dtype if isinstance(tensors[0], torch.Tensor) else None
    for other in tensors[1:]:
        dtype = torch.result_type(tensors[0], other)
    assert dtype is not None
    return torch.float32 if dtype == torch.float64 else dtype


def _scaled(emit: Emitter, value: Any, alpha: Any) -> Any:
    alpha = emit.scalar(alpha)
    if alpha == 1:
        return value
    if not isinstance(value, Value):
        return emit.scalar(value) * alpha
    return emit.arithmetic("multiply", value, alpha, emit.output.dtype)


@handles("add.Tensor", "add.Scalar", elementwise=True)
def _add(emit: Emitter, a: Any, b: Any, alpha: Any = 1) -> Value:
    if emit.output.dtype == torch.bool:
        return emit.elementwise("logical_or", [a, b])
    return emit.arithmetic("add", a, _scaled(emit, b, alpha))


@handles("sub.Tensor", "sub.Scalar", elementwise=True)
def _sub(emit: Emitter, a: Any, b: Any, alpha: Any = 1) -> Value:
    return emit.arithmetic("subtract", a, _scaled(emit, b, alpha))


@handles("rsub.Scalar", "rsub.Tensor", elementwise=True)
def _rsub(emit: Emitter, a: Any, b: Any, alpha: Any = 1) -> Value:
    return emit.arithmetic("subtract", b, _scaled(emit, a, alpha))


@handles("mul.Tensor", "mul.Scalar", elementwise=True)
def _mul(emit: Emitter, a: Any, b: Any) -> Value:
    if emit.output.dtype == torch.bool:
        return emit.elementwise("logical_and", [a, b])
    return emit.arithmetic("multiply", a, b)


@handles("div.Tensor", "div.Scalar", "true_divide.Tensor", elementwise=True)
def _div(emit: Emitter, a: Any, b: Any) -> Value:
    return emit.arithmetic("divide", a, b)


@handles("div.Tensor_mode", "div.Scalar_mode", elementwise=True)
def _div_mode(emit: Emitter, a: Any, b: Any, rounding_mode: str | None = None) -> Value:
    if rounding_mode is None:
        return _div(emit, a, b)
    return _rounded_quotient(emit, a, b, rounding_mode)


@handles("floor_divide.default", "floor_divide.Scalar", elementwise=True)
def _floor_divide(emit: Emitter, a: Any, b: Any) -> Value:
    return _rounded_quotient(emit, a, b, "floor")


def _rounded_quotient(emit: Emitter, a: Any, b: Any, mode: str) -> Value:
    if not emit.output.dtype.is_floating_point:
        if mode == "trunc":
            return emit.arithmetic("divide", a, b)
        # (a - a mod b) / b has no remainder, and Python's mod has the sign of b.
        rest = emit.elementwise("modulo", [a, b])
        return emit.arithmetic("divide", emit.arithmetic("subtract", a, rest), b)
    quotient = emit.arithmetic("divide", a, b)
    if mode == "floor":
        return emit.unary("floor", quotient)
    return emit.elementwise(
        "multiply", [emit.unary("floor", emit.unary("abs", quotient)), emit.unary("sign", quotient)]
    )


@handles("remainder.Tensor", "remainder.Scalar", elementwise=True)
def _remainder(emit: Emitter, a: Any, b: Any) -> Value:
    return emit.elementwise("modulo", [a, b])


@handles("fmod.Tensor", "fmod.Scalar", elementwise=True)
def _fmod(emit: Emitter, a: Any, b: Any) -> Value:
    return emit.elementwise("modulo", [a, b], {"fmod": True})


@handles("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", elementwise=True)
def _pow(emit: Emitter, a: Any, b: Any) -> Value:
    if isinstance(a, Value) and not isinstance(b, Value) and emit.output.dtype.is_floating_point:
        exponent = emit.scalar(b)
        if exponent == 2:
            return emit.elementwise("multiply", [a, a])
        if exponent == 0.5:
            return emit.unary("sqrt", a)
        if exponent == -0.5:
            return emit.unary("rsqrt", a)
        if exponent == -1:
            return emit.unary("reciprocal", a)
    return emit.arithmetic("power", a, b)


@handles("square.default", elementwise=True)
def _square(emit: Emitter, x: Value) -> Value:
    return emit.elementwise("multiply", [x, x])


@handles("addcmul.default", elementwise=True)
def _addcmul(emit: Emitter, x: Value, a: Value, b: Value, value: Any = 1) -> Value:
    return emit.arithmetic("add", x, _scaled(emit, emit.elementwise("multiply", [a, b]), value))


@handles("addcdiv.default", elementwise=True)
def _addcdiv(emit: Emitter, x: Value, a: Value, b: Value, value: Any = 1) -> Value:
    return emit.arithmetic("add", x, _scaled(emit, emit.elementwise("divide", [a, b]), value))


@handles("lerp.Scalar", "lerp.Tensor", elementwise=True)
def _lerp(emit: Emitter, a: Value, b: Value, weight: Any) -> Value:
    return emit.arithmetic("add", a, emit.arithmetic("multiply", emit.arithmetic("subtract", b, a), weight))


_UNARY = {
    "abs": "abs",
    "neg": "neg",
    "exp": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "reciprocal": "reciprocal",
    "sin": "sin",
    "cos": "cos",
    "tan": "tan",
    "sinh": "sinh",
    "cosh": "cosh",
    "asin": "asin",
    "acos": "acos",
    "atan": "atan",
    "asinh": "asinh",
    "acosh": "acosh",
    "atanh": "atanh",
    "erf": "erf",
    "floor": "floor",
    "ceil": "ceil",
    "round": "round",
    "sign": "sign",
}


def _unary(operator: str) -> Any:
    def handler(emit: Emitter, x: Value) -> Value:
        return emit.unary(operator, x)

    return handler


for _name, _operator in _UNARY.items():
    handles(f"{_name}.default", elementwise=True)(_unary(_operator))


@handles("log1p.default", elementwise=True)
def _log1p(emit: Emitter, x: Value) -> Value:
    return emit.unary("log", emit.arithmetic("add", x, 1.0))


@handles("expm1.default", elementwise=True)
def _expm1(emit: Emitter, x: Value) -> Value:
    return emit.arithmetic("subtract", emit.unary("exp", x), 1.0)


def _logarithm(base: float) -> Any:
    def handler(emit: Emitter, x: Value) -> Value:
        import math

        return emit.arithmetic("multiply", emit.unary("log", x), 1 / math.log(base))

    return handler


handles("log2.default", elementwise=True)(_logarithm(2.0))
handles("log10.default", elementwise=True)(_logarithm(10.0))


@handles("erfc.default", elementwise=True)
def _erfc(emit: Emitter, x: Value) -> Value:
    return emit.arithmetic("subtract", 1.0, emit.unary("erf", x))


@handles("trunc.default", elementwise=True)
def _trunc(emit: Emitter, x: Value) -> Value:
    return emit.elementwise("multiply", [emit.unary("floor", emit.unary("abs", x)), emit.unary("sign", x)])


@handles("maximum.default", "max.other", elementwise=True)
def _maximum(emit: Emitter, a: Value, b: Value) -> Value:
    return emit.elementwise("maximum", [a, b])


@handles("minimum.default", "min.other", elementwise=True)
def _minimum(emit: Emitter, a: Value, b: Value) -> Value:
    return emit.elementwise("minimum", [a, b])


@handles("clamp.default", "clip.default", elementwise=True)
def _clamp(emit: Emitter, x: Value, min: Any = None, max: Any = None) -> Value:
    bounds = {}
    if min is not None:
        bounds["min"] = float(emit.scalar(min))
    if max is not None:
        bounds["max"] = float(emit.scalar(max))
    return emit.elementwise("clip", [x], bounds)


@handles("clamp.Tensor", elementwise=True)
def _clamp_tensor(emit: Emitter, x: Value, min: Value | None = None, max: Value | None = None) -> Value:
    if min is not None:
        x = emit.elementwise("maximum", [x, min])
    return emit.elementwise("minimum", [x, max]) if max is not None else emit.cast(x, emit.output.dtype)


@handles("clamp_min.default", elementwise=True)
def _clamp_min(emit: Emitter, x: Value, min: Any) -> Value:
    return _clamp(emit, x, min=min)


@handles("clamp_max.default", elementwise=True)
def _clamp_max(emit: Emitter, x: Value, max: Any) -> Value:
    return _clamp(emit, x, max=max)


def _comparison(operator: str) -> Any:
    def handler(emit: Emitter, a: Any, b: Any) -> Value:
        dtype = _common(emit, a, b)
        if dtype == torch.bool and operator not in ("equal", "not_equal"):
            dtype = torch.int32
        return emit.elementwise(operator, [a, b], dtype=torch.bool, inputs_dtype=dtype)

    return handler


for _name, _operator in {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
}.items():
    handles(f"{_name}.Tensor", f"{_name}.Scalar", elementwise=True)(_comparison(_operator))


def _logic(operator: str) -> Any:
    def handler(emit: Emitter, a: Any, b: Any) -> Value:
        if emit.output.dtype != torch.bool:
            raise CannotConvert("only of booleans; there is no operator for single bits")
        return emit.elementwise(operator, [truth(emit, a), truth(emit, b)])

    return handler


def truth(emit: Emitter, x: Any) -> Any:
    """Whether each element is not zero."""
    if not isinstance(x, Value) or x.dtype == torch.bool:
        return x
    return emit.elementwise("not_equal", [x, 0], dtype=torch.bool, inputs_dtype=x.dtype)


for _names, _operator in {
    (
        "__and__.Tensor",
        "__and__.Scalar",
        "bitwise_and.Tensor",
        "bitwise_and.Scalar",
        "logical_and.default",
    ): "logical_and",
    ("__or__.Tensor", "__or__.Scalar", "bitwise_or.Tensor", "bitwise_or.Scalar", "logical_or.default"): "logical_or",
    ("__xor__.Tensor", "bitwise_xor.Tensor", "logical_xor.default"): "logical_xor",
}.items():
    handles(*_names, elementwise=True)(_logic(_operator))


@handles("bitwise_not.default", "logical_not.default", elementwise=True)
def _not(emit: Emitter, x: Value) -> Value:
    if emit.output.dtype != torch.bool:
        raise CannotConvert("only of booleans; there is no operator for single bits")
    return emit.elementwise("logical_not", [truth(emit, x)])


@handles("isnan.default", elementwise=True)
def _isnan(emit: Emitter, x: Value) -> Value:
    return emit.elementwise("is_nan", [x], dtype=torch.bool, inputs_dtype=x.dtype)


@handles("isinf.default", elementwise=True)
def _isinf(emit: Emitter, x: Value) -> Value:
    return emit.elementwise("is_inf", [x], dtype=torch.bool, inputs_dtype=x.dtype)


@handles("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar", elementwise=True)
def where(emit: Emitter, condition: Value, a: Any, b: Any) -> Value:
    """`a` where `condition`, else `b`."""
    from espalier.torch.values import broadcast

    dtype = emit.output.dtype
    values = [truth(emit, condition), emit.as_value(a, dtype), emit.as_value(b, dtype)]
    held = emit.op("where", values, shape=broadcast(*(v.held_shape for v in values)), dtype=dtype)
    return Value(held.held, broadcast(*(v.shape for v in values)), dtype, held.held_shape)


@handles("masked_fill.Scalar", "masked_fill.Tensor", elementwise=True)
def _masked_fill(emit: Emitter, x: Value, mask: Value, value: Any) -> Value:
    return where(emit, mask, value, x)


@handles("nan_to_num.default", elementwise=True)
def _nan_to_num(emit: Emitter, x: Value, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Value:
    limits = torch.finfo(x.dtype)
    is_nan = emit.elementwise("is_nan", [x], dtype=torch.bool, inputs_dtype=x.dtype)
    x = where(emit, is_nan, 0.0 if nan is None else nan, x)
    for sign, given, limit in (("positive", posinf, limits.max), ("negative", neginf, limits.min)):
        found = emit.elementwise(
            "is_inf",
            [x],
            {"detect_positive": sign == "positive", "detect_negative": sign == "negative"},
            dtype=torch.bool,
            inputs_dtype=x.dtype,
        )
        x = where(emit, found, limit if given is None else given, x)
    return x


@handles(
    "to.dtype",
    "to.device",
    "to.dtype_layout",
    "to.other",
    "type_as.default",
    "_to_copy.default",
    elementwise=True,
)
def _to(emit: Emitter, x: Value, *_: Any, **__: Any) -> Value:
    return _as_type(emit, x)


def _as_type(emit: Emitter, x: Value) -> Value:
    if emit.output.dtype == torch.bool:
        return x if x.dtype == torch.bool else truth(emit, x)
    return emit.cast(x, emit.output.dtype)


@handles(
    "clone.default",
    "contiguous.default",
    "alias.default",
    "lift_fresh_copy.default",
    "lift_fresh.default",
    "detach_copy.default",
    elementwise=True,
)
def _same(emit: Emitter, x: Value, *_: Any, **__: Any) -> Value:
    return x


@handles("detach.default", "detach_.default", elementwise=True)
def _detach(emit: Emitter, x: Value) -> Value:
    return emit.stop_gradient(x)
