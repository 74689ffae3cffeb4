"""Arithmetic, comparisons and functions of single elements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from espalier.jax.context import Context
from espalier.jax.registry import handles
from espalier.jax.values import Any3, Refused, Size, Value

if TYPE_CHECKING:
    from espalier.jax.interpret import Interpreter

FLOATS = ("float32", "bfloat16", "float16")


def out_dtype(equation: Any) -> str:
    """Element type of an equation's first output."""
    return str(equation.outvars[0].aval.dtype)


def as_value(interpreter: Interpreter, value: Any3) -> Value:
    """A size becomes a constant."""
    result: Value = interpreter.concrete(value)
    return result


def reshaped(value: Value, equation: Any) -> Value:
    """With the equation's shape: scalars were broadcast."""
    shape = tuple(equation.outvars[0].aval.shape)
    if len(value.shape) == len(shape):
        value.shape = shape
    return value


def _unary(primitive: str, op: str) -> None:
    def handler(it: Interpreter, equation: Any, x: Value) -> Value:
        return unary(it.context, op, x, out_dtype(equation))

    handles(primitive)(handler)


def unary(context: Context, op: str, x: Value, dtype: str | None = None, **attributes: Any) -> Value:
    """Applies an operator of one operand to the stored tensor."""
    wire = context.stored(x)
    made = context.emit(op, [wire], wire.shape, dtype or x.dtype, **attributes)
    return Value(x.shape, made.dtype, x.dims, wire=made)


for _primitive, _op in {
    "exp": "exp",
    "log": "log",
    "neg": "neg",
    "sqrt": "sqrt",
    "rsqrt": "rsqrt",
    "tanh": "tanh",
    "logistic": "sigmoid",
    "sin": "sin",
    "cos": "cos",
    "tan": "tan",
    "asin": "asin",
    "acos": "acos",
    "atan": "atan",
    "sinh": "sinh",
    "cosh": "cosh",
    "asinh": "asinh",
    "acosh": "acosh",
    "atanh": "atanh",
    "erf": "erf",
    "sign": "sign",
    "floor": "floor",
    "ceil": "ceil",
    "stop_gradient": "stop_gradient",
}.items():
    _unary(_primitive, _op)


@handles(
    "copy", "copy_p", "name", "optimization_barrier", "sharding_constraint", "reduce_precision", "pvary", "convert"
)
def _same(it: Interpreter, equation: Any, *values: Value) -> list[Value]:
    if equation.primitive.name == "reduce_precision":
        exact = {"float32": (8, 23), "bfloat16": (8, 7), "float16": (5, 10)}
        wanted = (equation.params["exponent_bits"], equation.params["mantissa_bits"])
        if exact.get(values[0].dtype) != wanted:
            raise Refused(f"rounding {values[0].dtype} to {wanted} bits")
    return list(values)


@handles("abs")
def _abs(it: Interpreter, equation: Any, x: Value) -> Value:
    # JAX's derivative at 0 is 1, that of the operator "abs" is 0.
    positive = it.context.elementwise("greater_equal", [x, it.context.constant(x, 0)], "bool")
    return it.context.elementwise("where", [positive, x, unary(it.context, "neg", x)], x.dtype)


@handles("square")
def _square(it: Interpreter, equation: Any, x: Value) -> Value:
    return it.context.elementwise("multiply", [x, x], x.dtype)


@handles("integer_pow")
def _integer_pow(it: Interpreter, equation: Any, x: Value) -> Value:
    n = equation.params["y"]
    if n < 0 or (n > 4 and x.dtype in FLOATS):
        if x.dtype not in FLOATS:
            raise Refused(f"integers to the power of {n}")
        if n == -1:
            return unary(it.context, "reciprocal", x)
        return unary(it.context, "power_scalar", x, value=float(n))
    result = x
    for _ in range(n - 1):
        result = it.context.elementwise("multiply", [result, x], x.dtype)
    return result


