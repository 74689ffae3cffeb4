"""dot_general: matrix products with any batch, free and contracted dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from espalier.jax.context import Context
from espalier.jax.convert_elementwise import FLOATS, convert
from espalier.jax.ir import Shape, Wire, product
from espalier.jax.registry import handles
from espalier.jax.values import Refused, Value

if TYPE_CHECKING:
    from espalier.jax.interpret import Interpreter


@handles("dot_general")
def _dot_general(it: Interpreter, equation: Any, lhs: Value, rhs: Value) -> Value:
    (lc, rc), (lb, rb) = equation.params["dimension_numbers"]
    aval = equation.outvars[0].aval
    dtype = str(aval.dtype)
    context = it.context
    if dtype not in FLOATS or lhs.dtype not in FLOATS or rhs.dtype not in FLOATS:
        raise Refused(f"of {lhs.dtype} and {rhs.dtype}")
    if dtype != lhs.dtype and FLOATS.index(dtype) > 0:
        raise Refused(f"of {lhs.dtype} in {dtype}")
    lhs, rhs = convert(context, lhs, dtype), convert(context, rhs, dtype)
    return dot(context, lhs, rhs, (list(lc), list(rc)), (list(lb), list(rb)), tuple(aval.shape))


def dot(
    context: Context,
    lhs: Value,
    rhs: Value,
    contract: tuple[list[int], list[int]],
    batch: tuple[list[int], list[int]],
    shape: Shape,
) -> Value:
    """The product. The result has batch dimensions, free ones of lhs, free ones of rhs."""
    (lc, rc), (lb, rb) = contract, batch
    lf = [i for i in range(len(lhs.shape)) if i not in lc and i not in lb]
    rf = [i for i in range(len(rhs.shape)) if i not in rc and i not in rb]
    if not lb and len(lf) <= 1 and len(rf) > 1:
        # The operand with more rows comes first: rows need not be merged then. The view puts the result in order.
        swapped = dot(context, rhs, lhs, (rc, lc), (rb, lb), shape[len(lf) :] + shape[: len(lf)])
        order = list(range(len(lf), len(shape))) + list(range(len(lf)))
        perm = [order.index(i) for i in range(len(shape))]
        return Value(shape, swapped.dtype, tuple(swapped.dims[p] for p in perm), wire=swapped.wire)
    a, flip_a = _operand(context, lhs, lb, lf, lc, rows_first=True, merge_rows=bool(lb) or not lf)
    b, flip_b = _operand(context, rhs, rb, rc, rf, rows_first=False, merge_rows=True)
    batch_shape = tuple(lhs.shape[i] for i in lb)
    rows = tuple(lhs.shape[i] for i in lf)
    columns = tuple(rhs.shape[i] for i in rf)
    made_rows = rows if lf and not lb else (product(rows),)
    made_shape = (*batch_shape, *made_rows, product(columns))
    flags = {k: True for k, v in (("transpose_a", flip_a), ("transpose_b", flip_b)) if v}
    made = context.emit("matmul", [a, b], made_shape, lhs.dtype, **flags)
    return context.view(context.reshape(made, shape), range(len(shape)), shape)


def _operand(
    context: Context,
    value: Value,
    batch: Sequence[int],
    first: Sequence[int],
    second: Sequence[int],
    rows_first: bool,
    merge_rows: bool,
) -> tuple[Wire, bool]:
    """[batch..., first, second], each group merged to one dimension; or, flipped, [batch..., second, first].

    Unless `merge_rows`, the dimensions of `first` stay apart.
    """
    order = [*batch, *first, *second]
    flipped = [*batch, *second, *first]
    flip = value.order == flipped and flipped != order and (merge_rows or len(first) == 1)
    if rows_first and not merge_rows and len(first) != 1:
        flip = False
    used = flipped if flip else order
    wire = context.ordered(value, used, keep=True)
    wire = context.broadcast(wire, tuple(value.shape[i] for i in used))
    sizes = {
        True: (product(value.shape[i] for i in first),) if merge_rows else tuple(value.shape[i] for i in first),
        False: (product(value.shape[i] for i in second),),
    }
    groups = (False, True) if flip else (True, False)
    shape = (*(value.shape[i] for i in batch), *sizes[groups[0]], *sizes[groups[1]])
    return context.reshape(wire, shape), flip
