"""Losses and metrics of a model's outputs, and the graph that computes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from espalier.errors import InvalidArgument
from espalier.graph import Tensor
from espalier.keras import arrays, losses, metrics, optimizers
from espalier.keras.arrays import COUNTED, SUM_WEIGHTS, WEIGHTS
from espalier.keras.confusion_metrics import ConfusionMetric
from espalier.keras.lowering import Lowering, Value
from espalier.keras.metric import Metric
from espalier.keras.serialization import named
from espalier.keras.tensor import Shape

if TYPE_CHECKING:
    from espalier.keras.network import Network

# Graphs with more bytes of values travel as a file, which holds all values.
_MOST_IN_GRAPH = 32 << 20


class Compiled:
    """What `compile` was told."""

    def __init__(self, optimizer: Any, loss: Any, loss_weights: Any, given: Any, weighted: Any):
        self.optimizer = optimizers.get(optimizer)
        self.loss, self.loss_weights = loss, loss_weights
        self.metrics, self.weighted_metrics = given, weighted
        for item in _leaves(loss):
            losses.get(item)
        self.named_metrics = [metrics.get(item, False, None) for item in _leaves([given, weighted])]
        # Names of what is computed from all predictions of an evaluation.
        self.of_predictions = [metric.name for metric in self.named_metrics if isinstance(metric, ConfusionMetric)]
        self.pointed_out = False  # whether the user was told of them


def _leaves(given: Any) -> list[Any]:
    if isinstance(given, Mapping) and named(given) is None:
        given = list(given.values())
    if isinstance(given, (list, tuple)):
        return [leaf for item in given for leaf in _leaves(item)]
    return [] if given is None else [given]


def per_output(what: str, given: Any, names: Sequence[str]) -> list[Any]:
    """One item for each output, of a single one, a list or a dict by the outputs' names."""
    if isinstance(given, Mapping) and named(given) is None:
        unknown = sorted(set(given) - set(names))
        if unknown:
            raise InvalidArgument(f"{what} names {unknown[0]!r}; the outputs are {', '.join(names)}")
        return [given.get(name) for name in names]
    if isinstance(given, (list, tuple)):
        if len(given) != len(names):
            raise InvalidArgument(f"{what} has {len(given)} items, the model {len(names)} outputs: {', '.join(names)}")
        return list(given)
    return [given] * len(names)


class Head:
    """Loss and metrics of one output."""

    def __init__(self, name: str, loss: losses.Loss | None, weight: float, shown: list[tuple[Any, bool]]):
        self.name = name
        self.loss, self.weight = loss, weight
        self.given = shown  # (metric as given, whether it is weighted)
        self.metrics: list[tuple[Metric, bool]] = []

    @property
    def has_target(self) -> bool:
        """Whether the output is compared with labels."""
        return (self.loss is not None and getattr(self.loss, "reads_target", True)) or bool(self.given)

    @property
    def sums(self) -> bool:
        """Whether the loss is a sum over the batch, not a mean."""
        return self.loss is not None and self.loss.reduction == "sum"

    def resolve(self, shape: Sequence[int | None]) -> bool:
        """Chooses the metrics for an output of this shape; returns whether labels are integers."""
        integer = self.loss is not None and self.loss.integer_labels
        self.metrics = [(metrics.get(m, integer, shape[-1]), weighted) for m, weighted in self.given]
        if self.loss is None and self.metrics:
            integer = bool(self.metrics[0][0].integer_labels)
        for metric, _ in self.metrics:
            if metric.integer_labels is not None and metric.integer_labels != integer:
                kind = "integer labels" if metric.integer_labels else "labels like the output"
                raise InvalidArgument(
                    f"output {self.name}: metric {metric.name} takes {kind}, its loss does not; give one of a kind"
                )
        return integer


