"""conv_general_dilated: convolutions in every layout, transposed ones included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from espalier.jax.context import Context
from espalier.jax.convert_elementwise import FLOATS
from espalier.jax.ir import Wire
from espalier.jax.registry import handles
from espalier.jax.values import Refused, Value

if TYPE_CHECKING:
    from espalier.jax.interpret import Interpreter


@handles("conv_general_dilated")
def _conv(it: Interpreter, equation: Any, x: Value, weight: Value) -> Value:
    context, p = it.context, equation.params
    spec = p["dimension_numbers"]
    aval = equation.outvars[0].aval
    spatial = len(aval.shape) - 2
    if not 1 <= spatial <= 3:
        raise Refused(f"in {spatial} dimensions; accepted are 1 to 3")
    if x.dtype not in FLOATS or str(aval.dtype) != x.dtype:
        raise Refused(f"of {x.dtype} in {aval.dtype}")
    if p["batch_group_count"] != 1:
        raise Refused("batch_group_count above 1, the gradient of a grouped convolution")
    data = _spread(context, x, spec.lhs_spec)
    kernel = _spread(context, weight, spec.rhs_spec)
    strides, padding = [int(s) for s in p["window_strides"]], [(int(a), int(b)) for a, b in p["padding"]]
    dilations, groups = [int(d) for d in p["rhs_dilation"]], int(p["feature_group_count"])
    shape = tuple(aval.shape[i] for i in spec.out_spec)
    if any(int(d) != 1 for d in p["lhs_dilation"]):
        if any(s != 1 for s in strides):
            raise Refused("strides and a dilated input together")
        inner = [int(d) for d in p["lhs_dilation"]]
        made = _transposed(context, data, kernel, inner, padding, dilations, groups, shape)
    else:
        cut = [(min(low, 0), min(high, 0)) for low, high in padding]
        if any(low or high for low, high in cut):
            data = _pad(context, data, cut)
            padding = [(max(low, 0), max(high, 0)) for low, high in padding]
        made = context.emit(
            f"conv{spatial}d",
            [data, kernel, None],
            shape,
            x.dtype,
            strides=strides,
            pads=[a for a, _ in padding] + [b for _, b in padding],
            dilations=dilations,
            groups=groups,
        )
    return context.view(made, list(spec.out_spec), tuple(aval.shape))


def _spread(context: Context, value: Value, spec: Any) -> Wire:
    """[batch or out, feature or in, spatial...]."""
    wire = context.ordered(value, list(spec), keep=True)
    return context.broadcast(wire, tuple(value.shape[i] for i in spec))


def _pad(context: Context, wire: Wire, amounts: list[tuple[int, int]]) -> Wire:
    """Adds zeros to the spatial dimensions, or cuts elements off where negative."""
    pads = [0, 0, *(a for a, _ in amounts), 0, 0, *(b for _, b in amounts)]
    shape = wire.shape[:2] + tuple(d + a + b for d, (a, b) in zip(wire.shape[2:], amounts, strict=True))
    return context.emit("pad", [wire], shape, wire.dtype, pads=pads)


def _transposed(
    context: Context,
    x: Wire,
    kernel: Wire,
    strides: list[int],
    padding: list[tuple[int, int]],
    dilations: list[int],
    groups: int,
    shape: tuple[Any, ...],
) -> Wire:
    """A convolution of an input with zeros between its elements is a transposed one with the kernel reversed."""
    spatial = len(strides)
    out, per_group = int(kernel.shape[0]), int(kernel.shape[1])
    sizes = [int(k) for k in kernel.shape[2:]]
    # [out, in / groups, ...] -> [in, out / groups, ...]
    if groups > 1:
        split = context.reshape(kernel, (groups, out // groups, per_group, *sizes))
        split = context.transpose(split, [0, 2, 1, *range(3, 3 + spatial)])
        kernel = context.reshape(split, (groups * per_group, out // groups, *sizes))
    else:
        kernel = context.transpose(kernel, [1, 0, *range(2, 2 + spatial)])
    if any(k > 1 for k in sizes):
        kernel = context.emit(
            "reverse", [kernel], kernel.shape, kernel.dtype, axes=[2 + i for i, k in enumerate(sizes) if k > 1]
        )
    reach = [(k - 1) * d for k, d in zip(sizes, dilations, strict=True)]
    low = [r - a for r, (a, _) in zip(reach, padding, strict=True)]
    high = [r - b for r, (_, b) in zip(reach, padding, strict=True)]
    full = [d + min(a, 0) + min(b, 0) for d, a, b in zip(shape[2:], low, high, strict=True)]
    made = context.emit(
        f"conv_transpose{spatial}d",
        [x, kernel, None],
        (*shape[:2], *full),
        x.dtype,
        strides=strides,
        pads=[max(a, 0) for a in low] + [max(b, 0) for b in high],
        dilations=dilations,
        groups=groups,
    )
    if any(a < 0 or b < 0 for a, b in zip(low, high, strict=True)):
        made = _pad(context, made, [(max(-a, 0), max(-b, 0)) for a, b in zip(low, high, strict=True)])
    return made
