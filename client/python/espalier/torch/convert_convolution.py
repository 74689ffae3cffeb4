"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from espalier.torch.emitter import Emitter
from espalier.torch.registry import handles
from espalier.torch.values import CannotConvert, Value


def repeated(value: Any, count: int) -> list[int]:
    """An argument that is one number or one per dimension."""
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    return [int(item) for item in (items * count if len(items) == 1 else items)]


def _convolution(rank: int, transposed: bool) -> Any:
    operator = f"conv_transpose{rank}d" if transposed else f"conv{rank}d"

    def convert(emit: Emitter, x: Value, weight: Value, bias: Value | None, attributes: dict[str, Any]) -> Value:
        unbatched = x.rank == rank + 1
        x = emit.reshape(x, [1, *x.shape]) if unbatched else emit.whole(x)
        shape = (1, *emit.output.shape) if unbatched else emit.output.shape
        inputs = [x, emit.whole(weight), None if bias is None else emit.whole(bias)]
        made = emit.op(operator, inputs, attributes, shape=shape)
        return emit.reshape(made, emit.output.shape) if unbatched else made

    def forward(
        emit: Emitter,
        x: Value,
        weight: Value,
        bias: Value | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: Any = 1,
    ) -> Value:
        dilations = repeated(dilation, rank)
        if padding == "same":
            total = [d * (int(k) - 1) for d, k in zip(dilations, weight.shape[2:], strict=True)]
            pads = [t // 2 for t in total] + [t - t // 2 for t in total]
        else:
            pads = [0] * (2 * rank) if padding == "valid" else repeated(padding, rank) * 2
        attributes = {
            "strides": repeated(stride, rank),
            "pads": pads,
            "dilations": dilations,
            "groups": int(groups),
        }
        return convert(emit, x, weight, bias, attributes)

    def backward(
        emit: Emitter,
        x: Value,
        weight: Value,
        bias: Value | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: Any = 1,
        dilation: Any = 1,
    ) -> Value:
        attributes = {
            "strides": repeated(stride, rank),
            "pads": repeated(padding, rank) * 2,
            "dilations": repeated(dilation, rank),
            "groups": int(groups),
            "output_padding": repeated(output_padding, rank),
        }
        return convert(emit, x, weight, bias, attributes)

    return backward if transposed else forward


for _rank in (1, 2, 3):
    handles(f"conv{_rank}d.default", f"conv{_rank}d.padding")(_convolution(_rank, False))
    handles(f"conv_transpose{_rank}d.default" if _rank == 1 else f"conv_transpose{_rank}d.input")(
        _convolution(_rank, True)
    )


@handles("convolution.default")
def _any_convolution(
    emit: Emitter,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    rank = weight.rank - 2
    if rank not in (1, 2, 3):
        raise CannotConvert(f"of {rank} dimensions")
    if transposed:
        made = _convolution(rank, True)(emit, x, weight, bias, stride, padding, output_padding, groups, dilation)
    else:
        made = _convolution(rank, False)(emit, x, weight, bias, stride, padding, dilation, groups)
    return made  # type: ignore[no-any-return]