def heads_of(compiled: Compiled, names: Sequence[str], who: str) -> list[Head]:
    """Losses and metrics of the outputs of these names. InvalidArgument if they do not go together."""
    loss = per_output("loss", compiled.loss, names)
    weights = per_output("loss_weights", compiled.loss_weights, names)
    if all(item is None for item in loss):
        raise InvalidArgument(f"{who}: compile was given no loss")
    shown: list[list[tuple[Any, bool]]] = [[] for _ in names]
    for weighted, given in ((False, compiled.metrics), (True, compiled.weighted_metrics)):
        for found, item in zip(shown, _metrics_per_output(given, names), strict=True):
            found += [(metric, weighted) for metric in item]
    return [
        Head(name, None if one is None else losses.get(one), 1.0 if w is None else float(w), found)
        for name, one, w, found in zip(names, loss, weights, shown, strict=True)
    ]


def _metrics_per_output(given: Any, names: Sequence[str]) -> list[list[Any]]:
    # One list for each output. A flat list belongs to the only output, or to every one.
    if given is None:
        return [[] for _ in names]
    if isinstance(given, Mapping) and named(given) is None:
        found = per_output("metrics", given, names)
    elif isinstance(given, (list, tuple)):
        nested = any(isinstance(item, (list, tuple)) for item in given)
        if nested or (len(names) > 1 and len(given) == len(names)):
            found = per_output("metrics", given, names)
        else:
            found = [list(given) for _ in names]
    else:
        found = [given for _ in names]
    return [[] if m is None else list(m) if isinstance(m, (list, tuple)) else [m] for m in found]


@dataclass(frozen=True)
class Report:
    """A value that the graph reports of each batch."""

    name: str
    weighted: bool = False  # a mean by the weights of the examples
    root: bool = False  # the root of a mean
    # Computed from this output's predictions and these labels in an evaluation; steps do not report it.
    metric: ConfusionMetric | None = None
    prediction: int = 0
    labels: str = ""


@dataclass
class LossGraph:
    """A model with its losses and metrics as a graph."""

    lowering: Lowering
    network: Network
    shapes: list[Shape]  # of the inputs
    heads: list[Head]
    targets: list[arrays.Target]
    weighted: bool  # it reads weights of examples
    counted: bool  # it also reads which examples count, so that a batch can be filled with others
    reports: list[Report]
    predictions: list[str]  # names of the outputs that predict, in the order of the model's outputs

    @property
    def sums(self) -> bool:
        """Whether a loss is a sum over the batch, which depends on the number of examples in it."""
        return any(head.sums for head in self.heads)


def loss_graph(
    model: Any,
    network: Network,
    shapes: Sequence[Any],
    heads: Sequence[Head],
    targets: Sequence[arrays.Target],
    weighted: bool,
    counted: bool = False,
) -> LossGraph:
    """The graph of a model with its losses and metrics, for inputs of these shapes.

    weighted, counted: as LossGraph; the inputs are WEIGHTS, COUNTED and, where a loss is a sum, SUM_WEIGHTS.
    """
    named = dict(zip(network.input_names(), shapes, strict=True))
    g, values = model.to_graph(named)
    _settle(g)
    weights = g.graph.input(WEIGHTS, (None,)) if weighted else None
    counts = g.graph.input(COUNTED, (None,)) if counted else None
    sums = g.graph.input(SUM_WEIGHTS, (None,)) if counted and any(head.sums for head in heads) else weights
    parts: list[tuple[str, Tensor, float]] = []
    shown: list[tuple[Report, Tensor | None]] = []
    several = len(heads) > 1
    for index, (head, target, value) in enumerate(zip(heads, targets, values, strict=True)):
        labels = target.input(g, several) if target.wanted else None
        prefix = f"{head.name}_" if several else ""
        with g.layer(f"{prefix}loss", ""):
            if head.loss is not None:
                if labels is None:
                    labels = value.tensor
                by = sums if head.sums else weights
                parts.append((f"{prefix}loss", head.loss.lower(g, labels, value, by), head.weight))
        for metric, is_weighted in head.metrics:
            assert labels is not None
            name = f"{prefix}{metric.name}"
            if is_weighted and any(report.name == name for report, _ in shown):
                name = f"weighted_{name}"  # as Keras
            if isinstance(metric, ConfusionMetric):
                report = Report(name, is_weighted, False, metric, index, target.column(several))
                shown.append((report, None))
                continue
            with g.layer(name, ""):
                scalar = metric.lower(g, labels, value, weights if is_weighted and weighted else counts)
            shown.append((Report(name, is_weighted, isinstance(metric, metrics.RootMeanSquaredError)), scalar))
    g.graph.output("loss", _total(g, parts, counts))
    if several:
        shown = [*((Report(name), scalar) for name, scalar, _ in parts), *shown]
    for report, shown_as in shown:
        if shown_as is not None:
            g.graph.output(report.name, shown_as)
    predictions = add_predictions(g, network, values)
    reports = [Report("loss"), *(report for report, _ in shown)]
    return LossGraph(g, network, list(shapes), list(heads), list(targets), weighted, counted, reports, predictions)


