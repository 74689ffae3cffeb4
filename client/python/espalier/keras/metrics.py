"""Metrics: means over the examples of a step, and those of confusion_metrics, with Keras' names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from espalier.errors import InvalidArgument
from espalier.graph import Tensor
from espalier.keras import backend, losses
from espalier.keras.confusion_metrics import (
    AUC,
    FalseNegatives,
    FalsePositives,
    Precision,
    Recall,
    TrueNegatives,
    TruePositives,
)
from espalier.keras.lowering import Lowering, Value
from espalier.keras.metric import Metric
from espalier.keras.serialization import find, named, of_keras


def _scores(g: Lowering, prediction: Value) -> Tensor:
    # The order of classes is that of the logits.
    if prediction.logits is not None and prediction.logits[0] == "softmax":
        return g.plain(prediction.logits[1])
    return g.plain(prediction)


def _call(g: Lowering, op: str, operands: list[Tensor], weights: Tensor | None, **attributes: Any) -> Tensor:
    return g.op(op, [*operands, *([] if weights is None else [weights])], attributes, shape=())


class SparseCategoricalAccuracy(Metric):
    """Part of integer labels whose prediction is the largest."""

    integer_labels = True

    def lower(self, g: Lowering, target: Tensor, prediction: Value, weights: Tensor | None = None) -> Tensor:
        """As Metric."""
        return _call(g, "accuracy", [_scores(g, prediction), target], weights)


class CategoricalAccuracy(Metric):
    """Part of rows in which target and prediction are largest at the same place."""

    def lower(self, g: Lowering, target: Tensor, prediction: Value, weights: Tensor | None = None) -> Tensor:
        """As Metric."""
        return _call(g, "categorical_accuracy", [_scores(g, prediction), target], weights)


class BinaryAccuracy(Metric):
    """Part of elements in which prediction > threshold says what target does."""

    def __init__(self, name: str | None = None, dtype: Any = None, threshold: float = 0.5):
        super().__init__(name, dtype)
        self.threshold = float(threshold)

    def lower(self, g: Lowering, target: Tensor, prediction: Value, weights: Tensor | None = None) -> Tensor:
        """As Metric."""
        sigmoid = prediction.logits is not None and prediction.logits[0] == "sigmoid"
        if sigmoid and self.threshold == 0.5:
            assert prediction.logits is not None
            logits = g.plain(prediction.logits[1])
            return _call(g, "binary_accuracy", [logits, target], weights, threshold=0.0, from_logits=True)
        return _call(
            g, "binary_accuracy", [g.plain(prediction), target], weights, threshold=self.threshold, from_logits=False
        )


class SparseTopKCategoricalAccuracy(Metric):
    """Part of integer labels whose prediction is among the k largest."""

    integer_labels = True

    def __init__(self, k: int = 5, name: str | None = None, dtype: Any = None):
        super().__init__(name, dtype)
        self.k = int(k)

    def lower(self, g: Lowering, target: Tensor, prediction: Value, weights: Tensor | None = None) -> Tensor:
        """As Metric."""
        return _call(g, "top_k_accuracy", [_scores(g, prediction), target], weights, k=self.k)


class TopKCategoricalAccuracy(Metric):
    """Part of rows whose largest target is among the k largest predictions."""

    def __init__(self, k: int = 5, name: str | None = None, dtype: Any = None):
        super().__init__(name, dtype)
        self.k = int(k)

    def lower(self, g: Lowering, target: Tensor, prediction: Value, weights: Tensor | None = None) -> Tensor:
        """As Metric."""
        shape = target.shape or ()
        attributes = {"axis": len(shape) - 1, "keepdims": False}
        labels = g.op("arg_max", [target], attributes, shape=shape[:-1], dtype="int64")
        return _call(g, "top_k_accuracy", [_scores(g, prediction), labels], weights, k=self.k)


class RootMeanSquaredError(Metric):
    """Root of the mean of squared differences; of an epoch the mean of its steps' roots."""

    def lower(self, g: Lowering, target: Tensor, prediction: Value, weights: Tensor | None = None) -> Tensor:
        """As Metric."""
        return _call(g, "root_mean_squared_error", [g.plain(prediction), target], weights)


class CosineSimilarity(Metric):
    """The cosine of the angle between target and prediction."""

    def __init__(self, name: str | None = None, dtype: Any = None, axis: int = -1):
        super().__init__(name, dtype)
        self._minus = losses.CosineSimilarity(axis)

    def lower(self, g: Lowering, target: Tensor, prediction: Value, weights: Tensor | None = None) -> Tensor:
        """As Metric."""
        minus = self._minus.lower(g, target, prediction, weights)
        return g.op("neg", [minus], shape=())


