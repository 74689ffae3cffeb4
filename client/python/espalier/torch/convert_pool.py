"""Pooling and resizing of images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from espalier.torch.convert_convolution import repeated
from espalier.torch.convert_reduce import reduce
from espalier.torch.emitter import Emitter
from espalier.torch.registry import handles
from espalier.torch.values import CannotConvert, Size, Value, constant, same


def _as_image(emit: Emitter, x: Value, rank: int) -> Value:
    """[N, C, L] or [C, ...] as the operators take it: [N, C, H, W]."""
    x = emit.whole(x)
    shape = x.shape if x.rank == rank + 2 else (1, *x.shape)
    if rank == 1:
        shape = (*shape[:2], 1, shape[2])
    return emit.reshape(x, shape)


def _image_shape(emit: Emitter, x: Value, rank: int) -> tuple[Size, ...]:
    """Shape of the result as an image, from that in PyTorch."""
    shape = emit.output.shape
    shape = shape if x.rank == rank + 2 else (1, *shape)
    return (*shape[:2], 1, shape[2]) if rank == 1 else shape


def _window(rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> dict[str, Any]:
    kernels = repeated(kernel, rank)
    strides = kernels if stride is None or stride == [] else repeated(stride, rank)
    pads, dilations = repeated(padding, rank), repeated(dilation, rank)
    if rank == 1:
        kernels, strides, pads, dilations = [1, *kernels], [1, *strides], [0, *pads], [1, *dilations]
    return {"kernel": kernels, "strides": strides, "pads": pads * 2, "dilations": dilations}


def _max_pool(rank: int, indices: bool) -> Any:
    def handler(
        emit: Emitter,
        x: Value,
        kernel: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        image = _as_image(emit, x, rank)
        shape = _image_shape(emit, x, rank)
        attributes = _window(rank, kernel, stride, padding, dilation) | {"ceil_mode": bool(ceil_mode)}
        if indices:
            raise CannotConvert("only with return_indices=False")
        made = emit.op("pool2d", [image], attributes | {"kind": "max"}, shape=shape)
        return emit.reshape(made, emit.output.shape)

    return handler


for _rank in (1, 2):
    handles(f"max_pool{_rank}d.default")(_max_pool(_rank, False))
    handles(f"max_pool{_rank}d_with_indices.default")(_max_pool(_rank, True))


def _avg_pool(rank: int) -> Any:
    def handler(
        emit: Emitter,
        x: Value,
        kernel: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: Any = None,
    ) -> Value:
        attributes = _window(rank, kernel, stride, padding)
        attributes |= {"kind": "average", "ceil_mode": bool(ceil_mode), "count_include_pad": bool(count_include_pad)}
        shape = _image_shape(emit, x, rank)
        made = emit.op("pool2d", [_as_image(emit, x, rank)], attributes, shape=shape)
        if divisor_override is not None:
            if any(attributes["pads"]) or ceil_mode:
                raise CannotConvert("divisor_override only without padding and ceil_mode")
            count = attributes["kernel"][0] * attributes["kernel"][1]
            made = emit.arithmetic("multiply", made, count / divisor_override)
        return emit.reshape(made, emit.output.shape)

    return handler


for _rank in (1, 2):
    handles(f"avg_pool{_rank}d.default")(_avg_pool(_rank))


def _adaptive(rank: int, kind: str) -> Any:
    def handler(emit: Emitter, x: Value, _size: Any) -> Value:
        target = emit.output.shape[-rank:]
        if kind == "average" and all(same(length, 1) for length in target):
            return reduce(emit, "reduce_mean", x, list(range(x.rank - rank, x.rank)), True)
        if all(same(a, b) for a, b in zip(target, x.shape[-rank:], strict=True)):
            return x
        image = _as_image(emit, x, rank)
        size = [emit.number(length) for length in ((1, *target) if rank == 1 else target)]
        shape = (*image.shape[:2], *size)
        made = emit.op("adaptive_pool2d", [image], {"kind": kind, "size": size}, shape=shape)
        return emit.reshape(made, emit.output.shape)

    return handler


for _rank in (1, 2):
    handles(f"adaptive_avg_pool{_rank}d.default")(_adaptive(_rank, "average"))


def _adaptive_max(rank: int) -> Any:
    pool = _adaptive(rank, "max")

    def handler(emit: Emitter, x: Value, size: Any) -> tuple[Value, None]:
        # The places of the maxima are not given: using them fails.
        return pool(emit, x, size), None

    return handler


for _rank in (1, 2):
    handles(f"adaptive_max_pool{_rank}d.default")(_adaptive_max(_rank))


@handles("adaptive_avg_pool3d.default")
def _adaptive3(emit: Emitter, x: Value, size: Any) -> Value:
    if not all(same(length, 1) for length in emit.output.shape[-3:]):
        raise CannotConvert("only to size 1")
    return reduce(emit, "reduce_mean", x, [-3, -2, -1], True)


def _upsample(mode: str) -> Any:
    def handler(emit: Emitter, x: Value, size: Any, *arguments: Any) -> Value:
        if emit.output.dtype != torch.float32:
            raise CannotConvert("only of float32")
        align = bool(arguments[0]) if mode != "nearest" and arguments else False
        scales = [a for a in arguments if isinstance(a, (list, tuple))]
        image = emit.whole(x)
        sizes = [emit.number(length) for length in emit.output.shape[2:]]
        attributes: dict[str, Any] = {"size": [0, 0, *sizes][-len(sizes) - 2 :]}
        if mode == "nearest":
            attributes |= {"mode": "nearest", "coordinates": "asymmetric", "nearest_mode": "floor"}
        else:
            coordinates = "align_corners" if align else "half_pixel"
            attributes |= {"mode": "linear" if mode == "linear" else "cubic", "coordinates": coordinates}
        if scales and not align:
            # With recompute_scale_factor=False PyTorch takes the given factors, not the ratio of the sizes.
            exact = [int(length) * s for length, s in zip(image.shape[2:], scales[0], strict=True)]
            if any(abs(e - s) > 1e-6 for e, s in zip(exact, sizes, strict=True)):
                raise CannotConvert(
                    "a scale_factor that gives no whole size; give size=, or recompute_scale_factor=True"
                )
        return emit.op("resize", [image], attributes)

    return handler


handles("upsample_nearest1d.vec", "upsample_nearest2d.vec", "upsample_nearest3d.vec")(_upsample("nearest"))
handles("upsample_nearest1d.default", "upsample_nearest2d.default")(_upsample("nearest"))
handles("upsample_linear1d.vec", "upsample_bilinear2d.vec", "upsample_trilinear3d.vec")(_upsample("linear"))
handles("upsample_linear1d.default", "upsample_bilinear2d.default")(_upsample("linear"))
handles("upsample_bicubic2d.vec", "upsample_bicubic2d.default")(_upsample("cubic"))


@handles("grid_sampler.default", "grid_sampler_2d.default")
def _grid_sample(emit: Emitter, x: Value, grid: Value, mode: int, padding: int, align_corners: bool) -> Value:
    attributes: dict[str, Any] = {
        "mode": ("bilinear", "nearest", "bicubic")[mode],
        "padding": ("zeros", "border", "reflection")[padding],
        "align_corners": bool(align_corners),
    }
    return emit.op("grid_sample", [emit.whole(x), emit.whole(grid)], attributes)


@handles("im2col.default")
def _im2col(
    emit: Emitter,
    x: Value,
    kernel: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Value:
    """Patches, by a convolution with the unit matrix."""
    channels = emit.number(x.shape[1])
    count = channels * int(kernel[0]) * int(kernel[1])
    unit = torch.eye(count).reshape(count, channels, int(kernel[0]), int(kernel[1]))
    pads = [int(p) for p in padding]
    attributes: dict[str, Any] = {
        "strides": [int(s) for s in stride],
        "pads": pads * 2,
        "dilations": [int(d) for d in dilation],
        "groups": 1,
    }
    places = [
        (int(x.shape[2 + i]) + 2 * pads[i] - int(dilation[i]) * (int(kernel[i]) - 1) - 1) // int(stride[i]) + 1
        for i in range(2)
    ]
    made = emit.op("conv2d", [emit.whole(x), constant(unit), None], attributes, shape=(x.shape[0], count, *places))
    return emit.reshape(made, emit.output.shape)
