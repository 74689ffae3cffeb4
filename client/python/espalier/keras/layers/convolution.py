"""Convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from espalier.errors import InvalidArgument
from espalier.graph import Tensor
from espalier.keras import activations, backend
from espalier.keras.layer import Layer, only_one
from espalier.keras.layers.core import apply_activation, fused
from espalier.keras.layers.windows import Padding, ints, joined, output_sizes, padding_of, pads_of, spatial
from espalier.keras.lowering import Lowering, Value, known
from espalier.keras.tensor import Shape
from espalier.keras.variable import Layout, Variable


class _Convolution(Layer):
    # Arguments and bias that all convolutions share.
    rank = 2
    _paddings: tuple[str, ...] = ("valid", "same")

    def _set(
        self,
        kernel_size: Any,
        strides: Any,
        padding: Any,
        data_format: str | None,
        dilation_rate: Any,
        activation: Any,
        use_bias: bool,
        bias: tuple[Any, Any, Any],
    ) -> None:
        self.kernel_size = ints("kernel_size", kernel_size, self.rank)
        self.strides = ints("strides", strides, self.rank)
        self.dilation_rate = ints("dilation_rate", dilation_rate, self.rank)
        self.padding: Padding = padding_of(padding, self.rank, self._paddings)
        self.data_format = backend.data_format_of(data_format or getattr(type(self), "_default_data_format", None))
        self.activation = activations.get(activation)
        self.use_bias = use_bias
        self._bias = bias
        self.bias: Variable | None = None

    def _add_bias(self, filters: int) -> None:
        if self.use_bias:
            initializer, regularizer, constraint = self._bias
            self.bias = self.add_weight(
                (filters,), initializer, name="bias", regularizer=regularizer, constraint=constraint
            )

    def _channels(self, shape: Shape) -> int:
        _, channels = spatial(shape, self.data_format, self.rank, type(self).__name__)
        if channels is None:
            raise InvalidArgument(f"the number of channels must be known, got {shape}")
        return int(channels)

    def _convolve(
        self, g: Lowering, x: Tensor, weight: Variable, bias: Variable | None, groups: int, **attributes: Any
    ) -> Tensor:
        assert x.shape is not None
        sizes = known(x.shape[2:], type(self).__name__)
        before, after = pads_of(self.padding, sizes, self.kernel_size, self.strides, self.dilation_rate)
        out = output_sizes(sizes, self.padding, self.kernel_size, self.strides, self.dilation_rate)
        return g.op(
            f"conv{self.rank}d",
            [x, g.weight(weight), None if bias is None else g.weight(bias)],
            {
                "strides": self.strides,
                "pads": before + after,
                "dilations": self.dilation_rate,
                "groups": groups,
                **attributes,
            },
            shape=(None, weight.layout.shape[0], *out),
        )


class _Conv(_Convolution):
    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: Any = "valid",
        data_format: str | None = None,
        dilation_rate: Any = 1,
        groups: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        **kwargs: Any,
    ):
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        bias = (bias_initializer, bias_regularizer, bias_constraint)
        self._set(kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias, bias)
        self.filters, self.groups = int(filters), int(groups)
        if self.filters <= 0 or self.groups <= 0 or self.filters % self.groups:
            raise InvalidArgument(f"{self.name}: filters={filters}, groups={groups}; filters is a multiple of groups")
        self._kernel = (kernel_initializer, kernel_regularizer, kernel_constraint)

    def _build(self, shapes: list[Shape]) -> None:
        channels = self._channels(only_one(type(self).__name__, shapes))
        if channels % self.groups:
            raise InvalidArgument(f"{channels} channels are no multiple of groups={self.groups}")
        shape = (*self.kernel_size, channels // self.groups, self.filters)
        perm = (self.rank + 1, self.rank, *range(self.rank))
        initializer, regularizer, constraint = self._kernel
        self.kernel = self.add_weight(
            shape,
            initializer,
            name="kernel",
            regularizer=regularizer,
            constraint=constraint,
            layout=Layout(tuple(shape[d] for d in perm), perm),
        )
        self._add_bias(self.filters)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Spatial sizes by kernel, strides and padding; `filters` channels."""
        sizes, channels = spatial(input_shape, self.data_format, self.rank, type(self).__name__)
        if self.built and channels is not None and channels != self.kernel.shape[-2] * self.groups:
            raise InvalidArgument(
                f"the input has {channels} channels; the kernel was made for {self.kernel.shape[-2] * self.groups}"
            )
        out = output_sizes(sizes, self.padding, self.kernel_size, self.strides, self.dilation_rate)
        return joined(input_shape[0], out, self.filters, self.data_format)

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        x = g.channels_first(inputs[0], self.data_format)
        y = self._convolve(g, x, self.kernel, self.bias, self.groups, **fused(self.activation))
        return [apply_activation(g, g.from_channels_first(y, self.data_format), self.activation)]


