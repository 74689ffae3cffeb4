"""Sums, means, extremes, norms, orders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from espalier.torch.emitter import Emitter
from espalier.torch.registry import handles
from espalier.torch.values import CannotConvert, Shape, Value, axis, product


def _axes(x: Value, dims: Any) -> list[int]:
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        return list(range(x.rank))
    return sorted({axis(int(d), x.rank) for d in (dims if isinstance(dims, (list, tuple)) else [dims])})


def reduced(shape: Shape, axes: Sequence[int], keepdim: bool) -> Shape:
    """Shape of the result of a reduction."""
    if keepdim:
        return tuple(1 if dim in axes else length for dim, length in enumerate(shape))
    return tuple(length for dim, length in enumerate(shape) if dim not in axes)


def reduce(emit: Emitter, operator: str, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
    """A reduction over dimensions (none: all), of x's type."""
    axes = _axes(x, dims)
    if not axes:
        return x
    attributes: dict[str, Any] = {"axes": axes, "keepdims": bool(keepdim)}
    return emit.op(operator, [emit.whole(x)], attributes, shape=reduced(x.shape, axes, keepdim), dtype=x.dtype)


@handles("sum.default", "sum.dim_IntList")
def _sum(emit: Emitter, x: Value, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return reduce(emit, "reduce_sum", emit.cast(x, emit.output.dtype), dims, keepdim)


@handles("mean.default", "mean.dim")
def _mean(emit: Emitter, x: Value, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return reduce(emit, "reduce_mean", emit.cast(x, emit.output.dtype), dims, keepdim)


@handles("amax.default")
def _amax(emit: Emitter, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
    return reduce(emit, "reduce_max", x, dims, keepdim)


@handles("amin.default")
def _amin(emit: Emitter, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
    return reduce(emit, "reduce_min", x, dims, keepdim)


@handles("max.default")
def _max(emit: Emitter, x: Value) -> Value:
    return reduce(emit, "reduce_max", x)


@handles("min.default")
def _min(emit: Emitter, x: Value) -> Value:
    return reduce(emit, "reduce_min", x)


def _extreme(largest: bool) -> Any:
    def handler(emit: Emitter, x: Value, dim: int, keepdim: bool = False) -> tuple[Value, Value]:
        # PyTorch gives the gradient to the one element that it names, not to all equal ones.
        dim = axis(dim, x.rank)
        shape = reduced(x.shape, [dim], True)
        values, places = emit.ops(
            "top_k",
            [emit.whole(x)],
            {"k": 1, "axis": dim, "largest": largest},
            [(shape, x.dtype), (shape, torch.int64)],
        )
        if not keepdim:
            values, places = (emit.reshape(v, reduced(x.shape, [dim], False)) for v in (values, places))
        return values, places

    return handler


handles("max.dim")(_extreme(True))
handles("min.dim")(_extreme(False))


@handles("prod.default", "prod.dim_int")
def _prod(emit: Emitter, x: Value, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    return reduce(emit, "reduce_prod", emit.cast(x, emit.output.dtype), dims, keepdim)


@handles("any.default", "any.dim", "any.dims")
def _any(emit: Emitter, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
    from espalier.torch.convert_elementwise import truth

    return reduce(emit, "reduce_max", truth(emit, x), dims, keepdim)


@handles("all.default", "all.dim", "all.dims")
def _all(emit: Emitter, x: Value, dims: Any = None, keepdim: bool = False) -> Value:
    from espalier.torch.convert_elementwise import truth

    return reduce(emit, "reduce_min", truth(emit, x), dims, keepdim)


@handles("logsumexp.default")
def _logsumexp(emit: Emitter, x: Value, dims: Any, keepdim: bool = False) -> Value:
    return reduce(emit, "reduce_log_sum_exp", x, dims, keepdim)


@handles("norm.ScalarOpt_dim", "norm.Scalar", "linalg_vector_norm.default")
def _norm(emit: Emitter, x: Value, order: Any = 2, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> Value:
    kinds = {2: "reduce_l2", 1: "reduce_l1"}
    order = 2 if order is None else float(order)
    if order not in kinds:
        raise CannotConvert(f"of order {order}; only 1 and 2")
    return reduce(emit, kinds[order], emit.cast(x, emit.output.dtype), dims, keepdim)


def variance(emit: Emitter, x: Value, dims: Any, keepdim: bool, correction: float) -> tuple[Value, Value]:
    """Variance, and the mean, over dimensions."""
    axes = _axes(x, dims)
    count = product(x.shape[dim] for dim in axes)
    mean = reduce(emit, "reduce_mean", x, axes, True)
    centred = emit.elementwise("subtract", [x, mean], dtype=x.dtype)
    squares = emit.elementwise("multiply", [centred, centred], dtype=x.dtype)
    if correction == 0:
        result = reduce(emit, "reduce_mean", squares, axes, keepdim)
    else:
        total = reduce(emit, "reduce_sum", squares, axes, keepdim)
        result = emit.arithmetic("divide", total, max(0, emit.number(count) - correction), x.dtype)
    if not keepdim:
        mean = emit.reshape(mean, reduced(x.shape, axes, False))
    return result, mean


def _correction(unbiased: Any, correction: Any) -> float:
    if correction is not None:
        return float(correction)
    return 1.0 if unbiased is None or unbiased else 0.0


def _spread(deviation: bool, both: bool = False) -> Any:
    def handler(emit: Emitter, x: Value, *arguments: Any, **named: Any) -> Any:
        dims = None
        for argument in arguments:
            if isinstance(argument, bool):
                named.setdefault("unbiased", argument)
            else:
                dims = argument
        correction = _correction(named.get("unbiased"), named.get("correction"))
        spread, mean = variance(emit, x, dims, bool(named.get("keepdim", False)), correction)
        spread = emit.elementwise("sqrt", [spread], dtype=x.dtype) if deviation else spread
        return (spread, mean) if both else spread

    return handler


handles("var.correction", "var.default")(_spread(False))
handles("std.correction", "std.default")(_spread(True))
handles("var_mean.correction")(_spread(False, both=True))
handles("std_mean.correction")(_spread(True, both=True))


def _spread_dim(deviation: bool) -> Any:
    def handler(emit: Emitter, x: Value, dims: Any, unbiased: bool = True, keepdim: bool = False) -> Value:
        return _spread(deviation)(emit, x, dims, unbiased=unbiased, keepdim=keepdim)  # type: ignore[no-any-return]

    return handler


handles("var.dim")(_spread_dim(False))
handles("std.dim")(_spread_dim(True))


@handles("cumsum.default")
def _cumsum(emit: Emitter, x: Value, dim: int, dtype: Any = None) -> Value:
    return emit.op("cumsum", [emit.whole(emit.cast(x, emit.output.dtype))], {"axis": axis(dim, x.rank)})


def _extreme_place(operator: str) -> Any:
    def handler(emit: Emitter, x: Value, dim: int | None = None, keepdim: bool = False) -> Value:
        if dim is None:
            x, dim = emit.reshape(x, [-1]), 0
        attributes = {"axis": axis(dim, x.rank), "keepdims": bool(keepdim)}
        return emit.op(operator, [emit.whole(x)], attributes)

    return handler


handles("argmax.default")(_extreme_place("arg_max"))
handles("argmin.default")(_extreme_place("arg_min"))


@handles("topk.default")
def _topk(emit: Emitter, x: Value, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    attributes = {"k": emit.number(k), "axis": axis(dim, x.rank), "largest": bool(largest)}
    results = [(output.shape, output.dtype) for output in emit.outputs]
    return emit.ops("top_k", [emit.whole(x)], attributes, results)


@handles("sort.default", "sort.stable")
def _sort(emit: Emitter, x: Value, *arguments: Any, dim: int = -1, descending: bool = False, **_: Any) -> Any:
    given = [a for a in arguments if not isinstance(a, bool)] or [dim]
    order = [a for a in arguments if isinstance(a, bool)] or [descending]
    dim = axis(given[-1], x.rank)
    results = [(output.shape, output.dtype) for output in emit.outputs]
    return emit.ops("sort", [emit.whole(x)], {"axis": dim, "descending": order[-1]}, results)


@handles("argsort.default", "argsort.stable")
def _argsort(emit: Emitter, x: Value, *arguments: Any, **named: Any) -> Value:
    given = [a for a in arguments if not isinstance(a, bool)] or [named.get("dim", -1)]
    order = [a for a in arguments if isinstance(a, bool)] or [named.get("descending", False)]
    return emit.op("argsort", [emit.whole(x)], {"axis": axis(given[-1], x.rank), "descending": order[-1]})
