"""Layers whose channels come first without `data_format`."""

from __future__ import annotations

from typing import Any

from espalier.keras import layers

__all__ = list(layers.__all__)


class _First:
    _default_data_format = "channels_first"


class _Weights:
    """FlexFlow's way to read and set weights: with the model that they are of, and one by one."""

    def get_weights(self, ffmodel: Any = None) -> Any:
        """The elements of all weights, in Keras' layout and order. `ffmodel` may be given, as in FlexFlow."""
        return super().get_weights()  # type: ignore[misc]

    def set_weights(self, *given: Any) -> None:
        """set_weights(weights), or as in FlexFlow set_weights(ffmodel, kernel, bias)."""
        arrays = given[0] if len(given) == 1 else list(given[1:])
        super().set_weights(arrays)  # type: ignore[misc]


class Dense(_Weights, layers.Dense):
    """As espalier.keras.layers.Dense."""


class Embedding(_Weights, layers.Embedding):
    """As espalier.keras.layers.Embedding."""


class Conv2D(_Weights, _First, layers.Conv2D):
    """As espalier.keras.layers.Conv2D, channels first."""


class Conv1D(_First, layers.Conv1D):
    """As espalier.keras.layers.Conv1D, channels first."""


class DepthwiseConv2D(_First, layers.DepthwiseConv2D):
    """As espalier.keras.layers.DepthwiseConv2D, channels first."""


class SeparableConv2D(_First, layers.SeparableConv2D):
    """As espalier.keras.layers.SeparableConv2D, channels first."""


class Conv2DTranspose(_First, layers.Conv2DTranspose):
    """As espalier.keras.layers.Conv2DTranspose, channels first."""


class MaxPooling2D(_First, layers.MaxPooling2D):
    """As espalier.keras.layers.MaxPooling2D, channels first."""


class AveragePooling2D(_First, layers.AveragePooling2D):
    """As espalier.keras.layers.AveragePooling2D, channels first."""


class GlobalMaxPooling2D(_First, layers.GlobalMaxPooling2D):
    """As espalier.keras.layers.GlobalMaxPooling2D, channels first."""


class GlobalAveragePooling2D(_First, layers.GlobalAveragePooling2D):
    """As espalier.keras.layers.GlobalAveragePooling2D, channels first."""


class ZeroPadding2D(_First, layers.ZeroPadding2D):
    """As espalier.keras.layers.ZeroPadding2D, channels first."""


class UpSampling2D(_First, layers.UpSampling2D):
    """As espalier.keras.layers.UpSampling2D, channels first."""


class Flatten(layers.Flatten):
    """The elements of an example in their order: FlexFlow's Flatten moves no channels."""

    _default_data_format = "channels_last"


class BatchNormalization(layers.BatchNormalization):
    """As espalier.keras.layers.BatchNormalization, over the channels in dimension 1."""

    def __init__(self, axis: int = 1, **kwargs: object):
        super().__init__(axis=axis, **kwargs)  # type: ignore[arg-type]


class Concatenate(layers.Concatenate):
    """As espalier.keras.layers.Concatenate, along dimension 1."""

    def __init__(self, axis: int = 1, **kwargs: object):
        super().__init__(axis=axis, **kwargs)


def concatenate(inputs: object, axis: int = 1, **kwargs: object) -> object:
    """Concatenate(axis)(inputs)."""
    return Concatenate(axis=axis, **kwargs)(inputs)


MaxPool2D, AvgPool2D = MaxPooling2D, AveragePooling2D


def __getattr__(name: str) -> Any:
    return getattr(layers, name)
