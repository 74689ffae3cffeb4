"""Pooling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from espalier.errors import InvalidArgument
from espalier.graph import Tensor
from espalier.keras import backend
from espalier.keras.layer import Layer
from espalier.keras.layers.windows import Ints, ints, joined, output_sizes, padding_of, pads_of, spatial
from espalier.keras.lowering import Lowering, Value, known


class _Pool(Layer):
    rank = 2
    kind = "max"

    def __init__(
        self,
        pool_size: Any = 2,
        strides: Any = None,
        padding: Any = "valid",
        data_format: str | None = None,
        name: str | None = None,
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        self.pool_size = ints("pool_size", pool_size, self.rank)
        self.strides = self.pool_size if strides is None else ints("strides", strides, self.rank)
        self.padding = padding_of(padding, self.rank)
        self.data_format = backend.data_format_of(data_format or getattr(type(self), "_default_data_format", None))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Spatial sizes by window, strides and padding."""
        sizes, channels = spatial(input_shape, self.data_format, self.rank, type(self).__name__)
        out = output_sizes(sizes, self.padding, self.pool_size, self.strides, (1,) * self.rank)
        return joined(input_shape[0], out, channels, self.data_format)

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        x = g.channels_first(inputs[0], self.data_format)
        assert x.shape is not None
        sizes = known(x.shape[2:], type(self).__name__)
        before, after = pads_of(self.padding, sizes, self.pool_size, self.strides, (1,) * self.rank)
        channels = x.shape[1]
        if self.rank == 1:
            y = g.reshape(x, (None, channels, 1, sizes[0]))
            y = self._pool(g, y, (1, *self.pool_size), (1, *self.strides), (0, *before), (0, *after))
            assert y.shape is not None
            y = g.reshape(y, (None, channels, y.shape[3]))
        elif self.rank == 2:
            y = self._pool(g, x, self.pool_size, self.strides, before, after)
        else:
            y = self._pool3d(g, x, sizes, before, after)
        return [g.from_channels_first(y, self.data_format)]

    def _pool(self, g: Lowering, x: Tensor, kernel: Ints, strides: Ints, before: Ints, after: Ints) -> Tensor:
        assert x.shape is not None
        sizes = known(x.shape[2:], type(self).__name__)
        padding = tuple(zip(before, after, strict=True))
        return g.op(
            "pool2d",
            [x],
            {"kind": self.kind, "kernel": kernel, "strides": strides, "pads": before + after},
            shape=(*x.shape[:2], *output_sizes(sizes, padding, kernel, strides, (1, 1))),
        )

    def _pool3d(self, g: Lowering, x: Tensor, sizes: Ints, before: Ints, after: Ints) -> Tensor:
        # A window in two dimensions, then one in the third: maxima separate so, and averages with their counts.
        assert x.shape is not None
        channels = int(x.shape[1] or 0)
        y = g.reshape(x, (None, channels * sizes[0], sizes[1], sizes[2]))
        y = self._pool(g, y, self.pool_size[1:], self.strides[1:], before[1:], after[1:])
        assert y.shape is not None
        height, width = int(y.shape[2] or 0), int(y.shape[3] or 0)
        y = g.reshape(y, (None, channels, sizes[0], height * width))
        y = self._pool(g, y, (self.pool_size[0], 1), (self.strides[0], 1), (before[0], 0), (after[0], 0))
        assert y.shape is not None
        return g.reshape(y, (None, channels, y.shape[2], height, width))


class MaxPooling1D(_Pool):
    """The largest element of each window of one dimension."""

    rank, kind = 1, "max"


class MaxPooling2D(_Pool):
    """The largest element of each window of two dimensions; `padding` also as in FlexFlow (vertical, horizontal)."""

    rank, kind = 2, "max"


class MaxPooling3D(_Pool):
    """The largest element of each window of three dimensions."""

    rank, kind = 3, "max"


class AveragePooling1D(_Pool):
    """The mean of each window of one dimension, without what is padded."""

    rank, kind = 1, "average"


