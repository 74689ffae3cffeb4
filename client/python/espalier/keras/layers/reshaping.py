"""Layers that move elements: shapes, padding, cropping, repetition, resizing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from espalier.errors import InvalidArgument
from espalier.keras import backend
from espalier.keras.layer import Layer
from espalier.keras.layers.windows import ints, joined, spatial
from espalier.keras.lowering import Lowering, Value, known, product


class Flatten(Layer):
    """All dimensions but the batch as one. With channels_first the channels are moved last before, as in Keras."""

    def __init__(self, data_format: str | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.data_format = backend.data_format_of(data_format or getattr(type(self), "_default_data_format", None))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The number of elements of an example."""
        return (input_shape[0], product(input_shape[1:]))

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        x = inputs[0]
        tensor = g.plain(x)
        if self.data_format == "channels_first" and len(x.shape) > 2:
            tensor = g.transpose(tensor, [0, *range(2, len(x.shape)), 1])
        known(x.shape[1:], "Flatten")
        shape = self.compute_output_shape(x.shape)
        return [Value(g.reshape(tensor, shape), shape)]


class Reshape(Layer):
    """The elements of an example with other dimensions, one of which may be -1."""

    def __init__(self, target_shape: Sequence[int], **kwargs: Any):
        super().__init__(**kwargs)
        self.target_shape = tuple(int(d) for d in target_shape)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The target shape, with -1 computed."""
        elements = product(input_shape[1:])
        fixed = math.prod(d for d in self.target_shape if d != -1)
        if elements is None:
            return (input_shape[0], *(None if d == -1 else d for d in self.target_shape))
        unknown = self.target_shape.count(-1)
        if unknown > 1 or (unknown == 1 and elements % fixed) or (unknown == 0 and elements != fixed):
            raise InvalidArgument(f"{tuple(input_shape[1:])} has {elements} elements, no shape {self.target_shape}")
        return (input_shape[0], *(elements // fixed if d == -1 else d for d in self.target_shape))

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        shape = self.compute_output_shape(inputs[0].shape)
        known(shape[1:], "Reshape")
        return [Value(g.reshape(g.plain(inputs[0]), shape), shape)]


class Permute(Layer):
    """The dimensions of an example in another order, counted from 1."""

    def __init__(self, dims: Sequence[int], **kwargs: Any):
        super().__init__(**kwargs)
        self.dims = tuple(int(d) for d in dims)
        if sorted(self.dims) != list(range(1, len(self.dims) + 1)):
            raise InvalidArgument(f"{self.name}: dims={dims!r}; accepted: an order of 1 to the number of dimensions")

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The permuted shape."""
        if len(input_shape) != len(self.dims) + 1:
            raise InvalidArgument(f"dims={self.dims} is for {len(self.dims)} dimensions, got {input_shape[1:]}")
        return (input_shape[0], *(input_shape[d] for d in self.dims))

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        y = g.transpose(g.plain(inputs[0]), (0, *self.dims))
        return [Value(y, self.compute_output_shape(inputs[0].shape))]


class RepeatVector(Layer):
    """[batch, features] n times: [batch, n, features]."""

    def __init__(self, n: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.n = int(n)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """[batch, n, features]."""
        if len(input_shape) != 2:
            raise InvalidArgument(f"RepeatVector takes [batch, features], got {tuple(input_shape)}")
        return (input_shape[0], self.n, input_shape[1])

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        shape = self.compute_output_shape(inputs[0].shape)
        x = g.unsqueeze(g.plain(inputs[0]), 1)
        y = g.op("tile", [x], {"repeats": [1, self.n, 1]}, shape=shape, dtype=inputs[0].dtype)
        return [Value(y, shape)]


def _pairs(name: str, value: Any, rank: int) -> tuple[tuple[int, int], ...]:
    # Elements before and after each dimension.
    if isinstance(value, int):
        value = ((value, value),) if rank == 1 else ((value, value),) * rank
    elif rank == 1 and isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[0], int):
        value = (tuple(value),)
    if not isinstance(value, (list, tuple)) or len(value) != rank:
        raise InvalidArgument(f"{name}={value!r}; accepted: an integer, or one or two integers for each dimension")
    return tuple((p[0], p[1]) for p in (ints(name, v, 2, 0) for v in value))


