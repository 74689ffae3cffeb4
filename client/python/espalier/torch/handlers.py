"""Imports every file of handlers, each of which registers its own."""

from espalier.torch import (
    convert_activation,
    convert_attention,
    convert_convolution,
    convert_create,
    convert_elementwise,
    convert_index,
    convert_layers,
    convert_loss,
    convert_norm,
    convert_pool,
    convert_random,
    convert_recurrent,
    convert_reduce,
    convert_shape,
)

__all__ = [
    "convert_activation",
    "convert_attention",
    "convert_convolution",
    "convert_create",
    "convert_elementwise",
    "convert_index",
    "convert_layers",
    "convert_loss",
    "convert_norm",
    "convert_pool",
    "convert_random",
    "convert_recurrent",
    "convert_reduce",
    "convert_shape",
]
