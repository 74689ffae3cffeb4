"""Keras-shaped models that train at a coordinator.

    from espalier.keras import Sequential, layers

    model = Sequential([layers.Dense(64, activation="relu", input_shape=(20,)), layers.Dense(3, activation="softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", ["accuracy"])
    model.fit(x, y, epochs=5)

Names and arguments are those of Keras 3. `from_keras` takes models of the real Keras.
"""

from __future__ import annotations

import importlib
from typing import Any

from espalier.keras import backend
from espalier.keras.layers.core import Input
from espalier.keras.models import Model, Sequential

_MODULES = (
    "activations",
    "applications",
    "backend",
    "callbacks",
    "datasets",
    "initializers",
    "layers",
    "losses",
    "metrics",
    "models",
    "ops",
    "optimizers",
    "preprocessing",
    "regularizers",
    "utils",
)

__all__ = ["Input", "Model", "Sequential", "backend", "from_keras"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"espalier.keras.{name}")
    if name == "from_keras":
        from espalier.keras.conversion import from_keras

        return from_keras
    if name == "KerasTensor":
        from espalier.keras.tensor import KerasTensor

        return KerasTensor
    raise AttributeError(f"espalier.keras has no {name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, "from_keras"})