class _Spatial(Layer):
    # Works on spatial dimensions; lies channels first in the graph.
    rank = 2

    def _set_format(self, data_format: str | None) -> None:
        self.data_format = backend.data_format_of(data_format or getattr(type(self), "_default_data_format", None))

    def _sizes(self, sizes: Sequence[int | None]) -> list[int | None]:
        raise NotImplementedError

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape with other spatial sizes."""
        sizes, channels = spatial(input_shape, self.data_format, self.rank, type(self).__name__)
        return joined(input_shape[0], self._sizes(sizes), channels, self.data_format)


class _ZeroPadding(_Spatial):
    def __init__(self, padding: Any = 1, data_format: str | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.padding = _pairs("padding", padding, self.rank)
        self._set_format(data_format)

    def _sizes(self, sizes: Sequence[int | None]) -> list[int | None]:
        return [None if s is None else s + sum(p) for s, p in zip(sizes, self.padding, strict=True)]

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        x = g.channels_first(inputs[0], self.data_format)
        assert x.shape is not None
        pads = [0, 0, *(p[0] for p in self.padding), 0, 0, *(p[1] for p in self.padding)]
        shape = (*x.shape[:2], *self._sizes(x.shape[2:]))
        y = g.op("pad", [x], {"pads": pads}, shape=shape, dtype=inputs[0].dtype)
        return [g.from_channels_first(y, self.data_format)]


class ZeroPadding1D(_ZeroPadding):
    """Zeros before and after one dimension."""

    rank = 1

    def __init__(self, padding: Any = 1, data_format: str | None = None, **kwargs: Any):
        super().__init__(padding, data_format, **kwargs)


class ZeroPadding2D(_ZeroPadding):
    """Zeros around two dimensions."""

    rank = 2

    def __init__(self, padding: Any = (1, 1), data_format: str | None = None, **kwargs: Any):
        super().__init__(padding, data_format, **kwargs)


class ZeroPadding3D(_ZeroPadding):
    """Zeros around three dimensions."""

    rank = 3

    def __init__(self, padding: Any = ((1, 1), (1, 1), (1, 1)), data_format: str | None = None, **kwargs: Any):
        super().__init__(padding, data_format, **kwargs)


class _Cropping(_Spatial):
    def __init__(self, cropping: Any = 1, data_format: str | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.cropping = _pairs("cropping", cropping, self.rank)
        self._set_format(data_format)

    def _sizes(self, sizes: Sequence[int | None]) -> list[int | None]:
        found = [None if s is None else s - sum(c) for s, c in zip(sizes, self.cropping, strict=True)]
        if any(s is not None and s <= 0 for s in found):
            raise InvalidArgument(f"cropping={self.cropping} leaves nothing of {tuple(sizes)}")
        return found

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        x = g.channels_first(inputs[0], self.data_format)
        assert x.shape is not None
        sizes = known(x.shape[2:], type(self).__name__)
        attributes = {
            "axes": list(range(2, self.rank + 2)),
            "starts": [c[0] for c in self.cropping],
            "ends": [s - c[1] for s, c in zip(sizes, self.cropping, strict=True)],
        }
        shape = (*x.shape[:2], *self._sizes(sizes))
        y = g.op("slice", [x], attributes, shape=shape, dtype=inputs[0].dtype)
        return [g.from_channels_first(y, self.data_format)]


class Cropping1D(_Cropping):
    """Without elements at the ends of one dimension."""

    rank = 1

    def __init__(self, cropping: Any = (1, 1), data_format: str | None = None, **kwargs: Any):
        super().__init__(cropping, data_format, **kwargs)


class Cropping2D(_Cropping):
    """Without elements at the ends of two dimensions."""

    rank = 2

    def __init__(self, cropping: Any = ((0, 0), (0, 0)), data_format: str | None = None, **kwargs: Any):
        super().__init__(cropping, data_format, **kwargs)


class Cropping3D(_Cropping):
    """Without elements at the ends of three dimensions."""

    rank = 3

    def __init__(self, cropping: Any = ((1, 1), (1, 1), (1, 1)), data_format: str | None = None, **kwargs: Any):
        super().__init__(cropping, data_format, **kwargs)


class _Resized(_Spatial):
    interpolation = "nearest"

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        x = g.channels_first(inputs[0], self.data_format)
        assert x.shape is not None
        sizes = self._sizes(known(x.shape[2:], type(self).__name__))
        attributes: dict[str, Any] = {"size": [int(s or 0) for s in sizes], "mode": "linear"}
        if self.interpolation == "nearest":
            attributes |= {"mode": "nearest", "coordinates": "half_pixel", "nearest_mode": "round_prefer_ceil"}
        y = g.op("resize", [x], attributes, shape=(*x.shape[:2], *sizes))
        return [g.from_channels_first(y, self.data_format)]


class _UpSampling(_Resized):
    def _grow(self, size: Any, data_format: str | None, interpolation: str) -> None:
        self.size = ints("size", size, self.rank)
        self._set_format(data_format)
        if interpolation not in ("nearest", "bilinear"):
            raise InvalidArgument(f"{self.name}: interpolation={interpolation!r}; accepted are nearest, bilinear")
        self.interpolation = interpolation

    def _sizes(self, sizes: Sequence[int | None]) -> list[int | None]:
        return [None if s is None else s * n for s, n in zip(sizes, self.size, strict=True)]


class UpSampling1D(_UpSampling):
    """Every step `size` times."""

    rank = 1

    def __init__(self, size: int = 2, **kwargs: Any):
        super().__init__(**kwargs)
        self._grow(size, "channels_last", "nearest")


class UpSampling2D(_UpSampling):
    """Images `size` times as high and wide, by the nearest pixel or bilinearly."""

    rank = 2

    def __init__(
        self, size: Any = (2, 2), data_format: str | None = None, interpolation: str = "nearest", **kwargs: Any
    ):
        super().__init__(**kwargs)
        self._grow(size, data_format, interpolation)


class UpSampling3D(_UpSampling):
    """Every element `size` times in three dimensions."""

    rank = 3

    def __init__(self, size: Any = (2, 2, 2), data_format: str | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self._grow(size, data_format, "nearest")


class Resizing(_Resized):
    """Images of height and width, bilinearly or by the nearest pixel."""

    rank = 2

    def __init__(
        self,
        height: int,
        width: int,
        interpolation: str = "bilinear",
        crop_to_aspect_ratio: bool = False,
        pad_to_aspect_ratio: bool = False,
        fill_mode: str = "constant",
        fill_value: float = 0.0,
        antialias: bool = False,
        data_format: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if crop_to_aspect_ratio or pad_to_aspect_ratio or antialias:
            raise InvalidArgument(f"{self.name}: aspect ratios and antialias are not supported")
        if interpolation not in ("nearest", "bilinear"):
            raise InvalidArgument(f"{self.name}: interpolation={interpolation!r}; accepted are nearest, bilinear")
        self.height, self.width, self.interpolation = int(height), int(width), interpolation
        self._set_format(data_format)

    def _sizes(self, sizes: Sequence[int | None]) -> list[int | None]:
        return [self.height, self.width]
