"""PerfMetrics: what a model has reported since reset_metrics."""

from __future__ import annotations

from collections.abc import Mapping

from espalier.errors import NotFound


class PerfMetrics:
    """Loss and metrics: means over the batches since reset_metrics, or those of `eval`."""

    def __init__(self, values: Mapping[str, float]):
        self.values = dict(values)

    def get_accuracy(self) -> float:
        """The accuracy in per cent. NotFound if compile was not given METRICS_ACCURACY, or nothing has run."""
        return 100 * self._value("accuracy")

    def get_loss(self) -> float:
        """The loss. NotFound if nothing has run."""
        return self._value("loss")

    def _value(self, name: str) -> float:
        if name not in self.values:
            raise NotFound(f"no {name} was reported; there are {', '.join(self.values) or 'no values yet'}")
        return self.values[name]

    def __repr__(self) -> str:
        return f"<PerfMetrics {' '.join(f'{name} {value:.6g}' for name, value in self.values.items())}>"
