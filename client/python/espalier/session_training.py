"""fit by a session: callbacks direct the training. Its steps are those of a job with the same plan and seed."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from espalier import data as datasets
from espalier import errors, job_callbacks, monitors
from espalier.client import Client
from espalier.job import Reports
from espalier.npz import Array
from espalier.plan import seconds
from espalier.progress import Printer, values_text
from espalier.session import Session, SessionState
from espalier.training import Callback, Run, TrainingResult
from espalier.v1 import program_pb2, training_pb2

if TYPE_CHECKING:
    from espalier.graph import Graph

_ENDLESS = (program_pb2.LearningRateSchedule.CONSTANT, program_pb2.LearningRateSchedule.STEP)


class _EarlyStopping:
    """The rule of TrainingSpec.early_stopping, as the coordinator applies it to jobs."""

    def __init__(self, rule: training_pb2.EarlyStopping, start_from_epoch: int):
        self._rule = rule
        self.start_from_epoch = start_from_epoch
        self._monitor = rule.monitor or "val_loss"
        larger = rule.mode == training_pb2.EarlyStopping.MAX or (
            rule.mode == training_pb2.EarlyStopping.AUTO and self._monitor.endswith("accuracy")
        )
        self._sign = 1.0 if larger else -1.0
        self._best = -math.inf
        self._without = 0
        self.of_epochs = not self._monitor.startswith("val_")  # it watches the training, not validations
        self.weights: dict[str, Array] | None = None  # of the best validation
        self.values: dict[str, float] = {}  # of the best validation

    def _improves(self, value: float, than: float) -> bool:
        return self._sign * value > than + self._rule.min_delta

    def validated(self, values: Mapping[str, float], session: Session) -> bool:
        """Takes a validation; returns whether training ends."""
        if self._monitor not in values:
            raise errors.InvalidArgument(f"early stopping watches {self._monitor}; there are {', '.join(values)}")
        value = values[self._monitor]
        self._without += 1
        if self._improves(value, self._best):
            self._best = self._sign * value
            self.values = dict(values)
            if self._rule.keep_best:
                self.weights = session.parameters()
            if not self._rule.HasField("baseline") or self._improves(value, self._sign * self._rule.baseline):
                self._without = 0
        return 0 < self._rule.patience <= self._without


def train(
    graph: Graph,
    data: Any,
    spec: training_pb2.TrainingSpec,
    *,
    client: Client,
    columns: Mapping[str, str] | None,
    validation_split: float,
    shuffle: bool,
    configure: Callable[[training_pb2.TrainingSpec], None],
    callbacks: Sequence[Callback],
    printer: Printer,
    steps_per_epoch: int,
    initial_epoch: int = 0,
    state: SessionState | None = None,
    evaluate: Callable[[Session], Mapping[str, float]] | None = None,
) -> TrainingResult:
    """Trains `spec`, which make_spec made, in a session; `configure` may change it before. Errors as espalier.fit."""
    most = spec.batch_size * spec.steps if spec.steps else None
    if state is None:
        state = next((found for c in callbacks if (found := c.initial_state()) is not None), None)
    with datasets.prepare(data, graph, columns, most) as prepared:
        uri = prepared.uri
        if prepared.path is not None:
            uri = "artifact:" + client._upload_file(prepared.path, prepared.stem)
        dataset = datasets.dataset_message(prepared, uri, validation_split, shuffle)
    spec.dataset.CopyFrom(dataset)
    if evaluate is not None:
        spec.dataset.holdout_fraction = 0.5  # tells `configure` that there is a validation
    configure(spec)
    outputs = [output.name for output in graph.proto.outputs]
    monitors.check(
        callbacks, outputs, None if evaluate is not None else outputs if spec.dataset.holdout_fraction else ()
    )
    if evaluate is not None:
        spec.dataset.ClearField("holdout_fraction")
    held = spec.dataset.holdout_fraction
    trained = prepared.examples - int(prepared.examples * held)
    per_epoch = trained // spec.batch_size
    _set_total_steps(spec, per_epoch)
    if initial_epoch:
        if not (steps_per_epoch or per_epoch):
            raise errors.InvalidArgument(
                "initial_epoch needs data with a known number of examples, to begin with the batch of that epoch"
            )
        first = initial_epoch * (steps_per_epoch or per_epoch)
        state = dataclasses.replace(state or SessionState(), next_batch=first, examples=0)  # whatever was before
    elif state is not None:
        state = state.on(trained, int(spec.batch_size))
    validation, rule = training_pb2.Validation(), training_pb2.EarlyStopping()
    validated, stops = spec.HasField("validation"), spec.HasField("early_stopping")
    validation.CopyFrom(spec.validation)
    rule.CopyFrom(spec.early_stopping)
    if validation.HasField("dataset"):
        raise errors.InvalidArgument("a session validates on the held-out examples of its data; give validation_split")

    def complete(opened: training_pb2.TrainingSpec) -> None:
        opened.CopyFrom(spec)
        for field in ("epochs", "steps", "output_model", "validation", "early_stopping"):
            opened.ClearField(field)

    with Session(
        graph,
        spec.dataset,
        optimizer=spec.optimizer,
        batch_size=spec.batch_size,
        columns=columns,
        client=client,
        extra=complete,
        state=state,
    ) as session:
        for note in session.notes:
            printer.note(note)
        epochs = int(spec.epochs) or (-(-int(spec.steps) // steps_per_epoch) if steps_per_epoch else 0)
        run = Run(client, epochs, session=session, per_epoch=steps_per_epoch)
        run.total_steps = int(spec.steps or spec.epochs * (session.examples // spec.batch_size))
        if run.total_steps == 0:
            raise errors.InvalidArgument(
                f"{session.examples} examples do not fill one batch of {spec.batch_size}: give a smaller batch_size"
            )
        run.learning_rate = spec.optimizer.learning_rate.peak
        fit = _Fit(run, session, printer, callbacks, validation if validated else None)
        fit.first = initial_epoch * run.steps_per_epoch
        if evaluate is not None:
            fit.evaluate = evaluate
        if stops:
            starts = [c.start_from_epoch for c in callbacks if isinstance(c, job_callbacks.EarlyStopping)]
            fit.early_stopping = _EarlyStopping(rule, starts[-1] if starts else 0)
        return fit.result(spec.name)


def _set_total_steps(spec: training_pb2.TrainingSpec, per_epoch: int) -> None:
    """Completes a learning rate schedule that ends, as the coordinator does for a job."""
    rate = spec.optimizer.learning_rate
    if rate.kind in _ENDLESS or rate.total_steps:
        return
    total = int(spec.steps or spec.epochs * per_epoch)
    if not total:
        raise errors.InvalidArgument(
            "the learning rate schedule ends with the training, whose length is not known before: give steps, or data "
            "with a known number of examples"
        )
    rate.total_steps = total


class _Fit:
    """Trains to the end."""

    def __init__(
        self,
        run: Run,
        session: Session,
        printer: Printer,
        callbacks: Sequence[Callback],
        validation: training_pb2.Validation | None,
    ):
        self._run = run
        self._session = session
        self._printer = printer
        self._callbacks = callbacks
        self._validation = validation
        self._reports = Reports()
        self._last: dict[str, float] | None = None  # the validation of the present parameters
        self.early_stopping: _EarlyStopping | None = None
        self.first = 0  # step
        # Losses and metrics of a validation.
        self.evaluate: Callable[[Session], Mapping[str, float]] | None = Session.evaluate if session.held_out else None

    def result(self, name: str) -> TrainingResult:
        """Trains. A KeyboardInterrupt ends the session."""
        run, session = self._run, self._session
        began = time.monotonic()
        done = self.first
        try:
            for callback in self._callbacks:
                callback.on_begin(run)
            while done < run.total_steps and not run.stopped:
                self._step(done)
                done += 1
        except BaseException:
            for callback in self._callbacks:
                callback.on_failure(run)
            raise
        evaluation = self._best() or self._evaluation()
        weights = session.parameters()
        model = session.save(name) if name else ""
        result = TrainingResult(self._reports.history(), evaluation, model=model, notes=session.notes, weights=weights)
        held = f"; held-out: {values_text(evaluation)}" if evaluation else ""
        why = f" ({run.stopped})" if run.stopped else ""
        self._printer.finish(
            f"{session.id}: {done} of {run.total_steps} steps in {seconds(time.monotonic() - began)}{why}{held}"
        )
        for callback in self._callbacks:
            callback.on_end(run, result)
        return result

    def _best(self) -> dict[str, float]:
        """Puts the parameters of the best validation back, if they were kept; returns its values."""
        rule = self.early_stopping
        if rule is None or rule.weights is None:
            return {}
        self._session.set_parameters(rule.weights)
        if rule.of_epochs:
            self._last = None
            return {}
        return {name.removeprefix("val_"): value for name, value in rule.values.items()}

    def _evaluation(self) -> dict[str, float]:
        if self._last is not None:
            return {name.removeprefix("val_"): value for name, value in self._last.items()}
        return {} if self.evaluate is None else dict(self.evaluate(self._session))

    def _step(self, step: int) -> None:
        run = self._run
        for callback in self._callbacks:
            callback.before_step(run, step)
        began = time.monotonic()
        values = self._session.step()
        run.learning_rate = values.get("learning_rate", run.learning_rate)
        self._last = None
        took = time.monotonic() - began
        self._reports.add(training_pb2.StepReport(step=step, values=values, seconds=took))
        per_epoch = run.steps_per_epoch
        epoch = f"epoch {step // per_epoch + 1}/{run.epochs} " if per_epoch and run.epochs > 1 else ""
        self._printer.step(step + 1, run.total_steps, took, values, epoch)
        for callback in self._callbacks:
            callback.on_step(run, step, values)
        validation = self._validate(step + 1, per_epoch)
        if per_epoch and (step + 1) % per_epoch == 0:
            means, took = self._reports.means(step + 1 - per_epoch, step + 1)
            merged = {**means, **validation}
            self._watch(merged, step // per_epoch, of_epochs=True)
            self._printer.epoch(step // per_epoch + 1, run.epochs, merged, took)
            for callback in self._callbacks:
                callback.on_epoch(run, step // per_epoch, merged)

    def _validate(self, done: int, per_epoch: int) -> dict[str, float]:
        if self._validation is None or self.evaluate is None:
            return {}
        every = self._validation.every_steps or per_epoch * (self._validation.every_epochs or 1)
        if done != self._run.total_steps and (not every or done % every):
            return {}
        self._last = {f"val_{name}": value for name, value in self.evaluate(self._session).items()}
        self._watch(self._last, (done - 1) // per_epoch if per_epoch else 0, of_epochs=False)
        return self._last

    def _watch(self, values: Mapping[str, float], epoch: int, of_epochs: bool) -> None:
        rule = self.early_stopping
        if rule is None or rule.of_epochs != of_epochs or epoch < rule.start_from_epoch:
            return
        if rule.validated(values, self._session):
            self._run.stop(f"{'training' if of_epochs else 'validation'} stopped improving")


__all__ = ["train"]