class LossMetric(Metric):
    """A loss that is reported."""

    def __init__(self, loss: Any, name: str | None = None):
        self._loss = losses.get(loss)
        super().__init__(name or self._loss.name)
        self.integer_labels = self._loss.integer_labels

    def lower(self, g: Lowering, target: Tensor, prediction: Value, weights: Tensor | None = None) -> Tensor:
        """As Metric."""
        return self._loss.lower(g, target, prediction, weights)


def _of_loss(name: str) -> Callable[..., Metric]:
    made = losses.CLASSES[name]

    def make(name: str | None = None, dtype: Any = None, **arguments: Any) -> Metric:
        return LossMetric(made(**arguments), name)

    make.__name__ = name
    make.__doc__ = f"The loss {name} as a metric."
    return make


MeanSquaredError = _of_loss("MeanSquaredError")
MeanAbsoluteError = _of_loss("MeanAbsoluteError")
MeanAbsolutePercentageError = _of_loss("MeanAbsolutePercentageError")
MeanSquaredLogarithmicError = _of_loss("MeanSquaredLogarithmicError")
LogCoshError = _of_loss("LogCosh")
KLDivergence = _of_loss("KLDivergence")
Poisson = _of_loss("Poisson")
Hinge = _of_loss("Hinge")
SquaredHinge = _of_loss("SquaredHinge")
CategoricalHinge = _of_loss("CategoricalHinge")
CategoricalCrossentropy = _of_loss("CategoricalCrossentropy")
SparseCategoricalCrossentropy = _of_loss("SparseCategoricalCrossentropy")
BinaryCrossentropy = _of_loss("BinaryCrossentropy")

CLASSES: dict[str, Callable[..., Metric]] = {}
for _class in (
    SparseCategoricalAccuracy,
    CategoricalAccuracy,
    BinaryAccuracy,
    SparseTopKCategoricalAccuracy,
    TopKCategoricalAccuracy,
    RootMeanSquaredError,
    CosineSimilarity,
    AUC,
    Precision,
    Recall,
    TruePositives,
    TrueNegatives,
    FalsePositives,
    FalseNegatives,
):
    CLASSES[_class.__name__] = _class
    CLASSES[backend.snake_case(_class.__name__)] = _class
for _name in losses.CLASSES:
    CLASSES.setdefault(_name, _of_loss(_name))

_ACCURACIES: dict[str, Callable[..., Metric]] = {"accuracy": CategoricalAccuracy, "acc": CategoricalAccuracy}

# Metrics of Keras that are no means over the examples of a step.
_NOT_MEANS = (
    "F1Score",
    "FBetaScore",
    "IoU",
    "MeanIoU",
    "BinaryIoU",
    "OneHotIoU",
    "OneHotMeanIoU",
    "PrecisionAtRecall",
    "R2Score",
    "RecallAtPrecision",
    "SensitivityAtSpecificity",
    "SpecificityAtSensitivity",
)


def _refuse(name: str) -> InvalidArgument:
    return InvalidArgument(
        f"metric {name} is no mean over examples, which is what a job reports: accepted are "
        f"{', '.join(sorted({c.__name__ for c in CLASSES.values() if isinstance(c, type)}))} and losses"
    )


def get(identifier: Any, integer_labels: bool, classes: int | None) -> Metric:
    """The metric of a name, configuration or object.

    "accuracy" is chosen as Keras does: by integer labels, by one output (binary), or by the largest element.
    """
    identifier = of_keras(identifier)
    name = identifier if isinstance(identifier, str) else getattr(identifier, "__name__", "")
    if isinstance(identifier, str) and identifier.lower() in ("accuracy", "acc"):
        if integer_labels:
            return SparseCategoricalAccuracy(identifier)
        return BinaryAccuracy(identifier) if classes == 1 else CategoricalAccuracy(identifier)
    config = named(identifier)
    made = config[0] if config is not None else name or type(identifier).__name__
    if made in _NOT_MEANS or made in tuple(backend.snake_case(n) for n in _NOT_MEANS):
        raise _refuse(made)
    if isinstance(identifier, losses.Loss):
        return LossMetric(identifier)
    if isinstance(identifier, str) and identifier in CLASSES:
        return CLASSES[identifier](name=identifier)
    if callable(identifier) and not isinstance(identifier, (type, Metric)) and name in CLASSES:
        identifier = name
    # "accuracy" and "acc" were looked for above: here they are names that others are similar to.
    found: Metric = find("metric", identifier, {**CLASSES, **_ACCURACIES}, Metric)
    return found


def __getattr__(name: str) -> Any:
    if name in _NOT_MEANS:
        raise _refuse(name)
    raise AttributeError(f"espalier.keras.metrics has no {name}")
