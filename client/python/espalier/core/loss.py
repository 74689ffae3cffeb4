"""What `compile` adds to a model's graph: labels, the loss, metrics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from espalier.core.enums import LossType, MetricsType
from espalier.core.inline import inline
from espalier.core.layer import Tensor
from espalier.errors import InvalidArgument
from espalier.graph import Graph
from espalier.graph import Tensor as Value
from espalier.notes import warn

LABEL = "label"
_SPARSE = LossType.LOSS_SPARSE_CATEGORICAL_CROSSENTROPY
_CATEGORICAL = LossType.LOSS_CATEGORICAL_CROSSENTROPY
_LOSSES = {
    "categorical_crossentropy": _CATEGORICAL,
    "sparse_categorical_crossentropy": _SPARSE,
    "mean_squared_error": LossType.LOSS_MEAN_SQUARED_ERROR_AVG_REDUCE,
    "mse": LossType.LOSS_MEAN_SQUARED_ERROR_AVG_REDUCE,
    "identity": LossType.LOSS_IDENTITY,
}
_NAMES = {
    MetricsType.METRICS_ACCURACY: "accuracy",
    MetricsType.METRICS_CATEGORICAL_CROSSENTROPY: "categorical_crossentropy",
    MetricsType.METRICS_SPARSE_CATEGORICAL_CROSSENTROPY: "sparse_categorical_crossentropy",
    MetricsType.METRICS_MEAN_SQUARED_ERROR: "mean_squared_error",
    MetricsType.METRICS_ROOT_MEAN_SQUARED_ERROR: "root_mean_squared_error",
    MetricsType.METRICS_MEAN_ABSOLUTE_ERROR: "mean_absolute_error",
}


def loss_type_of(given: LossType | str | None) -> LossType:
    """The loss of `compile`. InvalidArgument for one that there is not."""
    if isinstance(given, LossType):
        return given
    if isinstance(given, str) and given.lower() in _LOSSES:
        return _LOSSES[given.lower()]
    accepted = ", ".join(loss.name for loss in LossType)
    raise InvalidArgument(f"compile: loss_type {given!r}; accepted: {accepted}, or the names {', '.join(_LOSSES)}")


def metric_of(given: MetricsType | str) -> MetricsType:
    """A metric of `compile`. InvalidArgument for one that there is not."""
    if isinstance(given, MetricsType):
        return given
    for metric, name in _NAMES.items():
        if isinstance(given, str) and given.lower() == name:
            return metric
    raise InvalidArgument(
        f"compile: metric {given!r}; accepted: {', '.join(metric.name for metric in _NAMES)}, or the names "
        f"{', '.join(_NAMES.values())}"
    )


@dataclass
class Compiled:
    """A model's graph with its loss."""

    graph: Graph
    values: dict[int, Value]  # what each value of the model's own graph is in this one
    label: Tensor | None  # None: the loss needs none


def add_loss(model: Graph, batch: int, final: Tensor, loss: LossType, metrics: list[MetricsType]) -> Compiled:
    """A copy of the model's graph with labels, the loss and metrics of its result. InvalidArgument as compile."""
    graph = Graph(model.proto.name)
    values = inline(graph, model)
    if final.dtype != "float32":
        raise InvalidArgument(
            f"compile: the last layer's result {final!r} is no DT_FLOAT, of which losses are computed"
        )
    if final.batch_dim != 0 or final.dims[0] % batch:
        raise InvalidArgument(f"compile: dimension 0 of the last layer's result {final!r} does not follow the batch")
    head = _Head(graph, values, final, loss, batch)
    scalar = head.loss()
    graph.output("loss", scalar)
    for metric in dict.fromkeys(metrics):
        graph.output(_NAMES[metric], head.metric(metric))
    graph.output("output", values[final.value.index])
    return Compiled(graph, values, head.label)


