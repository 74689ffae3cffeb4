"""Computes equations of constants while a program is converted, as JAX would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from espalier.jax.context import Context
from espalier.jax.ir import is_static
from espalier.jax.values import Value, of_array

# Evaluated by JAX: NumPy rounds them otherwise, or does not have them.
_COMPILED = """
    div pow integer_pow exp log log1p expm1 exp2 sqrt rsqrt cbrt tanh logistic sin cos tan asin acos atan sinh cosh
    asinh acosh atanh erf erfc erf_inv sign floor ceil round is_finite rem and or xor not clamp convert_element_type
"""
# Of these the dimensions of the operands are those of the result: folded though some depend on the batch.
_ELEMENTWISE: dict[str, Callable[..., Any] | None] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "neg": np.negative,
    "abs": np.abs,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "select_n": lambda which, *cases: np.choose(which.astype(np.int32), cases),
    "square": np.square,
    "stop_gradient": lambda x: x,
    "sharding_constraint": lambda x, **_: x,
    "optimization_barrier": lambda x: x,
    **dict.fromkeys(_COMPILED.split()),
}


def fold(context: Context, equation: Any, values: Sequence[Value]) -> list[Value] | None:
    """The outputs of an equation whose operands are all constants. None: sizes depend on the batch."""
    name = equation.primitive.name
    if name in ("broadcast_in_dim", "transpose"):
        return None  # they are views
    if name in _ELEMENTWISE and len(equation.outvars) == 1:
        return [_elementwise(equation, values)]
    dims = [d for v in (*equation.outvars, *equation.invars) for d in v.aval.shape]
    if not all(is_static(d) for d in dims):
        return None
    arrays = [context.full(v) for v in values]
    results = equation.primitive.bind(*arrays, **equation.params)
    if not equation.primitive.multiple_results:
        results = [results]
    folded = []
    for result, variable in zip(results, equation.outvars, strict=True):
        folded.append(of_array(np.asarray(result), str(variable.aval.dtype)))
    return folded


def _elementwise(equation: Any, values: Sequence[Value]) -> Value:
    aval = equation.outvars[0].aval
    rank = len(aval.shape)
    held = sorted({i for v in values if len(v.shape) == rank for i, d in enumerate(v.dims) if d is not None})
    arrays = []
    for v in values:
        assert v.array is not None
        if len(v.shape) != rank or not v.shape:
            arrays.append(v.array.reshape(()))
            continue
        order = [i for i in held if v.dims[i] is not None]
        array = np.transpose(v.array, [v.at(i) for i in order])
        arrays.append(array.reshape([v.shape[i] if v.dims[i] is not None else 1 for i in held]))
    arrays = list(np.broadcast_arrays(*arrays)) if len(arrays) > 1 else arrays
    function = _ELEMENTWISE[equation.primitive.name]
    with np.errstate(all="ignore"):
        if function is not None:
            result = np.asarray(function(*arrays))
        else:
            result = np.asarray(equation.primitive.bind(*arrays, **equation.params))
    dims: list[int | None] = [None] * rank
    for k, i in enumerate(held):
        dims[i] = k
    dtype = str(aval.dtype)
    return Value(tuple(aval.shape), dtype, tuple(dims), array=result.astype(aval.dtype))
