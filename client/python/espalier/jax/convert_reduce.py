"""Sums, extremes and places along axes; sorting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from espalier.jax.context import Context
from espalier.jax.convert_elementwise import FLOATS, convert, scalar_op
from espalier.jax.ir import is_static, product
from espalier.jax.registry import handles
from espalier.jax.values import Refused, Value, of_wire

if TYPE_CHECKING:
    from espalier.jax.interpret import Interpreter

_REDUCE = {
    "reduce_sum": "reduce_sum",
    "reduce_max": "reduce_max",
    "reduce_min": "reduce_min",
    "reduce_prod": "reduce_prod",
    "reduce_and": "reduce_min",
    "reduce_or": "reduce_max",
}


@handles(*_REDUCE)
def _reduce(it: Interpreter, equation: Any, x: Value) -> Value:
    return reduced(it.context, equation.primitive.name, x, [int(a) for a in equation.params["axes"]])


def reduced(context: Context, name: str, x: Value, axes: list[int]) -> Value:
    """A reduction over axes of a value."""
    held = [a for a in axes if x.dims[a] is not None]
    repeated = product(x.shape[a] for a in axes if x.dims[a] is None)
    repeats = name in ("reduce_sum", "reduce_prod") and not (is_static(repeated) and int(repeated) == 1)
    if repeats and (name == "reduce_prod" or not is_static(repeated) or x.dtype not in FLOATS):
        return reduced(context, name, of_wire(context.dense(x)), axes)
    kept = [i for i in range(len(x.shape)) if i not in axes]
    shape = tuple(x.shape[i] for i in kept)
    wire = context.stored(x)
    stored = sorted(x.at(a) for a in held)
    left = [d for d in range(len(wire.shape)) if d not in stored]
    dims = tuple(left.index(x.at(i)) if x.dims[i] is not None else None for i in kept)
    if held:
        wire = context.emit(_REDUCE[name], [wire], tuple(wire.shape[d] for d in left), x.dtype, axes=stored)
    result = Value(shape, x.dtype, dims, wire=wire)
    if name == "reduce_sum" and int(repeated) != 1:
        result = scalar_op(context, "mul", result, context.constant(result, float(repeated)))
    return result


@handles("argmax", "argmin")
def _arg(it: Interpreter, equation: Any, x: Value) -> Value:
    context = it.context
    (axis,) = equation.params["axes"]
    wire = context.dense(x)
    if wire.dtype == "bool":
        wire = context.cast(wire, "int32")
    op = "arg_max" if equation.primitive.name == "argmax" else "arg_min"
    shape = tuple(d for i, d in enumerate(x.shape) if i != axis)
    made = context.emit(op, [wire], shape, "int64", axis=int(axis), keepdims=False)
    return of_wire(context.cast(made, str(np.dtype(equation.params["index_dtype"]).name)))


@handles("cumsum")
def _cumsum(it: Interpreter, equation: Any, x: Value) -> Value:
    wire = it.context.dense(x)
    axis, reverse = int(equation.params["axis"]), bool(equation.params["reverse"])
    return of_wire(it.context.emit("cumsum", [wire], wire.shape, x.dtype, axis=axis, reverse=reverse))


@handles("sort")
def _sort(it: Interpreter, equation: Any, *operands: Value) -> list[Value]:
    context = it.context
    axis, keys = int(equation.params["dimension"]), int(equation.params["num_keys"])
    first = operands[0]
    if keys != 1:
        raise Refused(f"by {keys} keys")
    if not is_static(first.shape[axis]):
        raise Refused("along the batch")
    if first.dtype not in (*FLOATS, "int32", "int64"):
        raise Refused(f"of {first.dtype}")
    wire = context.dense(first)
    values, places = context.program.emit("sort", [wire], [wire.shape, wire.shape], [wire.dtype, "int64"], axis=axis)
    results = [of_wire(values)]
    for other in operands[1:]:
        results.append(
            of_wire(context.emit("gather_elements", [context.dense(other), places], wire.shape, other.dtype, axis=axis))
        )
    return results


@handles("top_k")
def _top_k(it: Interpreter, equation: Any, x: Value) -> list[Value]:
    context = it.context
    k, axis = int(equation.params["k"]), int(equation.params.get("axis", -1))
    axis %= len(x.shape)
    wire = context.dense(x)
    shape = tuple(k if i == axis else d for i, d in enumerate(wire.shape))
    values, places = context.program.emit("top_k", [wire], [shape, shape], [wire.dtype, "int64"], k=k, axis=axis)
    return [of_wire(values), convert(context, of_wire(places), str(equation.outvars[1].aval.dtype))]
