"""compile and fit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from espalier import callbacks as callback_classes
from espalier import training as jobs
from espalier.errors import EspalierWarning, InvalidArgument
from espalier.graph import Tensor
from espalier.keras import arrays, backend, losses, metrics, optimizers
from espalier.keras.lowering import Lowering, Value
from espalier.v1 import program_pb2, training_pb2

if TYPE_CHECKING:
    from espalier.client import Client
    from espalier.keras.network import Network

# Graphs with more bytes of values travel as a file, which holds all values.
_MOST_IN_GRAPH = 32 << 20


class Compiled:
    """What `compile` was told."""

    def __init__(self, optimizer: Any, loss: Any, loss_weights: Any, given: Any, weighted: Any):
        self.optimizer = optimizers.get(optimizer)
        self.loss, self.loss_weights = loss, loss_weights
        self.metrics, self.weighted_metrics = given, weighted


def per_output(what: str, given: Any, names: Sequence[str]) -> list[Any]:
    """One item for each output, of a single one, a list or a dict by the outputs' names."""
    if isinstance(given, Mapping):
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
        self.metrics: list[tuple[metrics.Metric, bool]] = []

    @property
    def has_target(self) -> bool:
        """Whether the output is compared with labels."""
        return (self.loss is not None and getattr(self.loss, "reads_target", True)) or bool(self.given)

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


