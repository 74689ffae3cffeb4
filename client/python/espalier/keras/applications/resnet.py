"""ResNet with post-activation (He et al., 2015), with the layers and names of Keras' `applications.resnet`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from espalier.errors import InvalidArgument
from espalier.keras import backend, layers
from espalier.keras.models import Model

_EPSILON = 1.001e-5


def _normalized(x: Any, axis: int, name: str) -> Any:
    return layers.BatchNormalization(axis=axis, epsilon=_EPSILON, name=name)(x)


def _block(x: Any, filters: int, stride: int, first: bool, axis: int, name: str) -> Any:
    """1x1, 3x3 and 1x1 convolutions beside a shortcut, which the first block of a stage projects."""
    short = x
    if first:
        short = layers.Conv2D(4 * filters, 1, strides=stride, name=f"{name}_0_conv")(x)
        short = _normalized(short, axis, f"{name}_0_bn")
    for part, width, kernel, step in ((1, filters, 1, stride), (2, filters, 3, 1)):
        x = layers.Conv2D(width, kernel, strides=step, padding="same", name=f"{name}_{part}_conv")(x)
        x = _normalized(x, axis, f"{name}_{part}_bn")
        x = layers.Activation("relu", name=f"{name}_{part}_relu")(x)
    x = _normalized(layers.Conv2D(4 * filters, 1, name=f"{name}_3_conv")(x), axis, f"{name}_3_bn")
    x = layers.Add(name=f"{name}_add")([short, x])
    return layers.Activation("relu", name=f"{name}_out")(x)


def _pooled(x: Any, pooling: str | None) -> Any:
    if pooling is None:
        return x
    if pooling == "avg":
        return layers.GlobalAveragePooling2D(name="avg_pool")(x)
    if pooling == "max":
        return layers.GlobalMaxPooling2D(name="max_pool")(x)
    raise InvalidArgument(f"pooling={pooling!r}; accepted are None, 'avg' and 'max'")


def _resnet(
    depths: Sequence[int],
    name: str,
    include_top: bool,
    weights: str | os.PathLike[str] | None,
    input_tensor: Any,
    input_shape: Sequence[int] | None,
    pooling: str | None,
    classes: int,
    classifier_activation: str | None,
) -> Model:
    if weights is not None and not Path(weights).is_file():
        raise InvalidArgument(
            f"{name}: weights={os.fspath(weights)!r} is no file; accepted: None (random), or a file that save_weights "
            "wrote. Nothing is downloaded: load Keras' own with Keras and use espalier.keras.from_keras"
        )
    first = backend.image_data_format() == "channels_first"
    axis = 1 if first else -1
    if input_shape is None:
        input_shape = (3, 224, 224) if first else (224, 224, 3)
    given = layers.Input(tuple(input_shape)) if input_tensor is None else input_tensor
    x = layers.ZeroPadding2D(3, name="conv1_pad")(given)
    x = _normalized(layers.Conv2D(64, 7, strides=2, name="conv1_conv")(x), axis, "conv1_bn")
    x = layers.ZeroPadding2D(1, name="pool1_pad")(layers.Activation("relu", name="conv1_relu")(x))
    x = layers.MaxPooling2D(3, strides=2, name="pool1_pool")(x)
    for stage, (filters, depth) in enumerate(zip((64, 128, 256, 512), depths, strict=True), 2):
        for block in range(1, depth + 1):
            stride = 2 if block == 1 and stage > 2 else 1
            x = _block(x, filters, stride, block == 1, axis, f"conv{stage}_block{block}")
    if include_top:
        x = _pooled(x, "avg")
        x = layers.Dense(classes, activation=classifier_activation, name="predictions")(x)
    else:
        x = _pooled(x, pooling)
    model = Model(given, x, name=name)
    if weights is not None:
        model.load_weights(weights)
    return model


def ResNet50(  # noqa: N802
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = None,
    input_tensor: Any = None,
    input_shape: Sequence[int] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: str | None = "softmax",
    name: str = "resnet50",
) -> Model:
    """ResNet-50. Arguments are Keras', but that `weights` is None or a file: nothing is downloaded."""
    top = (include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation)
    return _resnet((3, 4, 6, 3), name, *top)


def ResNet101(  # noqa: N802
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = None,
    input_tensor: Any = None,
    input_shape: Sequence[int] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: str | None = "softmax",
    name: str = "resnet101",
) -> Model:
    """ResNet-101, as ResNet50."""
    top = (include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation)
    return _resnet((3, 4, 23, 3), name, *top)


def ResNet152(  # noqa: N802
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = None,
    input_tensor: Any = None,
    input_shape: Sequence[int] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: str | None = "softmax",
    name: str = "resnet152",
) -> Model:
    """ResNet-152, as ResNet50."""
    top = (include_top, weights, input_tensor, input_shape, pooling, classes, classifier_activation)
    return _resnet((3, 8, 36, 3), name, *top)
