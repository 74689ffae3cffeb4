"""Arguments of windows: kernels, strides, padding. Shared by convolutions and pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from espalier.errors import InvalidArgument

Ints = tuple[int, ...]
Padding = str | tuple[tuple[int, int], ...]


def ints(name: str, value: Any, count: int, least: int = 1) -> Ints:
    """`value` as `count` integers; one number stands for all."""
    try:
        found = (int(value),) * count if not isinstance(value, (list, tuple)) else tuple(int(v) for v in value)
    except (TypeError, ValueError):
        raise InvalidArgument(f"{name}={value!r}; accepted: an integer or {count} of them") from None
    if len(found) != count or any(v < least for v in found):
        raise InvalidArgument(f"{name}={value!r}; accepted: an integer or {count} of them, at least {least}")
    return found


def padding_of(value: Any, count: int, names: Sequence[str] = ("valid", "same")) -> Padding:
    """A padding: a name as in Keras, or as in FlexFlow one number for both ends of each dimension.

    Pairs say the ends apart: ((top, bottom), (left, right)).
    """
    if isinstance(value, str):
        if value.lower() in names:
            return value.lower()
        raise InvalidArgument(f"padding={value!r}; accepted are {', '.join(names)}, or {count} integers as in FlexFlow")
    if isinstance(value, int):
        value = (value,) * count
    if isinstance(value, (list, tuple)) and len(value) == count:
        pairs = tuple(tuple(v) if isinstance(v, (list, tuple)) else (v, v) for v in value)
        if all(len(p) == 2 and all(isinstance(x, int) and x >= 0 for x in p) for p in pairs):
            return tuple((p[0], p[1]) for p in pairs)
    raise InvalidArgument(f"padding={value!r}; accepted are {', '.join(names)}, or {count} integers as in FlexFlow")


def pads_of(padding: Padding, sizes: Ints, kernel: Ints, strides: Ints, dilations: Ints) -> tuple[Ints, Ints]:
    """Elements before and after each dimension of `sizes`."""
    before, after = [], []
    for d, size in enumerate(sizes):
        window = (kernel[d] - 1) * dilations[d] + 1
        if not isinstance(padding, str):
            low, high = padding[d]
        elif padding == "same":
            total = max((-(-size // strides[d]) - 1) * strides[d] + window - size, 0)
            low, high = total // 2, total - total // 2
        elif padding == "causal":
            low, high = window - 1, 0
        else:
            low, high = 0, 0
        before.append(low)
        after.append(high)
    return tuple(before), tuple(after)


def output_sizes(
    sizes: Sequence[int | None], padding: Padding, kernel: Ints, strides: Ints, dilations: Ints
) -> tuple[int | None, ...]:
    """Sizes after the window has passed; InvalidArgument if it is larger than what it passes."""
    found: list[int | None] = []
    for d, size in enumerate(sizes):
        if size is None:
            found.append(None)
            continue
        one = (kernel[d],), (strides[d],), (dilations[d],)
        part: Padding = padding if isinstance(padding, str) else (padding[d],)
        low, high = pads_of(part, (size,), *one)
        window = (kernel[d] - 1) * dilations[d] + 1
        left = size + low[0] + high[0] - window
        if left < 0:
            raise InvalidArgument(
                f"the window's size {window} is larger than the input's {size}. If the channels come first, as in "
                "FlexFlow's examples, pass data_format='channels_first', call "
                "espalier.keras.backend.set_image_data_format('channels_first'), or import from "
                "espalier.keras.flexflow"
            )
        found.append(left // strides[d] + 1)
    return tuple(found)


def spatial(shape: Sequence[int | None], data_format: str, rank: int, kind: str) -> tuple[Sequence[int | None], Any]:
    """Spatial sizes and channels of a shape; InvalidArgument for another number of dimensions."""
    if len(shape) != rank + 2:
        raise InvalidArgument(f"{kind} takes {rank + 2} dimensions, got {tuple(shape)}")
    return (shape[1:-1], shape[-1]) if data_format == "channels_last" else (shape[2:], shape[1])


def joined(batch: int | None, sizes: Sequence[int | None], channels: Any, data_format: str) -> Any:
    """The shape of spatial sizes and channels."""
    return (batch, *sizes, channels) if data_format == "channels_last" else (batch, channels, *sizes)