class Trainer:
    """The part of a model that trains it."""

    name: str
    _compiled: Compiled | None = None
    _network: Network | None
    history: Any = None
    job: Any = None
    stop_training = False
    _trained_before = False
    _default_batch_size = 32

    def compile(
        self,
        optimizer: Any = "rmsprop",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        run_eagerly: bool = False,
        steps_per_execution: int = 1,
        jit_compile: Any = "auto",
        auto_scale_loss: bool = True,
        **unknown: Any,
    ) -> None:
        """Says how to train. Losses and metrics: one, a list, or a dict by the outputs' names.

        A softmax or sigmoid at the end of the model is not applied twice: a loss with from_logits=False is computed on
        what it was applied to.
        """
        if unknown:
            raise InvalidArgument(f"compile: no argument {', '.join(map(repr, sorted(unknown)))}")
        if run_eagerly:
            raise InvalidArgument("compile: run_eagerly=True: a job runs a graph; there is no eager mode")
        if metrics is None and _has_names(loss_weights):
            # The third argument of Keras 2.
            loss_weights, metrics = None, loss_weights
        self._compiled = Compiled(optimizer, loss, loss_weights, metrics, weighted_metrics)
        self._trained_before = False

    @property
    def optimizer(self) -> Any:
        """The optimizer of `compile`."""
        return None if self._compiled is None else self._compiled.optimizer

    @property
    def plan(self) -> Any:
        """The plan by which the last job ran."""
        if self.job is None:
            raise InvalidArgument(f"{self.name} was not trained yet")
        return self.job.plan

    def _heads(self, network: Network) -> list[Head]:
        compiled = self._compiled
        if compiled is None:
            raise InvalidArgument(f"{self.name}: call compile(optimizer, loss, metrics) before fit")
        names = network.output_names()
        loss = per_output("loss", compiled.loss, names)
        weights = per_output("loss_weights", compiled.loss_weights, names)
        if all(item is None for item in loss):
            raise InvalidArgument(f"{self.name}: compile was given no loss")
        shown: list[list[tuple[Any, bool]]] = [[] for _ in names]
        for weighted, given in ((False, compiled.metrics), (True, compiled.weighted_metrics)):
            for found, item in zip(shown, _metrics_per_output(given, names), strict=True):
                found += [(metric, weighted) for metric in item]
        return [
            Head(name, None if one is None else losses.get(one), 1.0 if w is None else float(w), found)
            for name, one, w, found in zip(names, loss, weights, shown, strict=True)
        ]

    def fit(
        self,
        x: Any = None,
        y: Any = None,
        batch_size: int | None = None,
        epochs: int = 1,
        verbose: Any = "auto",
        callbacks: Sequence[Any] | None = None,
        validation_split: float = 0.0,
        validation_data: Any = None,
        shuffle: bool = True,
        class_weight: Mapping[int, float] | None = None,
        sample_weight: Any = None,
        initial_epoch: int = 0,
        steps_per_epoch: int | None = None,
        validation_steps: int | None = None,
        validation_batch_size: int | None = None,
        validation_freq: int = 1,
        *,
        client: Client | None = None,
        search: Mapping[str, object] | None = None,
        precision: str | None = None,
        seed: int | None = None,
        checkpoint_every: int = 0,
        job_name: str = "",
    ) -> Any:
        """Trains the model by a job and returns its History.

        x, y: arrays, lists of them or dicts by the names of inputs and outputs; or x alone: an iterable of (x, y) or
        (x, y, sample_weight) batches. Examples that do not fill a batch are skipped, different ones in every epoch.
        validation_split: this part of the examples, the last ones, is evaluated instead of trained on. validation_data:
        (x, y) or (x, y, sample_weight) to evaluate. That happens after every validation_freq-th epoch; History has the
        values as val_..., callbacks only those of the end.
        client, search, precision, checkpoint_every, job_name: as in espalier.fit.

        Weights have the trained elements afterwards. Each fit begins with new optimizer state. Errors as espalier.fit.
        """
        if initial_epoch:
            raise InvalidArgument(f"fit: initial_epoch={initial_epoch} is not supported; a job begins with epoch 0")
        if isinstance(validation_freq, bool) or not isinstance(validation_freq, int) or validation_freq < 1:
            raise InvalidArgument(f"fit: validation_freq={validation_freq!r}; accepted: an integer above 0")
        if validation_steps is not None or validation_batch_size is not None:
            raise InvalidArgument("fit: validation_steps and validation_batch_size: all validation examples are taken")
        if isinstance(batch_size, (list, tuple)) or isinstance(epochs, float):
            raise InvalidArgument(f"fit: batch_size={batch_size!r}, epochs={epochs!r}; accepted are integers")
        source = arrays.Source(x, y, sample_weight, class_weight)
        trained = None if source.examples is None else source.examples - int(source.examples * validation_split)
        if validation_data is not None:
            # As in Keras, they come before a split.
            trained, validation_split = source.examples, source.hold_out(validation_data)
        network = self._network_for(source)
        heads = self._heads(network)
        shapes = source.input_shapes(network)
        specs = network.infer([(shape, t.dtype) for shape, t in zip(shapes, network.inputs, strict=True)])
        integer = [head.resolve(shape) for head, (shape, _) in zip(heads, specs, strict=True)]
        targets = [
            arrays.Target(head.name, shape, label, head.loss, head.has_target)
            for head, (shape, _), label in zip(heads, specs, integer, strict=True)
        ]
        weighted = source.weighted
        g = self._loss_graph(network, shapes, heads, targets, weighted)
        size = int(batch_size or source.batch_size or self._default_batch_size)
        if trained is not None:
            size = max(1, min(size, trained))
        message = self._message(g)
        history = callback_classes.History()
        steps = None if steps_per_epoch is None else int(steps_per_epoch) * int(epochs)
        counted = 0 if trained is None else trained // size
        run = [history, *callback_classes.prepared(callbacks or (), self, int(epochs), steps_per_epoch, counted)]
        history.set_model(self)
        self.stop_training = False
        result = jobs.fit(
            g.graph,
            source.columns(network, targets),
            optimizer=message,
            batch_size=size,
            epochs=None if steps is not None else int(epochs),
            steps=steps,
            validation_split=validation_split,
            shuffle=bool(shuffle),
            seed=int(backend.generator().integers(1, 2**31)) if seed is None else int(seed),
            name=job_name,
            client=client,
            search=search,
            precision=precision,
            checkpoint_every=checkpoint_every,
            callbacks=run,
            extra=_validation(validation_freq, steps_per_epoch),
            steps_per_epoch=int(steps_per_epoch or 0),
            verbose=1 if verbose == "auto" else int(verbose),
        )
        self.job, self.history = result.job, history
        self._take(g, result)
        return history

    def fit_generator(self, generator: Any, steps_per_epoch: int | None = None, epochs: int = 1, **kwargs: Any) -> Any:
        """Keras 1's name of `fit` for an iterable of batches."""
        return self.fit(generator, steps_per_epoch=steps_per_epoch, epochs=epochs, **kwargs)

    def _network_for(self, source: arrays.Source) -> Network:
        if self._network is None:
            self._trace_inputs(source.input_structure())
        assert self._network is not None
        return self._network

    def _trace_inputs(self, structure: Any) -> None:
        raise NotImplementedError

    def _message(self, g: Lowering) -> program_pb2.Optimizer:
        assert self._compiled is not None
        message: program_pb2.Optimizer = self._compiled.optimizer.proto()
        for name, variable in g.variables.items():
            r = variable.regularizer
            if r is not None and variable.trainable and (r.l1 or r.l2):
                message.regularizers.add(parameter=name, l1=r.l1, l2=r.l2)
                message.report_penalties = True
        if self._trained_before and (message.name != "sgd" or message.attributes["momentum"].f > 0):
            warnings.warn(
                f"{self.name} is trained again: its weights go on, the moments of the optimizer begin anew",
                EspalierWarning,
                stacklevel=3,
            )
        return message

    def _loss_graph(
        self,
        network: Network,
        shapes: Sequence[Any],
        heads: Sequence[Head],
        targets: Sequence[arrays.Target],
        weighted: bool,
    ) -> Lowering:
        named = dict(zip(network.input_names(), shapes, strict=True))
        g, values = self.to_graph(named)
        _settle(g, self)
        weights = g.graph.input("sample_weight", (None,)) if weighted else None
        parts: list[tuple[str, Tensor, float]] = []
        reports: list[tuple[str, Tensor]] = []
        several = len(heads) > 1
        for head, target, value in zip(heads, targets, values, strict=True):
            labels = target.input(g, several) if target.wanted else None
            prefix = f"{head.name}_" if several else ""
            with g.layer(f"{prefix}loss", ""):
                if head.loss is not None:
                    if labels is None:
                        labels = value.tensor
                    parts.append((f"{prefix}loss", head.loss.lower(g, labels, value, weights), head.weight))
            for metric, is_weighted in head.metrics:
                assert labels is not None
                with g.layer(f"{prefix}{metric.name}", ""):
                    scalar = metric.lower(g, labels, value, weights if is_weighted else None)
                reports.append((f"{prefix}{metric.name}", scalar))
        g.graph.output("loss", self._total(g, parts))
        if several:
            reports = [(name, scalar) for name, scalar, _ in parts] + reports
        for name, scalar in reports:
            g.graph.output(name, scalar)
        for name, value in zip(network.output_names(), values, strict=True):
            if all(output.name != name for output in g.graph.proto.outputs):
                g.graph.output(name, g.plain(value))
        return g

    def to_graph(self, shapes: Any = None) -> tuple[Lowering, list[Value]]:
        """As Model."""
        raise NotImplementedError

    def _total(self, g: Lowering, parts: list[tuple[str, Tensor, float]]) -> Tensor:
        scaled = [t if w == 1 else g.scalar("multiply_scalar", t, w) for _, t, w in parts]
        for value, regularizer in g.penalties:
            scaled += _penalty(g, value, regularizer)
        total = scaled[0]
        for more in scaled[1:]:
            total = g.broadcast("add", total, more)
        return total

    def _take(self, g: Lowering, result: jobs.TrainingResult) -> None:
        if not result.model:
            warnings.warn(
                f"{self.name}: the training was stopped, so its job was cancelled; the model has the weights that it "
                "had before. checkpoint_every keeps those of the job: job.resume() goes on from them",
                EspalierWarning,
                stacklevel=3,
            )
            return
        self._trained_before = True
        for name, variable in g.variables.items():
            variable.assign_later(_fetch(result, name))