@handles("pow")
def _pow(it: Interpreter, equation: Any, x: Value, y: Value) -> Value:
    if y.dtype != x.dtype:
        y = convert(it.context, y, x.dtype)
    if y.scalar is not None and x.dtype in FLOATS:
        return reshaped(unary(it.context, "power_scalar", x, value=float(y.scalar)), equation)
    return reshaped(it.context.elementwise("power", [x, y], x.dtype), equation)


@handles("cbrt")
def _cbrt(it: Interpreter, equation: Any, x: Value) -> Value:
    root = unary(it.context, "power_scalar", unary(it.context, "abs", x), value=1 / 3)
    return it.context.elementwise("multiply", [unary(it.context, "sign", x), root], x.dtype)


@handles("exp2")
def _exp2(it: Interpreter, equation: Any, x: Value) -> Value:
    return unary(it.context, "exp", unary(it.context, "multiply_scalar", x, value=math.log(2.0)))


@handles("erfc")
def _erfc(it: Interpreter, equation: Any, x: Value) -> Value:
    return scalar_op(it.context, "sub", it.context.constant(x, 1), unary(it.context, "erf", x))


@handles("expm1")
def _expm1(it: Interpreter, equation: Any, x: Value) -> Value:
    # 2 sinh(x / 2) exp(x / 2): exp(x) - 1 without its cancellation at 0.
    context = it.context
    half = unary(context, "multiply_scalar", x, value=0.5)
    product = context.elementwise("multiply", [unary(context, "sinh", half), unary(context, "exp", half)], x.dtype)
    return unary(context, "multiply_scalar", product, value=2.0)


@handles("log1p")
def _log1p(it: Interpreter, equation: Any, x: Value) -> Value:
    context = it.context
    stored = context.stored(x)
    if stored.node is not None and stored.node.op == "exp":
        exponent = stored.node.inputs[0]
        assert exponent is not None
        made = context.emit("softplus", [exponent], exponent.shape, x.dtype)
        return Value(x.shape, x.dtype, x.dims, wire=made)
    # 2 atanh(x / (2 + x)) near 0, where log(1 + x) would cancel; where is fed by safe operands only.
    small = context.elementwise("less", [unary(context, "abs", x), context.constant(x, 0.5)], "bool")
    zero, one = context.constant(x, 0), context.constant(x, 1)
    near = context.elementwise("where", [small, x, zero], x.dtype)
    far = context.elementwise("where", [small, one, unary(context, "add_scalar", x, value=1.0)], x.dtype)
    ratio = context.elementwise("divide", [near, unary(context, "add_scalar", near, value=2.0)], x.dtype)
    series = unary(context, "multiply_scalar", unary(context, "atanh", ratio), value=2.0)
    return context.elementwise("where", [small, series, unary(context, "log", far)], x.dtype)


@handles("round")
def _round(it: Interpreter, equation: Any, x: Value) -> Value:
    context = it.context
    if int(equation.params["rounding_method"]) == 1:  # to the even one of two
        return unary(context, "round", x)
    up = unary(context, "floor", unary(context, "add_scalar", unary(context, "abs", x), value=0.5))
    return context.elementwise("multiply", [unary(context, "sign", x), up], x.dtype)


@handles("is_finite")
def _is_finite(it: Interpreter, equation: Any, x: Value) -> Value:
    context = it.context
    infinity = context.constant(x, math.inf)
    return context.elementwise("less", [unary(context, "abs", x), infinity], "bool")


_SCALAR_OPS = {"add": "add_scalar", "sub": "subtract_scalar", "mul": "multiply_scalar", "div": "divide_scalar"}
_BINARY_OPS = {"add": "add", "sub": "subtract", "mul": "multiply", "div": "divide", "max": "maximum", "min": "minimum"}


_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "div": 1}