class _Head:
    """Loss and metrics of one tensor."""

    def __init__(self, graph: Graph, values: dict[int, Value], final: Tensor, loss: LossType, batch: int):
        self.graph, self._values, self._final, self._type = graph, values, final, loss
        self._batch = batch
        self.label: Tensor | None = None
        self._labels: Value | None = None
        self._prediction = values[final.value.index]
        if loss != LossType.LOSS_IDENTITY:
            self._make_label()

    def _make_label(self) -> None:
        # Several rows of the result may belong to one example: [N * k, ...] has labels [N, k, ...].
        dims, sparse = self._final.dims, self._type == _SPARSE
        rows = dims[0] // self._batch
        rest = list(dims[1:-1] if sparse else dims[1:])
        per_example = ([rows] if rows > 1 else []) + rest
        value = self.graph.input(LABEL, (None, *per_example), "int32" if sparse else "float32")
        shown = [*dims[:-1], 1] if sparse else list(dims)
        self.label = Tensor(value, shown, "int32" if sparse else "float32")
        self._labels = value
        if rows > 1:
            self._labels = self._op("reshape", [value], {"shape": [-1, *rest]})

    def _op(self, op: str, inputs: list[Any], attributes: dict[str, Any] | None = None) -> Value:
        return self.graph.op(op, inputs, attributes, name=f"loss/{op}", source="")

    def _logits(self) -> Value:
        """What crossentropies are computed on: the input of the softmax in which the model ends."""
        if self._final.logits is not None:
            return self._values[self._final.logits.value.index]
        return self._prediction

    def loss(self) -> Value:
        """The scalar that training minimizes."""
        kind = self._type
        if kind in (_SPARSE, _CATEGORICAL) and self._final.logits is None:
            owner = self._final.owner_op
            last = f"{owner.name} ({owner.op_type.name.lower()})" if owner is not None else self._final.name
            warn(
                f"{kind.name}: the model ends in {last}, not in softmax over the last dimension; its result is taken "
                "as logits. If it holds logarithms of probabilities, that is the same"
            )
        if kind == _SPARSE:
            return self._op("sparse_categorical_crossentropy", [self._logits(), self._labels])
        if kind == _CATEGORICAL:
            return self._op("categorical_crossentropy", [self._logits(), self._labels])
        if kind == LossType.LOSS_IDENTITY:
            return self._op("identity_loss", [self._prediction])
        reduction = "sum" if kind == LossType.LOSS_MEAN_SQUARED_ERROR_SUM_REDUCE else "mean"
        return self._op("mean_squared_error", [self._prediction, self._labels], {"reduction": reduction})

    def metric(self, metric: MetricsType) -> Value:
        """A scalar to report."""
        sparse, name = self._type == _SPARSE, metric.name
        if self._labels is None:
            raise InvalidArgument(f"compile: {name} compares with labels, which LOSS_IDENTITY has none of")
        if metric == MetricsType.METRICS_ACCURACY:
            op = "accuracy" if sparse else "categorical_accuracy"
            return self._op(op, [self._logits(), self._labels])
        if metric == MetricsType.METRICS_SPARSE_CATEGORICAL_CROSSENTROPY:
            if not sparse:
                raise InvalidArgument(
                    f"compile: {name} takes integer labels; {self._type.name} has labels like outputs"
                )
            return self._op("sparse_categorical_crossentropy", [self._logits(), self._labels])
        if metric == MetricsType.METRICS_CATEGORICAL_CROSSENTROPY:
            if sparse:
                raise InvalidArgument(f"compile: {name} takes labels like the output; {self._type.name} has integers")
            return self._op("categorical_crossentropy", [self._logits(), self._labels])
        target = self._labels
        if sparse:
            target = self._op("one_hot", [target], {"depth": self._final.dims[-1], "axis": -1, "dtype": "f32"})
        return self._op(_NAMES[metric], [self._prediction, target])


__all__ = ["LABEL", "Compiled", "add_loss", "loss_type_of", "metric_of"]
