"""Sliding windows: maximum, minimum and sum, over any number of dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from espalier.jax.context import Context
from espalier.jax.convert_elementwise import FLOATS, unary
from espalier.jax.ir import Wire, is_static, product
from espalier.jax.registry import handles
from espalier.jax.values import Refused, Value, of_wire

if TYPE_CHECKING:
    from espalier.jax.interpret import Interpreter


@handles("reduce_window_max", "reduce_window_min", "reduce_window_sum")
def _reduce_window(it: Interpreter, equation: Any, x: Value) -> Value:
    context, p, name = it.context, equation.params, equation.primitive.name
    if any(int(d) != 1 for d in p["base_dilation"]):
        raise Refused("a dilated input")
    windows = [
        _Window(i, int(k), int(s), (int(a), int(b)), int(d))
        for i, (k, s, (a, b), d) in enumerate(
            zip(p["window_dimensions"], p["window_strides"], p["padding"], p["window_dilation"], strict=True)
        )
    ]
    moving = [w for w in windows if w.size != 1 or w.stride != 1 or w.pads != (0, 0)]
    if any(not is_static(x.shape[w.axis]) for w in moving):
        raise Refused("a window over the batch")
    shape = tuple(equation.outvars[0].aval.shape)
    if x.is_constant:
        return _constant(context, equation, x, [w.axis for w in moving], shape)
    if x.dtype not in FLOATS:
        raise Refused(f"of {x.dtype}")
    if name == "reduce_window_min":
        x = unary(context, "neg", x)
    # The inner dimensions first: of equal maxima the first one then gets the gradient, as in JAX.
    while moving:
        pair, moving = moving[-2:], moving[:-2]
        x = _pool(context, x, pair, "average" if name == "reduce_window_sum" else "max", shape)
    if name == "reduce_window_min":
        x = unary(context, "neg", x)
    return x


class _Window:
    def __init__(self, axis: int, size: int, stride: int, pads: tuple[int, int], dilation: int):
        self.axis, self.size, self.stride, self.pads, self.dilation = axis, size, stride, pads, dilation


def _pool(context: Context, x: Value, windows: list[_Window], kind: str, final: tuple[Any, ...]) -> Value:
    """pool2d over the one or two dimensions of `windows`."""
    axes = [w.axis for w in windows]
    if any(d is None for d in x.dims):
        x = of_wire(context.dense(x))
    others = [i for i in x.order if i not in axes]
    order = [*others, *axes]
    wire: Wire = context.ordered(x, order, keep=True)
    lead = tuple(x.shape[i] for i in others)
    image = tuple(x.shape[a] for a in axes)
    if len(windows) == 1:
        image = (*image, 1)
    planes = lead if len(lead) == 2 else (1,) * (2 - len(lead)) + lead if len(lead) < 2 else (product(lead), 1)
    wire = context.reshape(wire, (*planes, *image))
    shape = tuple(final[i] if i in axes else d for i, d in enumerate(x.shape))
    pooled = tuple(shape[a] for a in axes) + ((1,) if len(windows) == 1 else ())
    spare = [0] if len(windows) == 1 else []
    one = [1] if len(windows) == 1 else []
    sizes = [w.size for w in windows] + one
    made = context.emit(
        "pool2d",
        [wire],
        (*planes, *pooled),
        x.dtype,
        kind=kind,
        kernel=sizes,
        strides=[w.stride for w in windows] + one,
        pads=[w.pads[0] for w in windows] + spare + [w.pads[1] for w in windows] + spare,
        dilations=[w.dilation for w in windows] + one,
        **({"count_include_pad": True} if kind == "average" else {}),
    )
    made = context.reshape(made, tuple(shape[i] for i in order))
    result = context.view(made, order, shape)
    if kind == "average":
        result = unary(context, "multiply_scalar", result, value=float(np.prod(sizes)))
    return result


def _constant(context: Context, equation: Any, x: Value, moving: list[int], shape: tuple[Any, ...]) -> Value:
    """Windows over a constant, which may be the same for the whole batch (the counts of an average)."""
    assert x.array is not None
    kept = [i for i in range(len(x.shape)) if i in moving or x.dims[i] is not None]
    array = np.transpose(x.array, [x.at(i) for i in sorted(x.order)])
    array = array.reshape([x.shape[i] if x.dims[i] is not None else 1 for i in range(len(x.shape))])
    sizes = [int(x.shape[i]) if i in kept else 1 for i in range(len(x.shape))]
    result = np.asarray(equation.primitive.bind(np.broadcast_to(array, sizes), **equation.params))
    dims: list[int | None] = [None] * len(shape)
    for k, i in enumerate(kept):
        dims[i] = k
    return Value(shape, x.dtype, tuple(dims), array=result.reshape([result.shape[i] for i in kept]))
