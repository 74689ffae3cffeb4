"""Training a graph: `fit`.

result = fit(graph, {"x": x, "labels": y}, optimizer="adam", batch_size=64, epochs=3)
result.history["loss"], result.evaluation, result.weights()
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from espalier import data as datasets
from espalier import errors, kept_sessions
from espalier.client import Client, default_client
from espalier.counts import check_counts
from espalier.interrupt import ask, submit_or_cancel
from espalier.job import History, Job, Position, Reports, is_over, state_name
from espalier.optimizers import Optimizer
from espalier.plan import Plan, seconds
from espalier.progress import Printer, values_text
from espalier.spelling import checked
from espalier.training_spec import make_spec
from espalier.v1 import program_pb2, training_pb2
from espalier.values import separate_values

if TYPE_CHECKING:
    from datetime import timedelta

    import numpy as np

    from espalier.graph import Graph
    from espalier.session import Session, SessionState


class Run:
    """A running fit, as callbacks see it: by a job, or by a session that the callbacks can direct."""

    def __init__(
        self, client: Client, epochs: int, *, job: Job | None = None, session: Session | None = None, per_epoch: int = 0
    ):
        self.client = client
        self.epochs = epochs  # 0: there is only a number of steps
        self.total_steps = 0  # of a job known from the first report on
        self.stopped = ""  # why a callback ended the training
        self.session = session
        self.learning_rate = float("nan")  # of the last step, or as it was set since
        self.logs: tuple[Mapping[str, float], dict[str, float]] | None = None  # of Callback: shared by all of them
        self.refresh_model: Callable[[], None] = lambda: None  # gives the model, if there is one, its present weights
        self.rate_observer: Callable[[float], None] | None = None  # told of what set_learning_rate sets
        self._job = job
        self._per_epoch = per_epoch

    @property
    def job(self) -> Job:
        """The job. FailedPrecondition if a session trains."""
        if self._job is None:
            raise errors.FailedPrecondition("a session trains, there is no job; see Run.session")
        return self._job

    @property
    def id(self) -> str:
        """Id of the job or session."""
        return self._job.id if self._job is not None else self.needs_session("id").id

    @property
    def plan(self) -> Plan:
        """The plan by which it runs."""
        return self._job.plan if self._job is not None else self.needs_session("plan").plan

    def needs_session(self, what: str) -> Session:
        """The session, for `what`. FailedPrecondition if a job trains."""
        if self.session is None:
            raise errors.FailedPrecondition(
                f"{what}: a job trains by itself; callbacks direct a training with fit(execution='session')"
            )
        return self.session

    def set_learning_rate(self, value: float) -> None:
        """The rate of the next steps. FailedPrecondition if a job trains."""
        self.needs_session("set_learning_rate").set_learning_rate(value)
        self.learning_rate = float(value)
        if self.rate_observer is not None:
            self.rate_observer(self.learning_rate)

    def parameters(self) -> dict[str, np.ndarray[Any, Any]]:
        """The parameters by their names in the graph, as they are now. FailedPrecondition if a job trains."""
        return self.needs_session("parameters").parameters()

    @property
    def steps_per_epoch(self) -> int:
        """Steps of an epoch; 0 if there is only a number of steps."""
        return self._per_epoch or (self.total_steps // self.epochs if self.epochs else 0)

    def stop(self, reason: str) -> None:
        """Ends the training after this report, and fit returns what there is. A job is cancelled."""
        self.stopped = self.stopped or reason


class Callback:
    """Base of callbacks of fit. Steps and epochs count from 0.

    A job does not wait for callbacks; after a lost worker, its steps are repeated and reported again. A session does,
    and its callbacks can direct it. A class with `needs_session` makes fit use a session.
    """

    needs_session = False

    def why_session(self, spec: training_pb2.TrainingSpec) -> str:
        """Why this training needs a session, if it does not in any case (`needs_session`); empty: a job will do."""
        return ""

    def configure(self, spec: training_pb2.TrainingSpec) -> None:
        """Before the submission of a job: may change what is asked for."""

    def configure_session(self, spec: training_pb2.TrainingSpec) -> None:
        """Before the opening of a session, as `configure` for a job."""
        self.configure(spec)

    def on_begin(self, run: Run) -> None:
        """When the job is queued, or the session is open."""

    def before_step(self, run: Run, step: int) -> None:
        """Before each step of a session. A job does not wait: there this is not called."""

    def on_step(self, run: Run, step: int, values: Mapping[str, float]) -> None:
        """After each step, with its loss and metrics."""

    def on_epoch(self, run: Run, epoch: int, values: Mapping[str, float]) -> None:
        """After each epoch: the means of its steps' values, and, if it was validated, "val_loss" and the like.

        Not if there is only a number of steps.
        """

    def on_end(self, run: Run, result: TrainingResult) -> None:
        """When the training has succeeded or a callback has stopped it."""

    def initial_state(self) -> SessionState | None:
        """What a session goes on with, if fit got no `state`."""
        return None

    def on_failure(self, run: Run) -> None:
        """When an error or Ctrl-C ends a session, which is still open; it is raised afterwards."""


class TrainingResult:
    """What came out of a training.

    history: values by name, one for each step. evaluation: loss and metrics of the held-out examples. model: the
    artifact; empty if there is none. job: the job; None if a session trained.
    """

    def __init__(
        self,
        history: History,
        evaluation: Mapping[str, float],
        *,
        model: str = "",
        notes: Sequence[str] = (),
        job: Job | None = None,
        weights: dict[str, np.ndarray[Any, Any]] | None = None,
    ):
        self.job: Any = job
        self.history: History = history
        self.evaluation = dict(evaluation)
        self.model = model
        self.notes = tuple(notes)
        self._weights = weights

    @property
    def has_weights(self) -> bool:
        """Whether there are trained parameters: of a job that was stopped there are none."""
        return self._weights is not None or bool(self.model)

    def weights(self) -> dict[str, np.ndarray[Any, Any]]:
        """The trained parameters by their names in the graph, of a job downloaded once.

        FailedPrecondition if a job was stopped.
        """
        if self._weights is None:
            self._weights = self.job.weights()
        return self._weights

    def __repr__(self) -> str:
        last = {name: values[-1] for name, values in self.history.items() if values}
        by = f" of {self.job.id}" if self.job is not None else ""
        return f"<TrainingResult{by}: {values_text(last)}>"


@checked
def fit(
    graph: Graph,
    data: Any,
    *,
    optimizer: str | Optimizer | program_pb2.Optimizer,
    batch_size: int,
    epochs: int | None = None,
    steps: int | None = None,
    validation_split: float = 0.0,
    validation_data: Any = None,
    shuffle: bool = True,
    seed: int = 0,
    columns: Mapping[str, str] | None = None,
    name: str = "",
    client: Client | None = None,
    search: Mapping[str, object] | None = None,
    precision: str | None = None,
    checkpoint_every: int = 0,
    record: str | Mapping[str, object] | None = None,
    priority: int = 0,
    time_limit: float | timedelta | None = None,
    callbacks: Sequence[Callback] = (),
    verbose: int = 1,
    extra: Callable[[training_pb2.TrainingSpec], None] | None = None,
    execution: str = "auto",
    steps_per_epoch: int = 0,
    initial_epoch: int = 0,
    state: SessionState | None = None,
    evaluate: Callable[[Session], Mapping[str, float]] | None = None,
    stream: bool = False,
) -> TrainingResult:
    """Trains a graph and waits for the result.

    data: what espalier.data accepts; `columns` says which of its columns an input reads, if not that of its own name.
    optimizer: a name ("adam"), an object of espalier.optimizers, or a message. epochs (default 1) or steps.
    validation_split: this part of the examples, the last ones, is evaluated at the end instead of trained on.
    validation_data: other examples, as `data`, that are evaluated after each epoch and at the end.
    name: of the job and the trained model. client: by default espalier.default_client(). search: fields of
    SearchOptions, as {"max_devices": 2, "strategy": "data_parallel"}. precision: "bf16" or "f16" for mixed precision.
    checkpoint_every: steps between checkpoints. record: which of them stay, so that the job can be replayed: "adaptive"
    (the default), "every:N", "off", or fields of RecordOptions, as {"overhead": 0.02}. priority: of two jobs of an
    owner the one of higher priority starts first; below 0, other owners' jobs go first, too. time_limit (seconds, or a
    timedelta): once the job has had workers for so long it writes a checkpoint and fails; job.resume() goes on for as
    long again.
    verbose: 0, 1 (a progress bar) or 2 (a line for each epoch). extra: may change the specification before it is sent.
    steps_per_epoch: with `steps`, what callbacks take for an epoch.
    execution: "job" (durable: it survives this program, the coordinator and workers), "session" (callbacks can direct
    the training; it ends with this program), or "auto": a job, unless a callback or one of the following needs a
    session. initial_epoch: the first one, of `epochs`; with the batches that it would have in a whole training. state:
    of an earlier session (Session.state), to go on with its optimizer. evaluate: gives the losses and metrics of a
    validation, in place of the held-out examples.
    stream: push the examples while the job trains, in the order in which `data` gives them, instead of uploading them
    before; needs `steps`, the most to train, if `data` has no length. What iterating over `data` raises cancels the
    job and is raised. docs/guide/data.md has more.

    JobFailed if the job fails; Unavailable if the coordinator stays away for two minutes (the message says how to go
    on); other errors before the job is queued. On Ctrl-C a terminal asks whether the job goes on; elsewhere the job is
    cancelled.
    """
    if not 0 <= validation_split < 1:
        raise errors.InvalidArgument(f"validation_split is {validation_split}; accepted: 0 or more, less than 1")
    check_counts(0, steps_per_epoch=steps_per_epoch, initial_epoch=initial_epoch)
    spec = make_spec(
        graph,
        optimizer=optimizer,
        batch_size=batch_size,
        epochs=epochs,
        steps=steps,
        seed=seed,
        name=name,
        search=search,
        precision=precision,
        checkpoint_every=checkpoint_every,
        record=record,
        priority=priority,
        time_limit=time_limit,
    )
    if execution not in ("auto", "job", "session"):
        raise errors.InvalidArgument(f"execution={execution!r}; accepted are auto, job, session")
    client = client or default_client()
    printer = Printer(verbose)
    decisive = needs_session(spec, callbacks, initial_epoch, state is not None, evaluate is not None, execution)
    if stream and (decisive or execution == "session"):
        raise errors.InvalidArgument(
            f"stream=True: only a job reads a stream{f', and {decisive}' if decisive else ''}; in a session, give "
            "batches to Session.step"
        )
    if execution == "job" and decisive:
        raise errors.InvalidArgument(f"{decisive}: execution='session'")
    in_session = bool(decisive) or execution == "session"
    if validation_data is not None:
        if validation_split or evaluate is not None:
            raise errors.InvalidArgument("validation_data, validation_split, evaluate: give one of them")
        if in_session:
            held = datasets.inline_batch(validation_data, graph, columns)
            evaluate = lambda session: session.evaluate(held)  # noqa: E731
            spec.validation.SetInParent()
        else:
            _upload_validation(validation_data, graph, columns, client, spec)

    def configure(given: training_pb2.TrainingSpec) -> None:
        for callback in callbacks:
            (callback.configure_session if in_session else callback.configure)(given)
        if extra is not None:
            extra(given)

    kept_sessions.release(client)
    if in_session:
        from espalier.session_training import train

        for argument, used in (("priority", priority), ("time_limit", time_limit)):
            if used:
                raise errors.InvalidArgument(f"{argument}: only a job waits in the queue and has a limit, no session")
        if record is not None:
            raise errors.InvalidArgument("record: only a job is recorded, no session")
        if checkpoint_every:
            raise errors.InvalidArgument(
                "checkpoint_every: a session has no checkpoints; see callbacks.ModelCheckpoint"
            )
        return train(
            graph,
            data,
            spec,
            client=client,
            columns=columns,
            validation_split=validation_split,
            shuffle=shuffle,
            configure=configure,
            callbacks=callbacks,
            printer=printer,
            steps_per_epoch=steps_per_epoch,
            initial_epoch=initial_epoch,
            state=state,
            evaluate=evaluate,
        )
    if stream:
        from espalier import streaming

        return streaming.train(
            graph,
            data,
            spec,
            client=client,
            columns=columns,
            validation_split=validation_split,
            epochs=0 if steps is not None else spec.epochs,
            configure=configure,
            follow=lambda job, per_epoch: follow(client, job, spec, steps_per_epoch or per_epoch, callbacks, printer),
        )
    most = spec.batch_size * spec.steps if spec.steps else None
    with contextlib.ExitStack() as files:
        prepared = files.enter_context(datasets.prepare(data, graph, columns, most))
        uri = prepared.uri
        if prepared.path is not None:
            uri = "artifact:" + client._upload_file(prepared.path, prepared.stem)
        spec.dataset.CopyFrom(datasets.dataset_message(prepared, uri, validation_split, shuffle))
        separate_values(spec, client)
        configure(spec)
        job = submit_or_cancel(client, spec, graph)
    return follow(client, job, spec, steps_per_epoch, callbacks, printer)


def _upload_validation(
    data: Any, graph: Graph, columns: Mapping[str, str] | None, client: Client, spec: training_pb2.TrainingSpec
) -> None:
    with datasets.prepare(data, graph, columns) as prepared:
        uri = prepared.uri
        if prepared.path is not None:
            uri = "artifact:" + client._upload_file(prepared.path, prepared.stem)
        dataset = datasets.dataset_message(prepared, uri, 0.0, True)
    dataset.ClearField("columns")  # the coordinator takes those of the training
    spec.validation.dataset.CopyFrom(dataset)


def follow(
    client: Client,
    job: Job,
    spec: training_pb2.TrainingSpec,
    per_epoch: int,
    callbacks: Sequence[Callback],
    printer: Printer,
) -> TrainingResult:
    """Waits for the end of a job that fit has queued; `per_epoch`: steps that callbacks take for an epoch."""
    epochs = spec.epochs or (-(-spec.steps // per_epoch) if per_epoch else 0)
    run = Run(client, epochs, job=job, per_epoch=per_epoch)
    for callback in callbacks:
        callback.on_begin(run)
    return _Watch(run, printer, callbacks, spec).result()


def needs_session(
    spec: training_pb2.TrainingSpec,
    callbacks: Sequence[Callback],
    initial_epoch: int,
    has_state: bool,
    evaluates: bool,
    execution: str,
) -> str:
    """Why a training needs a session; empty if a job will do."""
    for callback in callbacks:
        name = type(callback).__name__
        if callback.needs_session:
            return f"{name} decides during the training; a job does not wait for it"
        # Of a job that is wanted, the callback itself says what it cannot express.
        why = callback.why_session(spec) if execution == "auto" else ""
        if why:
            return f"{name}: {why}"
    if initial_epoch:
        return f"initial_epoch={initial_epoch}: a job begins with epoch 0"
    if has_state:
        return "state: a job begins with new optimizer state"
    return "evaluate: a job validates on examples that its data hold out" if evaluates else ""


class _Watch:
    """Follows a job to its end."""

    def __init__(self, run: Run, printer: Printer, callbacks: Sequence[Callback], spec: training_pb2.TrainingSpec):
        self._run = run
        # Steps between validations: after every so many epochs, or steps; 0: there are none.
        self._validation = spec.validation if spec.HasField("validation") else None
        self._waiting: tuple[int, dict[str, float], float] | None = None  # an epoch whose validation is to come
        self._printer = printer
        self._callbacks = callbacks
        self._reports = Reports()
        self._record = training_pb2.Job()
        self._noted: set[str] = set()
        self._position = Position()

    def result(self) -> TrainingResult:
        """Waits for the end. Errors as fit."""
        while True:
            try:
                self._follow()
                break
            except KeyboardInterrupt:
                self._printer.suspend()
                if not ask(self._run.job):
                    raise
        job, record = self._run.job, self._record
        failure = None if self._run.stopped else job.failure(record)
        self._finish(record)
        if failure is not None:
            raise failure
        self._end_epoch({})
        result = TrainingResult(
            self._reports.history(),
            record.evaluation,
            model=str(record.output_model),
            notes=record.notes,
            job=job,
        )
        for callback in self._callbacks:
            callback.on_end(self._run, result)
        return result

    def _finish(self, record: training_pb2.Job) -> None:
        held = f"; held-out: {values_text(record.evaluation)}" if record.evaluation else ""
        why = f" ({self._run.stopped})" if self._run.stopped else ""
        took = (record.finished_unix_ms - record.created_unix_ms) / 1000
        self._printer.finish(
            f"job {record.id} {state_name(record.state)}{why} after {record.steps_done} of {record.total_steps} steps "
            f"in {seconds(took)}{held}"
        )

    def _follow(self) -> None:
        for event in self._run.job._events_after(self._position):
            if event.HasField("job"):
                self._on_job(event.job)
            elif event.HasField("step"):
                self._on_step(event.step)
            elif event.HasField("validation"):
                self._end_epoch(dict(event.validation.values))
            elif event.HasField("message"):
                self._printer.job_message(self._run.id, event.message)
            if self._run.stopped and not is_over(self._record.state):
                self._stop()
        if not is_over(self._record.state):
            self._on_job(self._run.job.record)

    def _stop(self) -> None:
        with contextlib.suppress(errors.FailedPrecondition):  # it has just ended by itself
            self._run.job.cancel()

    def _on_job(self, record: training_pb2.Job) -> None:
        for note in record.notes:
            if note not in self._noted:
                self._noted.add(note)
                self._printer.note(note)
        if record.checkpoints_paused and record.checkpoints_paused != self._record.checkpoints_paused:
            self._printer.note(f"checkpoints are paused: {record.checkpoints_paused}")
        if record.state != self._record.state and not is_over(record.state):
            # Why, a message of the coordinator says, which is a warning if it is to worry about.
            back = f", back to step {record.checkpoint_step}" if record.state == training_pb2.RECOVERING else ""
            self._printer.message(f"job {record.id} is {state_name(record.state)}{back}")
        self._record = training_pb2.Job()
        self._record.CopyFrom(record)
        self._run.total_steps = record.total_steps

    def _on_step(self, report: training_pb2.StepReport) -> None:
        run, step = self._run, int(report.step)
        self._reports.add(report)
        values = dict(report.values)
        run.learning_rate = values.get("learning_rate", run.learning_rate)
        per_epoch = run.steps_per_epoch
        epoch = f"epoch {step // per_epoch + 1}/{run.epochs} " if per_epoch and run.epochs > 1 else ""
        self._printer.step(step + 1, run.total_steps, report.seconds, values, epoch)
        for callback in self._callbacks:
            callback.on_step(run, step, values)
        if per_epoch and (step + 1) % per_epoch == 0:
            self._end_epoch({})
            means, took = self._reports.means(step + 1 - per_epoch, step + 1)
            self._waiting = (step // per_epoch, means, took)
            if not self._is_validated(step + 1, per_epoch):
                self._end_epoch({})

    def _is_validated(self, done: int, per_epoch: int) -> bool:
        """Whether a validation follows the epoch that ends with `done` steps."""
        if self._validation is None:
            return False
        if done == self._run.total_steps:
            return True
        return done % (self._validation.every_steps or per_epoch * (self._validation.every_epochs or 1)) == 0

    def _end_epoch(self, validation: Mapping[str, float]) -> None:
        if self._waiting is None:
            return
        (epoch, means, took), self._waiting = self._waiting, None
        values = {**means, **validation}
        self._printer.epoch(epoch + 1, self._run.epochs, values, took)
        for callback in self._callbacks:
            callback.on_epoch(self._run, epoch, values)


__all__ = ["Callback", "Run", "TrainingResult", "fit", "make_spec"]
