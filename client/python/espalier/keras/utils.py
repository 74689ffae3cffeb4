"""Helpers with Keras' names."""

from __future__ import annotations

from typing import Any

import numpy as np

from espalier.errors import InvalidArgument
from espalier.keras.backend import set_random_seed

__all__ = ["normalize", "set_random_seed", "to_categorical"]


def to_categorical(x: Any, num_classes: int | None = None) -> np.ndarray[Any, Any]:
    """Labels as rows with a 1 at the label: [...] or [..., 1] gives [..., num_classes], float32."""
    labels = np.asarray(x)
    if labels.ndim > 1 and labels.shape[-1] == 1:
        labels = labels.reshape(labels.shape[:-1])
    labels = labels.astype(np.int64)
    classes = int(labels.max()) + 1 if num_classes is None else int(num_classes)
    if labels.size and (labels.min() < 0 or labels.max() >= classes):
        raise InvalidArgument(f"to_categorical: labels from {labels.min()} to {labels.max()} with {classes} classes")
    made: np.ndarray[Any, Any] = np.eye(classes, dtype=np.float32)[labels]
    return made


def normalize(x: Any, axis: int = -1, order: int = 2) -> np.ndarray[Any, Any]:
    """x divided by its norm along an axis; a norm of 0 counts as 1."""
    array = np.asarray(x)
    norm = np.linalg.norm(array, order, axis, keepdims=True)
    norm[norm == 0] = 1
    made: np.ndarray[Any, Any] = array / norm
    return made
