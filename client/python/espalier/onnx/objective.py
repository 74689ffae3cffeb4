"""What training an ONNX model minimizes and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from espalier.errors import InvalidArgument
from espalier.graph import AttributeValue, _attribute
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
    """

    weight: float = 1.0

    def __init__(self, op: str, output: str = "", weight: float = 1.0, **attributes: AttributeValue):
        for name in ("class_weight", "class_weights", "weights"):
            if name in attributes:
                raise InvalidArgument(
                    f"loss {op}: {name}: an ONNX model's loss has no weights of classes; train the module by "
                    "espalier.torch, whose losses have them, or a model of espalier.keras with fit(class_weight=...)"
                )
        super().__init__(op, output, **attributes)
        object.__setattr__(self, "weight", float(weight))
        if not self.weight > 0:
            raise InvalidArgument(f"loss {op}: weight {weight}; accepted: more than 0")

    def head(self) -> graph_pb2.Head:
        """The message."""
        made = super().head()
        if self.weight != 1:
            made.weight = self.weight
        return made


Losses = str | Loss | Sequence[str | Loss]
Metrics = str | Metric | Sequence[str | Metric]


def _several(given: Any, kind: type[Metric], what: str) -> list[Metric]:
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


def make_objective(loss: Losses, metrics: Metrics | None) -> graph_pb2.Objective:
    """The message. metrics: None is the accuracy of sparse categorical cross-entropy, and nothing of other losses."""
    losses = _several(loss, Loss, "loss")
    if not losses:
        raise InvalidArgument("loss is empty; training minimizes at least one")
    if metrics is None:
        metrics = ["accuracy"] if losses[0].op == DEFAULT_LOSS else []
    reported = _several(metrics, Metric, "metrics")
    return graph_pb2.Objective(losses=[head.head() for head in losses], metrics=[head.head() for head in reported])
