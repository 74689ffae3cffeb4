"""Metrics of all predictions of an evaluation: what is predicted above thresholds, and the area under curves of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from espalier.errors import InvalidArgument
from espalier.graph import Tensor
from espalier.keras.lowering import Lowering, Value
from espalier.keras.metric import Metric
from espalier.npz import Array

_EPSILON = 1e-7


class ConfusionMetric(Metric):
    """Base of metrics that `evaluate` and validation compute from the predictions; steps do not report them.

    A state has four rows (true and false positives, true and false negatives) with one element for each threshold.
    """

    def __init__(self, thresholds: Sequence[float], name: str | None = None, dtype: Any = None):
        super().__init__(name, dtype)
        self._thresholds = np.asarray(thresholds, np.float64)

    def lower(self, g: Lowering, target: Tensor, prediction: Value, weights: Tensor | None = None) -> Tensor:
        """Never called: this is no mean over examples."""
        raise NotImplementedError

    def counts(self, target: Array, prediction: Array, weights: Array | None) -> Array:
        """What a batch adds to the state. `weights` has one number for each example."""
        yes = (np.asarray(target).reshape(prediction.shape) != 0).ravel()
        each = self._weights(prediction.shape, weights).ravel()
        count = len(self._thresholds)
        # Above how many thresholds an element is.
        above = self._above(np.asarray(prediction, np.float32).ravel())
        rows = []
        for which in (yes, ~yes):
            found = np.bincount(above, each * which, minlength=count + 1)
            rows.append(found[::-1].cumsum()[::-1][1:])
        totals = [(each * which).sum() for which in (yes, ~yes)]
        return np.stack([rows[0], rows[1], totals[1] - rows[1], totals[0] - rows[0]])

    def result(self, state: Array) -> float:
        """The metric of a sum of counts."""
        raise NotImplementedError

    def _above(self, prediction: Array) -> Array:
        return np.searchsorted(self._thresholds.astype(np.float32), prediction, side="left")

    def _weights(self, shape: Sequence[int], weights: Array | None) -> Array:
        if weights is None:
            return np.ones(shape)
        wide = np.asarray(weights, np.float64).reshape(-1, *(1,) * (len(shape) - 1))
        return np.broadcast_to(wide, tuple(shape))


def _ratio(a: Array, b: Array) -> Array:
    return np.divide(a, b, out=np.zeros_like(a), where=b != 0)


class AUC(ConfusionMetric):
    """The area under the ROC or the precision-recall curve, by thresholds as in Keras.

    All elements of an output count alike; multi_label=True and curve="PRGAIN" are refused.
    """

    def __init__(
        self,
        num_thresholds: int = 200,
        curve: str = "ROC",
        summation_method: str = "interpolation",
        name: str | None = None,
        dtype: Any = None,
        thresholds: Sequence[float] | None = None,
        multi_label: bool = False,
        num_labels: int | None = None,
        label_weights: Sequence[float] | None = None,
        from_logits: bool = False,
    ):
        if multi_label or num_labels:
            raise InvalidArgument("AUC: multi_label=True is not supported: give each label an output and an AUC")
        self.curve = str(getattr(curve, "value", curve)).upper()
        if self.curve not in ("ROC", "PR"):
            raise InvalidArgument(f"AUC: curve={curve!r}; accepted are ROC and PR")
        self.summation_method = str(getattr(summation_method, "value", summation_method)).lower()
        if self.summation_method not in ("interpolation", "minoring", "majoring"):
            raise InvalidArgument(
                f"AUC: summation_method={summation_method!r}; accepted are interpolation, minoring and majoring"
            )
        if thresholds is None:
            if num_thresholds <= 1:
                raise InvalidArgument(f"AUC: num_thresholds={num_thresholds}; accepted: 2 or more")
            inner = [i / (num_thresholds - 1) for i in range(1, num_thresholds - 1)]
        else:
            inner = sorted(float(t) for t in thresholds)
            if inner and not 0 <= inner[0] <= inner[-1] <= 1:
                raise InvalidArgument("AUC: thresholds lie from 0 to 1")
        super().__init__([-_EPSILON, *inner, 1 + _EPSILON], name, dtype)
        self.num_thresholds = len(inner) + 2
        even = np.linspace(0, 1, self.num_thresholds)
        self._even = self.num_thresholds >= 3 and np.allclose([0, *inner, 1], even, atol=_EPSILON)
        self.label_weights, self.from_logits = label_weights, bool(from_logits)

    def _above(self, prediction: Array) -> Array:
        if self.from_logits:
            with np.errstate(over="ignore"):
                prediction = 1 / (1 + np.exp(-prediction))
        low, high = (float(prediction.min()), float(prediction.max())) if prediction.size else (0.0, 0.0)
        if not (low >= 0 and high <= 1):
            raise InvalidArgument(
                f"metric {self.name}: predictions go from {low:g} to {high:g}, probabilities from 0 to 1: end the "
                "output in a sigmoid or softmax, or give AUC(from_logits=True)"
            )
        if not self._even:
            return super()._above(prediction)
        buckets = np.ceil(prediction * np.float32(self.num_thresholds - 1)).astype(np.int64)
        above: Array = np.maximum(buckets, 1)
        return above

    def _weights(self, shape: Sequence[int], weights: Array | None) -> Array:
        each = super()._weights(shape, weights)
        return each if self.label_weights is None else each * np.asarray(self.label_weights, np.float64)

    def result(self, state: Array) -> float:
        """As ConfusionMetric."""
        tp, fp, tn, fn = state
        if self.curve == "PR" and self.summation_method == "interpolation":
            return self._between_points(tp, fp, fn)
        recall = _ratio(tp, tp + fn)
        x, y = (_ratio(fp, fp + tn), recall) if self.curve == "ROC" else (recall, _ratio(tp, tp + fp))
        if self.summation_method == "interpolation":
            heights = (y[:-1] + y[1:]) / 2
        else:
            heights = (np.minimum if self.summation_method == "minoring" else np.maximum)(y[:-1], y[1:])
        return float(((x[:-1] - x[1:]) * heights).sum())

    @staticmethod
    def _between_points(tp: Array, fp: Array, fn: Array) -> float:
        # Between two thresholds true positives grow linearly with all positives, precision does not (Davis and
        # Goadrich 2006): the integral of (line through the two points) / positives.
        positives = tp + fp
        a, b = positives[1:], positives[:-1]
        slope = _ratio(tp[:-1] - tp[1:], b - a)
        offset = tp[1:] - slope * a
        both = (a > 0) & (b > 0)
        growth = np.log(np.divide(b, a, out=np.ones_like(a), where=both))
        areas = slope * (tp[:-1] - tp[1:] + offset * growth)
        return float(_ratio(areas, (tp + fn)[1:]).sum())


class _AtOneThreshold(ConfusionMetric):
    def __init__(self, thresholds: Any = None, name: str | None = None, dtype: Any = None):
        given = [0.5] if thresholds is None else np.atleast_1d(thresholds).tolist()
        if len(given) != 1 or not 0 <= given[0] <= 1:
            raise InvalidArgument(f"{type(self).__name__}: thresholds={thresholds!r}; accepted: one from 0 to 1")
        super().__init__(given, name, dtype)


class _Rate(_AtOneThreshold):
    # A part of the positives, predicted or true.
    def __init__(
        self,
        thresholds: Any = None,
        top_k: int | None = None,
        class_id: int | None = None,
        name: str | None = None,
        dtype: Any = None,
    ):
        if top_k is not None:
            raise InvalidArgument(f"{type(self).__name__}: top_k={top_k} is not supported")
        super().__init__(thresholds, name, dtype)
        self.class_id = class_id

    def counts(self, target: Array, prediction: Array, weights: Array | None) -> Array:
        """As ConfusionMetric."""
        target = np.asarray(target).reshape(prediction.shape)
        if self.class_id is not None:
            target, prediction = target[..., self.class_id], prediction[..., self.class_id]
        return super().counts(target, prediction, weights)


class Precision(_Rate):
    """Part of what is predicted above the threshold that is true."""

    def result(self, state: Array) -> float:
        """As ConfusionMetric."""
        return float(_ratio(state[0], state[0] + state[1])[0])


class Recall(_Rate):
    """Part of what is true that is predicted above the threshold."""

    def result(self, state: Array) -> float:
        """As ConfusionMetric."""
        return float(_ratio(state[0], state[0] + state[3])[0])


class TruePositives(_AtOneThreshold):
    """Number, or sum of weights, of what is true and predicted above the threshold."""

    def result(self, state: Array) -> float:
        """As ConfusionMetric."""
        return float(state[0][0])


class FalsePositives(_AtOneThreshold):
    """Number, or sum of weights, of what is predicted above the threshold and not true."""

    def result(self, state: Array) -> float:
        """As ConfusionMetric."""
        return float(state[1][0])


class TrueNegatives(_AtOneThreshold):
    """Number, or sum of weights, of what is not true, and not predicted above the threshold."""

    def result(self, state: Array) -> float:
        """As ConfusionMetric."""
        return float(state[2][0])


class FalseNegatives(_AtOneThreshold):
    """Number, or sum of weights, of what is true, and not predicted above the threshold."""

    def result(self, state: Array) -> float:
        """As ConfusionMetric."""
        return float(state[3][0])


__all__ = [
    "AUC",
    "ConfusionMetric",
    "FalseNegatives",
    "FalsePositives",
    "Precision",
    "Recall",
    "TrueNegatives",
    "TruePositives",
]
