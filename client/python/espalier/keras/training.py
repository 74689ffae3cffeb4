"""compile and fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from espalier import callbacks as callback_classes
from espalier import monitors
from espalier import training as jobs
from espalier.counts import check_count, check_counts
from espalier.errors import InvalidArgument
from espalier.keras import arrays, backend, validation
from espalier.keras.directing import Directing, NeedsSession
from espalier.keras.heads import Compiled, Head, LossGraph, heads_of, loss_graph
from espalier.keras.lowering import Lowering, Value
from espalier.keras.metric import Metric
from espalier.keras.variable import Variable
from espalier.notes import warn
from espalier.session_state import SessionState
from espalier.spelling import checked
from espalier.v1 import program_pb2, training_pb2

if TYPE_CHECKING:
    from datetime import timedelta

    from espalier.client import Client
    from espalier.keras.network import Network


class Trainer:
    """The part of a model that trains it."""

    name: str
    loss: Any = None  # as compile was given it
    compiled = False
    _compiled: Compiled | None = None
    _network: Network | None
    history: Any = None
    job: Any = None
    stop_training = False
    _plan: Any = None
    _trained_before = False
    _state: SessionState | None = None  # of the optimizer, after a session
    _live: Directing | None = None  # while a session trains
    _default_batch_size = 32
    _own_callbacks: tuple[Any, ...] = ()  # of load_model

    @checked
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
    ) -> None:
        """Says how to train. Losses and metrics: one, a list, or a dict by the outputs' names.

        A softmax or sigmoid at the end of the model is not applied twice: a loss with from_logits=False is computed on
        what it was applied to.
        """
        if run_eagerly:
            raise InvalidArgument("compile: run_eagerly=True: a job runs a graph; there is no eager mode")
        if metrics is None and _has_names(loss_weights):
            # The third argument of Keras 2.
            loss_weights, metrics = None, loss_weights
        self._compiled = Compiled(optimizer, loss, loss_weights, metrics, weighted_metrics)
        self.loss, self.compiled = loss, True
        self._trained_before, self._state = False, None

    @property
    def optimizer(self) -> Any:
        """The optimizer of `compile`."""
        return None if self._compiled is None else self._compiled.optimizer

    @property
    def metrics(self) -> list[Metric]:
        """The metrics of `compile`, with their names; the loss, which Keras lists first, is no object here."""
        compiled = self._compiled
        if compiled is None:
            return []
        network = self._network
        if network is None:  # of a model that has seen no shapes
            return compiled.named_metrics
        heads = self._heads(network)
        shapes = [shape for shape, _ in network.infer([(t.shape, t.dtype) for t in network.inputs])]
        for head, shape in zip(heads, shapes, strict=True):
            head.resolve(shape)
        return [metric for head in heads for metric, _ in head.metrics]

    @property
    def plan(self) -> Any:
        """The plan by which the last training ran."""
        if self._plan is None:
            raise InvalidArgument(f"{self.name} was not trained yet")
        return self._plan()

    def _heads(self, network: Network) -> list[Head]:
        compiled = self._compiled
        if compiled is None:
            raise InvalidArgument(f"{self.name}: call compile(optimizer, loss, metrics) before fit")
        return heads_of(compiled, network.output_names(), self.name)

    @checked
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
        record: str | Mapping[str, object] | None = None,
        priority: int = 0,
        time_limit: float | timedelta | None = None,
        job_name: str = "",
        execution: str = "auto",
    ) -> Any:
        """Trains the model and returns its History.

        x, y: arrays, lists of them or dicts by the names of inputs and outputs; or x alone: an iterable of (x, y) or
        (x, y, sample_weight) batches. Examples that do not fill a batch are skipped, different ones in every epoch.
        validation_split: this part of the examples, the last ones, is evaluated instead of trained on. validation_data:
        (x, y), (x, y, sample_weight) or an iterable of such batches, read once; validation_steps: so many batches of
        validation_batch_size (or batch_size) of them. They are evaluated after every validation_freq-th epoch: logs and
        History have the values as val_....
        client, search, precision, checkpoint_every, record, priority, time_limit, job_name, execution: as in
        espalier.fit, of which job_name is the name. In a session callbacks read and set weights and the learning rate,
        evaluate and predict; a job refuses that. "auto": a session if a callback needs one, with initial_epoch, and to
        validate beside an iterable.

        Weights have the trained elements afterwards. A training in a session goes on with the optimizer state of one
        before; others begin with a new one. Errors as espalier.fit.
        """
        check_count("epochs", epochs)
        check_counts(
            batch_size=batch_size,
            steps_per_epoch=steps_per_epoch,
            validation_steps=validation_steps,
            validation_batch_size=validation_batch_size,
            validation_freq=validation_freq,
        )
        check_counts(0, initial_epoch=initial_epoch, seed=seed)
        if self._compiled is None:
            raise InvalidArgument(f"{self.name}: call compile(optimizer, loss, metrics) before fit")
        source = arrays.Source(x, y, sample_weight, class_weight)
        size = int(batch_size or source.batch_size or self._default_batch_size)
        held, validation_split = validation.held_out(
            source,
            validation_data,
            validation_split,
            validation_steps,
            validation_batch_size or size,
            bool(self._compiled.of_predictions),
        )
        by_predictions = held is not None and bool(self._compiled.of_predictions)
        if by_predictions and execution == "job":
            raise InvalidArgument(
                f"fit: {', '.join(self._compiled.of_predictions)}: a job does not validate by all predictions; give "
                "execution='session', or evaluate afterwards"
            )
        trained = None if source.examples is None else source.examples - int(source.examples * validation_split)
        if trained is not None:
            size = max(1, min(size, trained))
        network = self._network_for(source)
        shapes = source.input_shapes(network)
        counted = 0 if trained is None else trained // size
        history = callback_classes.History()
        run = [
            *callback_classes.prepared(
                [*self._own_callbacks, *(callbacks or ())], self, int(epochs), steps_per_epoch, counted
            ),
            history,
        ]
        history.set_params({"verbose": verbose, "epochs": int(epochs), "steps": steps_per_epoch or counted or None})
        history.set_model(self)
        steps = None if steps_per_epoch is None else int(steps_per_epoch) * int(epochs)
        if execution == "auto":
            asked = training_pb2.TrainingSpec(epochs=int(epochs) if steps is None else 0, optimizer=self._message())
            own_data = held is not None and (source.stream is not None or by_predictions)
            why = jobs.needs_session(asked, run, int(initial_epoch), False, own_data, execution)
            execution = "session" if why else "job"
        in_session = execution == "session"
        built = self._built(network, shapes, source.weighted or (held is not None and held.weighted), in_session)
        validated = [report.name for report in built.reports] if held is not None or validation_split else []
        monitors.check(run, [report.name for report in built.reports if report.metric is None], validated)
        evaluate = None
        regular = any(v.regularizer is not None for v in built.lowering.variables.values())
        if (
            held is not None
            and in_session
            and (built.counted or regular or by_predictions or source.stream is not None)
        ):
            evaluate = validation.evaluator(built, held, validation_batch_size or size)
        elif held is not None:
            # As in Keras, they come before a split.
            validation_split = source.hold_out(held)
        source.follow(built)
        self.stop_training = False
        directing = Directing(self, built)
        refused = False
        try:
            result = jobs.fit(
                built.lowering.graph,
                source.columns(network, built.targets),
                optimizer=self._message(built.lowering.variables),
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
                record=record,
                priority=priority,
                time_limit=time_limit,
                callbacks=[directing.first, *run, directing.last],
                extra=_validation(validation_freq, steps_per_epoch),
                steps_per_epoch=int(steps_per_epoch or 0),
                verbose=1 if verbose == "auto" else int(verbose),
                execution=execution,
                initial_epoch=int(initial_epoch),
                evaluate=evaluate,
            )
        except NeedsSession:
            refused = True
            raise
        finally:
            directing.end(refused)
            self._state = directing.state_after(self._state)
            if directing.in_session:
                self._trained_before = True
        self.job, self.history, self._plan = result.job, history, directing.plan
        return history

    def _point_out_metrics(self, who: str) -> None:
        # Once for each compile, by a training that begins.
        assert self._compiled is not None
        if self._compiled.of_predictions and not self._compiled.pointed_out:
            self._compiled.pointed_out = True
            warn(
                f"{who}: {', '.join(self._compiled.of_predictions)}: computed by evaluate and validation, from all "
                "predictions; the steps of a training do not report it",
            )

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

    def _message(self, variables: Mapping[str, Variable] | None = None) -> program_pb2.Optimizer:
        # The optimizer of compile; with the regularizers of weights, by their names in a graph.
        assert self._compiled is not None
        message: program_pb2.Optimizer = self._compiled.optimizer.proto()
        kept = []  # weights that do not decay
        for name, variable in (variables or {}).items():
            if variable.trainable and not self._compiled.optimizer.decays(variable.name, variable.path):
                kept.append(name)
            r = variable.regularizer
            if r is not None and variable.trainable and (r.l1 or r.l2):
                message.regularizers.add(parameter=name, l1=r.l1, l2=r.l2)
                message.report_penalties = True
        if kept and self._compiled.optimizer.weight_decay:
            message.groups.add(parameters=kept, weight_decay=0.0)
        return message

    def _has_moments(self) -> bool:
        message = self._message()
        return message.name != "sgd" or message.attributes["momentum"].f > 0

    def _built(self, network: Network, shapes: Sequence[Any], weighted: bool, fills: bool) -> LossGraph:
        """The graph of the model with its losses. `fills`: with weights, batches can be filled up."""
        heads = self._heads(network)
        specs = network.infer([(shape, t.dtype) for shape, t in zip(shapes, network.inputs, strict=True)])
        integer = [head.resolve(shape) for head, (shape, _) in zip(heads, specs, strict=True)]
        targets = [
            arrays.Target(head.name, shape, label, head.loss, head.has_target)
            for head, (shape, _), label in zip(heads, specs, integer, strict=True)
        ]
        return loss_graph(self, network, shapes, heads, targets, weighted, counted=weighted and fills)

    def to_graph(self, shapes: Any = None) -> tuple[Lowering, list[Value]]:
        """As Model."""
        raise NotImplementedError

    def _take(self, g: Lowering, result: jobs.TrainingResult) -> None:
        # The weights of a job.
        if not result.has_weights:
            warn(
                f"{self.name}: the training was stopped, so its job was cancelled; the model has the weights that it "
                "had before. checkpoint_every keeps those of the job: job.resume() goes on from them",
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