def _has_names(given: Any) -> bool:
    items = given.values() if isinstance(given, Mapping) else given if isinstance(given, (list, tuple)) else [given]
    return any(not isinstance(item, (int, float, type(None), np.generic)) for item in items)


def _validation(frequency: int, steps_per_epoch: int | None) -> Callable[[training_pb2.TrainingSpec], None]:
    def extra(spec: training_pb2.TrainingSpec) -> None:
        if not spec.dataset.holdout_fraction:
            return
        if steps_per_epoch is None:
            spec.validation.every_epochs = frequency
        else:
            spec.validation.every_steps = frequency * int(steps_per_epoch)

    return extra


def _fetch(result: jobs.TrainingResult, name: str) -> Any:
    return lambda: result.weights()[name]


def _settle(g: Lowering, model: Any) -> None:
    # Where some weights have elements and the graph gets too large for a message, all get elements.
    parameters = [v for v in g.graph.proto.values if v.name in g.variables]
    if sum(len(v.data) for v in parameters) <= _MOST_IN_GRAPH:
        return
    for value in parameters:
        if not value.data:
            variable = g.variables[value.name]
            value.data = variable.layout.to_graph(variable.numpy()).tobytes()
            value.ClearField("initializer")


def _penalty(g: Lowering, value: Value, regularizer: Any) -> list[Tensor]:
    # Of activations: the sum over an example, the mean over the batch.
    x = value.tensor
    axes = list(range(1, len(x.shape or ())))
    found = []
    for op, factor in (("reduce_l1", regularizer.l1), ("reduce_sum_square", regularizer.l2)):
        if factor:
            each = g.reduce(op, g.unsqueeze(x, 1) if not axes else x, axes or [1])
            mean = g.op("identity_loss", [each], shape=())
            found.append(g.scalar("multiply_scalar", mean, factor))
    return found


def _metrics_per_output(given: Any, names: Sequence[str]) -> list[list[Any]]:
    # One list for each output. A flat list belongs to the only output, or to every one.
    if given is None:
        return [[] for _ in names]
    if isinstance(given, Mapping):
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