class Conv1D(_Conv):
    """Convolution over one dimension; the kernel is [width, inputs / groups, filters]. Also padding="causal"."""

    rank = 1
    _paddings = ("valid", "same", "causal")


class Conv2D(_Conv):
    """Convolution over two dimensions; the kernel is [height, width, inputs / groups, filters].

    `padding` is "valid", "same", or as in FlexFlow (vertical, horizontal) numbers of zeros at both ends.
    """

    rank = 2


class Conv3D(_Conv):
    """Convolution over three dimensions; the kernel is [depth, height, width, inputs / groups, filters]."""

    rank = 3


class _DepthwiseConv(_Convolution):
    def __init__(
        self,
        kernel_size: Any,
        strides: Any = 1,
        padding: Any = "valid",
        depth_multiplier: int = 1,
        data_format: str | None = None,
        dilation_rate: Any = 1,
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        depthwise_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        depthwise_constraint: Any = None,
        bias_constraint: Any = None,
        **kwargs: Any,
    ):
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        bias = (bias_initializer, bias_regularizer, bias_constraint)
        self._set(kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias, bias)
        self.depth_multiplier = int(depth_multiplier)
        self._kernel = (depthwise_initializer, depthwise_regularizer, depthwise_constraint)

    def _build(self, shapes: list[Shape]) -> None:
        channels = self._channels(only_one(type(self).__name__, shapes))
        self.kernel = _depthwise_kernel(self, "kernel", channels, self.depth_multiplier, self._kernel)
        self._add_bias(channels * self.depth_multiplier)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Spatial sizes by kernel, strides and padding; depth_multiplier times the channels."""
        sizes, channels = spatial(input_shape, self.data_format, self.rank, type(self).__name__)
        out = output_sizes(sizes, self.padding, self.kernel_size, self.strides, self.dilation_rate)
        return joined(input_shape[0], out, channels * self.depth_multiplier, self.data_format)

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        x = g.channels_first(inputs[0], self.data_format)
        y = self._convolve(g, x, self.kernel, self.bias, self.kernel.shape[-2], **fused(self.activation))
        return [apply_activation(g, g.from_channels_first(y, self.data_format), self.activation)]


def _depthwise_kernel(
    layer: _Convolution, name: str, channels: int, multiplier: int, how: tuple[Any, Any, Any]
) -> Variable:
    # Keras has [kernel..., channels, multiplier], the graph one group for each channel.
    initializer, regularizer, constraint = how
    r = layer.rank
    return layer.add_weight(
        (*layer.kernel_size, channels, multiplier),
        initializer,
        name=name,
        regularizer=regularizer,
        constraint=constraint,
        layout=Layout((channels * multiplier, 1, *layer.kernel_size), (r, r + 1, *range(r))),
    )


class DepthwiseConv1D(_DepthwiseConv):
    """A convolution of each channel with depth_multiplier kernels of its own."""

    rank = 1


class DepthwiseConv2D(_DepthwiseConv):
    """A convolution of each channel with depth_multiplier kernels of its own."""

    rank = 2


class _SeparableConv(_Convolution):
    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: Any = "valid",
        data_format: str | None = None,
        dilation_rate: Any = 1,
        depth_multiplier: int = 1,
        activation: Any = None,
        use_bias: bool = True,
        depthwise_initializer: Any = "glorot_uniform",
        pointwise_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        depthwise_regularizer: Any = None,
        pointwise_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        depthwise_constraint: Any = None,
        pointwise_constraint: Any = None,
        bias_constraint: Any = None,
        **kwargs: Any,
    ):
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        bias = (bias_initializer, bias_regularizer, bias_constraint)
        self._set(kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias, bias)
        self.filters, self.depth_multiplier = int(filters), int(depth_multiplier)
        self._depthwise = (depthwise_initializer, depthwise_regularizer, depthwise_constraint)
        self._pointwise = (pointwise_initializer, pointwise_regularizer, pointwise_constraint)

    def _build(self, shapes: list[Shape]) -> None:
        channels = self._channels(only_one(type(self).__name__, shapes))
        self.depthwise_kernel = _depthwise_kernel(
            self, "depthwise_kernel", channels, self.depth_multiplier, self._depthwise
        )
        shape = (*(1,) * self.rank, channels * self.depth_multiplier, self.filters)
        perm = (self.rank + 1, self.rank, *range(self.rank))
        initializer, regularizer, constraint = self._pointwise
        self.pointwise_kernel = self.add_weight(
            shape,
            initializer,
            name="pointwise_kernel",
            regularizer=regularizer,
            constraint=constraint,
            layout=Layout(tuple(shape[d] for d in perm), perm),
        )
        self._add_bias(self.filters)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Spatial sizes by kernel, strides and padding; `filters` channels."""
        sizes, _ = spatial(input_shape, self.data_format, self.rank, type(self).__name__)
        out = output_sizes(sizes, self.padding, self.kernel_size, self.strides, self.dilation_rate)
        return joined(input_shape[0], out, self.filters, self.data_format)

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        x = g.channels_first(inputs[0], self.data_format)
        x = self._convolve(g, x, self.depthwise_kernel, None, self.depthwise_kernel.shape[-2])
        assert x.shape is not None
        bias = None if self.bias is None else g.weight(self.bias)
        y = g.op(
            f"conv{self.rank}d",
            [x, g.weight(self.pointwise_kernel), bias],
            fused(self.activation),
            shape=(None, self.filters, *x.shape[2:]),
        )
        return [apply_activation(g, g.from_channels_first(y, self.data_format), self.activation)]


