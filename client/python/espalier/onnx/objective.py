"""What training an ONNX model minimizes and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from espalier.errors import InvalidArgument
from espalier.graph import AttributeValue, _attribute
from espalier.npz import Array
from espalier.v1 import graph_pb2

DEFAULT_LOSS = "sparse_categorical_crossentropy"
# Operators of the daemon, by other names that frameworks use.
_ALIASES = {
    "mse": "mean_squared_error",
    "mae": "mean_absolute_error",
    "nll_loss": "negative_log_likelihood",
    "cross_entropy": DEFAULT_LOSS,
    "bce": "binary_crossentropy",
    "acc": "accuracy",
    "rmse": "root_mean_squared_error",
}
ClassWeights = Mapping[int, float] | Sequence[float] | Array
_MOST_CLASSES = 1 << 24  # of a dict: a typing error must not become an array of 8 TB
_NUMBERS = ("label_smoothing",)  # attributes that are no integers, even where Python writes one


@dataclass(frozen=True)
class Metric:
    """A metric or loss that is reported: Metric("top_k_accuracy", k=3), Metric("accuracy", output="aux").

    `output` is one of the model's; empty: that of the first loss. Attributes are the operator's
    (docs/reference/operators.md); those of classes also take from_logits (whether the output holds logits or
    probabilities; by default as the operators before it say) and axis (the dimension of the classes).
    """

    op: str
    output: str = ""
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)

    def __init__(self, op: str, output: str = "", **attributes: AttributeValue):
        object.__setattr__(self, "op", _ALIASES.get(op, op))
        object.__setattr__(self, "output", output)
        object.__setattr__(self, "attributes", attributes)

    def head(self) -> graph_pb2.Head:
        """The message."""
        made = graph_pb2.Head(op=self.op, output=self.output)
        for name, value in self.attributes.items():
            made.attributes[name].CopyFrom(_attribute(float(value) if name in _NUMBERS else value))  # type: ignore[arg-type]
        return made


@dataclass(frozen=True)
class Loss(Metric):
    """A loss: Loss("sparse_categorical_crossentropy", label_smoothing=0.1, ignore_index=0).

    Several add up, each times its weight: [Loss("mean_squared_error", "size"), Loss("...", "kind", weight=0.3)]. Empty
    `output`: the model's first one. Attributes as Metric; reduction and mean_over say what is averaged.

    class_weight: one number for each class, or a dict by class as Keras takes it: a class below the highest one that it
    lacks weighs 1. The mean is divided by the sum of the labels' weights, as by CrossEntropyLoss(weight=) of PyTorch;
    mean_over="all" divides by the number of labels, as Keras.
    """

    weight: float = 1.0
    class_weight: tuple[float, ...] = ()

    def __init__(
        self,
        op: str,
        output: str = "",
        weight: float = 1.0,
        class_weight: ClassWeights | None = None,
        **attributes: AttributeValue,
    ):
        for name in ("class_weights", "weights"):
            if name in attributes:
                raise InvalidArgument(f"loss {op}: {name} is no attribute of a loss; did you mean class_weight?")
        super().__init__(op, output, **attributes)
        object.__setattr__(self, "weight", float(weight))
        if not self.weight > 0:
            raise InvalidArgument(f"loss {op}: weight {weight}; accepted: more than 0")
        object.__setattr__(self, "class_weight", () if class_weight is None else _by_class(op, class_weight))

    def head(self) -> graph_pb2.Head:
        """The message."""
        made = super().head()
        if self.weight != 1:
            made.weight = self.weight
        made.class_weights.extend(self.class_weight)
        return made


def _by_class(op: str, given: ClassWeights) -> tuple[float, ...]:
    """One weight for each class. The coordinator checks what they are, and their number."""
    if isinstance(given, Mapping):
        wrong = [c for c in given if not isinstance(c, (int, np.integer)) or not 0 <= c < _MOST_CLASSES]
        if wrong or not given:
            raise InvalidArgument(
                f"loss {op}: class_weight is a dict with {f'the key {wrong[0]!r}' if wrong else 'nothing in it'}; "
                f"accepted: {{class: weight}}, with integers from 0 to {_MOST_CLASSES - 1}"
            )
        weights = np.ones(int(max(given)) + 1)
        for label, weight in given.items():
            try:
                weights[label] = weight
            except (TypeError, ValueError):
                raise InvalidArgument(f"loss {op}: class_weight[{label}] is {weight!r}; accepted: a number") from None
    else:
        try:
            weights = np.asarray(given, np.float64)
        except (TypeError, ValueError):
            raise InvalidArgument(
                f"loss {op}: class_weight is {given!r}; accepted: one number for each class, or {{class: weight}}"
            ) from None
    if weights.ndim != 1 or not len(weights):
        raise InvalidArgument(
            f"loss {op}: class_weight has the shape {list(weights.shape)}; accepted: one number for each class"
        )
    return tuple(float(weight) for weight in weights)


Losses = str | Loss | Sequence[str | Loss]
Metrics = str | Metric | Sequence[str | Metric]
Kind = TypeVar("Kind", bound=Metric)


def _several(given: Any, kind: type[Kind], what: str) -> list[Kind]:
    items = list(given) if isinstance(given, (list, tuple)) else [given]
    found = []
    for item in items:
        if isinstance(item, str):
            found.append(kind(item))
        elif isinstance(item, kind):
            found.append(item)
        else:
            raise InvalidArgument(
                f"{what} holds a {type(item).__name__}; accepted: the name of an operator, an "
                f"espalier.onnx.{kind.__name__}, or a list of these"
            )
    return found


def make_objective(
    loss: Losses, metrics: Metrics | None, class_weight: ClassWeights | None = None
) -> graph_pb2.Objective:
    """The message. metrics: None is the accuracy of sparse categorical cross-entropy, and nothing of other losses."""
    losses = _several(loss, Loss, "loss")
    if not losses:
        raise InvalidArgument("loss is empty; training minimizes at least one")
    if class_weight is not None:
        if len(losses) > 1 or losses[0].class_weight:
            raise InvalidArgument(
                "class_weight is of the only loss, where that has none; of several losses give each its own: "
                "espalier.onnx.Loss(..., class_weight=...)"
            )
        only = losses[0]
        losses = [Loss(only.op, only.output, only.weight, class_weight, **only.attributes)]
    if metrics is None:
        metrics = ["accuracy"] if losses[0].op == DEFAULT_LOSS else []
    reported = _several(metrics, Metric, "metrics")
    return graph_pb2.Objective(losses=[head.head() for head in losses], metrics=[head.head() for head in reported])