def _covers(x: Value, y: Value) -> bool:
    """Whether broadcasting y to x gives the shape in which x is held."""
    if not y.shape:
        return True
    return len(x.shape) == len(y.shape) and all(d is None or x.dims[i] is not None for i, d in enumerate(y.dims))


def scalar_op(context: Context, name: str, x: Value, y: Value) -> Value:
    """add, sub, mul, div, max or min of values, by the cheapest operator."""
    if name in _NEUTRAL:
        if x.scalar is not None and not y.is_constant and name in ("add", "mul"):
            x, y = y, x
        number = y.scalar
        if number is not None and not x.is_constant and _covers(x, y):
            context.uses_batch_size = context.uses_batch_size or y.sized
            if number == _NEUTRAL[name]:
                return Value(x.shape, x.dtype, x.dims, wire=x.wire)
            if x.dtype in FLOATS:
                return unary(context, _SCALAR_OPS[name], x, value=float(number))
    elif x.dtype in FLOATS:
        for a, b in ((x, y), (y, x)):
            if a.scalar is not None and _covers(b, a) and _is_bound(name, float(a.scalar), b):
                return Value(b.shape, b.dtype, b.dims, wire=b.wire, array=b.array)
    return context.elementwise(_BINARY_OPS[name], [x, y], x.dtype)


def _is_bound(name: str, number: float, x: Value) -> bool:
    """Whether max(number, x), or min, is x."""
    if number == (-math.inf if name == "max" else math.inf):
        return True
    node = x.wire.node if x.wire is not None else None
    if name != "max" or node is None or node.op != "random_like" or node.attributes["distribution"] != "uniform":
        return False
    return node.number("a") >= number


@handles("add", "add_any", "sub", "mul", "div", "max", "min")
def _binary(it: Interpreter, equation: Any, x: Any3, y: Any3) -> Any3:
    name = {"add_any": "add"}.get(equation.primitive.name, equation.primitive.name)
    if isinstance(x, Size) or isinstance(y, Size):
        kept = _of_sizes(it, name, x, y)
        if kept is not None:
            return kept
    x, y = as_value(it, x), as_value(it, y)
    if x.dtype == "bool":
        op = {"add": "logical_or", "max": "logical_or", "mul": "logical_and", "min": "logical_and"}.get(name)
        if op is None:
            raise Refused("of booleans")
        return reshaped(it.context.elementwise(op, [x, y], "bool"), equation)
    return reshaped(scalar_op(it.context, name, x, y), equation)


def _of_sizes(it: Interpreter, name: str, x: Any3, y: Any3) -> Any3 | None:
    """Arithmetic that keeps a size symbolic; a sum over an axis divided by its size is a mean at any batch size."""
    if name == "div" and isinstance(x, Value) and isinstance(y, Size):
        return _mean(it.context, x, y)
    if name in ("add", "sub", "mul"):
        a, b = _number(x), _number(y)
        if a is not None and b is not None and isinstance(x, Size):
            return Size({"add": a + b, "sub": a - b, "mul": a * b}[name], x.dtype)
        if a is not None and b is not None and isinstance(y, Size):
            return Size({"add": a + b, "sub": a - b, "mul": a * b}[name], y.dtype)
    return None


def _number(value: Any3) -> Any:
    if isinstance(value, Size):
        return value.size
    number = value.scalar if isinstance(value, Value) and not value.shape else None
    return int(number) if number is not None and float(number).is_integer() else None


def _mean(context: Context, x: Value, count: Size) -> Value | None:
    """sum(x over axes) / count as reduce_mean, if count is the number of elements of each sum."""
    from espalier.jax.ir import product, same

    wire = x.wire
    if wire is None or wire.node is None or wire.node.op != "reduce_sum":
        return None
    operand = wire.node.inputs[0]
    assert operand is not None
    axes = wire.node.ints("axes")
    reduced = product(operand.shape[a] for a in axes) if axes else product(operand.shape)
    if not same(reduced, count.size):
        return None
    made = context.emit("reduce_mean", [operand], wire.shape, wire.dtype, axes=axes)
    return Value(x.shape, x.dtype, x.dims, wire=made)


