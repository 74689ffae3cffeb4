"""Models, with FlexFlow's default batch size."""

from __future__ import annotations

from espalier.keras import models


class Model(models.Model):
    """As espalier.keras.Model; 64 examples a step unless `fit` gets batch_size."""

    _default_batch_size = 64


class Sequential(models.Sequential):
    """As espalier.keras.Sequential; 64 examples a step unless `fit` gets batch_size."""

    _default_batch_size = 64


__all__ = ["Model", "Sequential"]