class SeparableConv1D(_SeparableConv):
    """A depthwise convolution, then one of width 1 over all channels."""

    rank = 1


class SeparableConv2D(_SeparableConv):
    """A depthwise convolution, then one of width 1 over all channels."""

    rank = 2


class _ConvTranspose(_Convolution):
    def __init__(
        self,
        filters: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: Any = "valid",
        output_padding: Any = None,
        data_format: str | None = None,
        dilation_rate: Any = 1,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        **kwargs: Any,
    ):
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        bias = (bias_initializer, bias_regularizer, bias_constraint)
        self._set(kernel_size, strides, padding, data_format, dilation_rate, activation, use_bias, bias)
        if output_padding is not None:
            raise InvalidArgument(f"{self.name}: output_padding={output_padding!r}: only None is supported")
        if not isinstance(self.padding, str):
            raise InvalidArgument(f"{self.name}: padding={padding!r}; accepted are valid, same")
        self.filters = int(filters)
        self._kernel = (kernel_initializer, kernel_regularizer, kernel_constraint)

    def _build(self, shapes: list[Shape]) -> None:
        channels = self._channels(only_one(type(self).__name__, shapes))
        shape = (*self.kernel_size, self.filters, channels)
        perm = (self.rank + 1, self.rank, *range(self.rank))
        initializer, regularizer, constraint = self._kernel
        self.kernel = self.add_weight(
            shape,
            initializer,
            name="kernel",
            regularizer=regularizer,
            constraint=constraint,
            layout=Layout(tuple(shape[d] for d in perm), perm),
        )
        self._add_bias(self.filters)

    def _sizes(self, sizes: Sequence[int | None]) -> list[int | None]:
        found: list[int | None] = []
        for d, size in enumerate(sizes):
            window = (self.kernel_size[d] - 1) * self.dilation_rate[d] + 1
            more = max(window - self.strides[d], 0) if self.padding == "valid" else 0
            found.append(None if size is None else size * self.strides[d] + more)
        return found

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Spatial sizes times the strides (and, with padding="valid", what the kernel adds); `filters` channels."""
        sizes, _ = spatial(input_shape, self.data_format, self.rank, type(self).__name__)
        return joined(input_shape[0], self._sizes(sizes), self.filters, self.data_format)

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        x = g.channels_first(inputs[0], self.data_format)
        assert x.shape is not None
        before, after, extra = [], [], []
        for d in range(self.rank):
            window = (self.kernel_size[d] - 1) * self.dilation_rate[d] + 1
            cut = max(window - self.strides[d], 0) if self.padding == "same" else 0
            before.append(cut // 2)
            after.append(cut - cut // 2)
            extra.append(max(self.strides[d] - window, 0))
        y = g.op(
            f"conv_transpose{self.rank}d",
            [x, g.weight(self.kernel), None if self.bias is None else g.weight(self.bias)],
            {
                "strides": self.strides,
                "pads": before + after,
                "dilations": self.dilation_rate,
                "output_padding": extra,
            },
            shape=(None, self.filters, *self._sizes(x.shape[2:])),
        )
        value = g.from_channels_first(y, self.data_format)
        return [value if self.activation.name == "linear" else self.activation.lower(g, value)]


class Conv1DTranspose(_ConvTranspose):
    """The gradient of a convolution over one dimension, as a layer; the kernel is [width, filters, inputs]."""

    rank = 1


class Conv2DTranspose(_ConvTranspose):
    """The gradient of a convolution over two dimensions, as a layer; the kernel is [height, width, filters, inputs]."""

    rank = 2


class Conv3DTranspose(_ConvTranspose):
    """The gradient of a convolution over three dimensions, as a layer."""

    rank = 3


Convolution1D, Convolution2D, Convolution3D = Conv1D, Conv2D, Conv3D
DepthwiseConvolution1D, DepthwiseConvolution2D = DepthwiseConv1D, DepthwiseConv2D
SeparableConvolution1D, SeparableConvolution2D = SeparableConv1D, SeparableConv2D
Convolution1DTranspose, Convolution2DTranspose, Convolution3DTranspose = (
    Conv1DTranspose,
    Conv2DTranspose,
    Conv3DTranspose,
)
