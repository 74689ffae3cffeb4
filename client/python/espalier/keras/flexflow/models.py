"""Models, with FlexFlow's default batch size."""

from __future__ import annotations

from typing import Any

from espalier.errors import InvalidArgument
from espalier.keras import models


class _Own:
    @property
    def ffmodel(self) -> Any:
        """The model itself: FlexFlow's layers want it where they read and set weights."""
        return self

    def init_layers(self) -> None:
        """Makes the initial weights, which otherwise the first training makes. InvalidArgument before `compile`."""
        if self._compiled is None:  # type: ignore[attr-defined]
            raise InvalidArgument("init_layers: call compile(optimizer, loss, metrics) before")
        self.get_weights()  # type: ignore[attr-defined]


class Model(_Own, models.Model):
    """As espalier.keras.Model; 64 examples a step unless `fit` gets batch_size."""

    _default_batch_size = 64


class Sequential(_Own, models.Sequential):
    """As espalier.keras.Sequential; 64 examples a step unless `fit` gets batch_size."""

    _default_batch_size = 64


__all__ = ["Model", "Sequential"]
