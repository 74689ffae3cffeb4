"""FlexFlow's Keras programs, with only their imports changed: `flexflow.keras` becomes `espalier.keras.flexflow`.

As espalier.keras, but channels come first without `data_format`, `fit` takes 64 examples a step without `batch_size`,
and cifar10's images have their channels first.
"""

from espalier.keras import initializers, losses, metrics, optimizers, preprocessing, regularizers, utils
from espalier.keras.flexflow import backend, callbacks, datasets, layers, models

__all__ = [
    "backend",
    "callbacks",
    "datasets",
    "initializers",
    "layers",
    "losses",
    "metrics",
    "models",
    "optimizers",
    "preprocessing",
    "regularizers",
    "utils",
]