@handles("rem")
def _rem(it: Interpreter, equation: Any, x: Value, y: Value) -> Value:
    return reshaped(it.context.elementwise("modulo", [x, y], x.dtype, fmod=True), equation)


@handles("eq", "ne", "lt", "le", "gt", "ge", "eq_to", "le_to", "lt_to")
def _compare(it: Interpreter, equation: Any, x: Value, y: Value) -> Value:
    name = equation.primitive.name
    if name == "ne" and x.wire is not None and x.wire is y.wire and x.dims == y.dims and x.dtype in FLOATS:
        return unary(it.context, "is_nan", x, "bool")
    op = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}
    if name not in op:
        raise Refused("total order")
    if x.dtype == "bool" and name not in ("eq", "ne"):
        x, y = convert(it.context, x, "int32"), convert(it.context, y, "int32")
    return reshaped(it.context.elementwise(op[name], [x, y], "bool"), equation)


@handles("and", "or", "xor")
def _logical(it: Interpreter, equation: Any, x: Value, y: Value) -> Value:
    if x.dtype != "bool":
        raise Refused("single bits of integers")
    op = {"and": "logical_and", "or": "logical_or", "xor": "logical_xor"}[equation.primitive.name]
    return reshaped(it.context.elementwise(op, [x, y], "bool"), equation)


@handles("not")
def _not(it: Interpreter, equation: Any, x: Value) -> Value:
    if x.dtype != "bool":
        raise Refused("single bits of integers")
    return unary(it.context, "logical_not", x)


@handles("select_n")
def _select(it: Interpreter, equation: Any, which: Value, *cases: Value) -> Value:
    if which.scalar is not None:
        chosen = cases[int(which.scalar)]
        return Value(tuple(equation.outvars[0].aval.shape), chosen.dtype, chosen.dims, chosen.wire, chosen.array)
    dtype = cases[0].dtype
    if which.dtype == "bool":
        return reshaped(it.context.elementwise("where", [which, cases[1], cases[0]], dtype), equation)
    result = cases[-1]
    for number in range(len(cases) - 2, -1, -1):
        here = it.context.elementwise("equal", [which, it.context.constant(which, number)], "bool")
        result = it.context.elementwise("where", [here, cases[number], result], dtype)
    return reshaped(result, equation)


@handles("clamp")
def _clamp(it: Interpreter, equation: Any, low: Value, x: Value, high: Value) -> Value:
    return reshaped(clamped(it.context, low, x, high), equation)


def clamped(context: Context, low: Value, x: Value, high: Value) -> Value:
    """x within bounds. JAX's derivative is 0 at the bounds, that of the operator "clip" is not."""
    below = context.elementwise("less_equal", [x, low], "bool")
    above = context.elementwise("greater_equal", [x, high], "bool")
    upper = context.elementwise("where", [above, high, x], x.dtype)
    return context.elementwise("where", [below, low, upper], x.dtype)


@handles("convert_element_type")
def _convert(it: Interpreter, equation: Any, x: Any3) -> Any3:
    dtype = str(np.dtype(equation.params["new_dtype"]).name)
    if isinstance(x, Size):
        return Size(x.size, dtype)
    assert isinstance(x, Value)
    return convert(it.context, x, dtype)


def convert(context: Context, x: Value, dtype: str) -> Value:
    """In another element type."""
    if dtype == x.dtype:
        return x
    if x.array is not None:
        if dtype == "bfloat16":
            import ml_dtypes

            return Value(x.shape, dtype, x.dims, array=x.array.astype(ml_dtypes.bfloat16))
        return Value(x.shape, dtype, x.dims, array=x.array.astype(dtype))
    wire = context.stored(x)
    return Value(x.shape, dtype, x.dims, wire=context.cast(wire, dtype))