class AveragePooling2D(_Pool):
    """The mean of each window of two dimensions, without what is padded; `padding` also as in FlexFlow."""

    rank, kind = 2, "average"


class AveragePooling3D(_Pool):
    """The mean of each window of three dimensions, without what is padded."""

    rank, kind = 3, "average"


class _GlobalPool(Layer):
    rank = 2
    op = "reduce_max"

    def __init__(self, data_format: str | None = None, keepdims: bool = False, **kwargs: Any):
        super().__init__(**kwargs)
        self.data_format = backend.data_format_of(data_format or getattr(type(self), "_default_data_format", None))
        self.keepdims = keepdims

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The channels; with keepdims spatial sizes of 1, too."""
        _, channels = spatial(input_shape, self.data_format, self.rank, type(self).__name__)
        if self.keepdims:
            return joined(input_shape[0], (1,) * self.rank, channels, self.data_format)
        return (input_shape[0], channels)

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        x = g.channels_first(inputs[0], self.data_format)
        known((x.shape or ())[2:], type(self).__name__)
        y = g.reduce(self.op, x, list(range(2, self.rank + 2)), self.keepdims)
        return [g.from_channels_first(y, self.data_format) if self.keepdims else Value(y, y.shape or ())]


class GlobalMaxPooling1D(_GlobalPool):
    """The largest element of each channel."""

    rank, op = 1, "reduce_max"


class GlobalMaxPooling2D(_GlobalPool):
    """The largest element of each channel."""

    rank, op = 2, "reduce_max"


class GlobalMaxPooling3D(_GlobalPool):
    """The largest element of each channel."""

    rank, op = 3, "reduce_max"


class GlobalAveragePooling1D(_GlobalPool):
    """The mean of each channel."""

    rank, op = 1, "reduce_mean"


class GlobalAveragePooling2D(_GlobalPool):
    """The mean of each channel."""

    rank, op = 2, "reduce_mean"


class GlobalAveragePooling3D(_GlobalPool):
    """The mean of each channel."""

    rank, op = 3, "reduce_mean"


class _AdaptivePool(Layer):
    kind = "max"

    def __init__(self, output_size: Any, data_format: str | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.output_size = ints("output_size", output_size, 2)
        self.data_format = backend.data_format_of(data_format or getattr(type(self), "_default_data_format", None))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Spatial sizes `output_size`."""
        _, channels = spatial(input_shape, self.data_format, 2, type(self).__name__)
        return joined(input_shape[0], self.output_size, channels, self.data_format)

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        x = g.channels_first(inputs[0], self.data_format)
        assert x.shape is not None
        if any(size is None for size in x.shape[2:]):
            raise InvalidArgument(f"{type(self).__name__} needs known sizes, got {inputs[0].shape}")
        attributes: dict[str, Any] = {"kind": self.kind, "size": self.output_size}
        y = g.op("adaptive_pool2d", [x], attributes, shape=(*x.shape[:2], *self.output_size))
        return [g.from_channels_first(y, self.data_format)]


class AdaptiveMaxPooling2D(_AdaptivePool):
    """The largest elements of output_size windows, whatever the input's sizes."""

    kind = "max"


class AdaptiveAveragePooling2D(_AdaptivePool):
    """The means of output_size windows, whatever the input's sizes."""

    kind = "average"


MaxPool1D, MaxPool2D, MaxPool3D = MaxPooling1D, MaxPooling2D, MaxPooling3D
AvgPool1D, AvgPool2D, AvgPool3D = AveragePooling1D, AveragePooling2D, AveragePooling3D
GlobalMaxPool1D, GlobalMaxPool2D, GlobalMaxPool3D = GlobalMaxPooling1D, GlobalMaxPooling2D, GlobalMaxPooling3D
GlobalAvgPool1D, GlobalAvgPool2D, GlobalAvgPool3D = (
    GlobalAveragePooling1D,
    GlobalAveragePooling2D,
    GlobalAveragePooling3D,
)
