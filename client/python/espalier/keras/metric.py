"""The base class of metrics."""

from __future__ import annotations

from typing import Any

from espalier.graph import Tensor
from espalier.keras import backend
from espalier.keras.lowering import Lowering, Value
from espalier.keras.serialization import Configurable


class Metric(Configurable):
    """Base of all metrics."""

    integer_labels: bool | None = False  # None: either

    def __init__(self, name: str | None = None, dtype: Any = None):
        self.name = name or backend.snake_case(type(self).__name__)

    def lower(self, g: Lowering, target: Tensor, prediction: Value, weights: Tensor | None = None) -> Tensor:
        """The scalar that each step reports. `weights` has one number for each example (weighted_metrics)."""
        raise NotImplementedError