def add_predictions(g: Lowering, network: Network, values: Sequence[Value]) -> list[str]:
    """Names the model's outputs in the graph; returns the names, those of their layers where these are free."""
    taken = {output.name for output in g.graph.proto.outputs}
    names = []
    for wanted, value in zip(network.output_names(), values, strict=True):
        name = wanted
        while name in taken:
            name += ".output"
        taken.add(name)
        names.append(name)
        g.graph.output(name, g.plain(value))
    return names


def ensure_trainable(g: Lowering) -> None:
    """Lets the loss depend on a trainable weight, which a session wants, where the model has none: a factor of 1."""
    if any(variable.trainable for variable in g.variables.values()):
        return
    (loss,) = (output for output in g.graph.proto.outputs if output.name == "loss")
    one = g.graph.parameter("no_weights", data=np.ones((), np.float32))
    loss.value = g.broadcast("multiply", Tensor(g.graph, loss.value, "float32", ()), one).index


def _total(g: Lowering, parts: list[tuple[str, Tensor, float]], counts: Tensor | None) -> Tensor:
    scaled = [t if w == 1 else g.scalar("multiply_scalar", t, w) for _, t, w in parts]
    for value, regularizer in g.penalties:
        scaled += _penalty(g, value, regularizer, counts)
    total = scaled[0]
    for more in scaled[1:]:
        total = g.broadcast("add", total, more)
    return total


def _penalty(g: Lowering, value: Value, regularizer: Any, counts: Tensor | None) -> list[Tensor]:
    # Of activations: the sum over an example, the mean over the batch.
    x = value.tensor
    axes = list(range(1, len(x.shape or ())))
    found = []
    for op, factor in (("reduce_l1", regularizer.l1), ("reduce_sum_square", regularizer.l2)):
        if factor:
            each = g.reduce(op, g.unsqueeze(x, 1) if not axes else x, axes or [1])
            mean = g.op("identity_loss", [each, *([] if counts is None else [counts])], shape=())
            found.append(g.scalar("multiply_scalar", mean, factor))
    return found


def _settle(g: Lowering) -> None:
    # Where some weights have elements and the graph gets too large for a message, all get elements.
    parameters = [v for v in g.graph.proto.values if v.name in g.variables]
    if sum(len(v.data) for v in parameters) <= _MOST_IN_GRAPH:
        return
    for value in parameters:
        if not value.data:
            variable = g.variables[value.name]
            value.data = variable.layout.to_graph(variable.numpy()).tobytes()
            value.ClearField("initializer")


__all__ = [
    "Compiled",
    "Head",
    "LossGraph",
    "Report",
    "add_predictions",
    "ensure_trainable",
    "heads_of",
    "loss_graph",
    "per_output",
]
