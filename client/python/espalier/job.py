"""Training jobs: what became of them, their events, their curves, their models."""

from __future__ import annotations

import functools
import logging
import math
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from espalier import errors
from espalier.counts import check_count, seconds_of
from espalier.plan import Plan
from espalier.replay_question import asks_itself, replay_spec
from espalier.rpc import Settings, idempotency_key, method
from espalier.step_range import StepsOf
from espalier.steps import (
    Asynchronous,
    Blocking,
    Emit,
    Lost,
    Open,
    Read,
    Step,
    Steps,
    Unary,
    Work,
    consume,
    drive_stream,
    operation,
    stream,
    value,
)
from espalier.transfer import FolderWriter, Progress
from espalier.v1 import models_pb2, plan_pb2, replay_pb2, training_pb2
from espalier.watching import Watched, keep_watching

if TYPE_CHECKING:
    import numpy as np

    from espalier.graph import Graph
    from espalier.history import History as Logged
    from espalier.replay import AsyncReplay, Replay, ReplayMethods

logger = logging.getLogger("espalier")
_NO_STEPS = 1 << 62  # of Watch's from_step: no reports
R = TypeVar("R", bound="ReplayMethods")
_OVER = (training_pb2.SUCCEEDED, training_pb2.FAILED, training_pb2.CANCELLED)


class History(dict[str, list[float]]):
    """Values by name, one for each step: "loss", the metrics. A step that lacks a value has NaN there.

    Values of validations ("val_loss"), if there are any, are one for each; `rows` has the steps after which they were.
    """

    def __init__(self, *given: Any, **named: Any):
        super().__init__(*given, **named)
        self.rows: dict[str, list[int]] = {}

    def dataframe(self) -> Any:
        """The values as a pandas DataFrame, a row for each step; of steps without validation NaN."""
        import pandas

        steps = next((len(values) for name, values in self.items() if name not in self.rows), 0)
        columns = {name: pandas.Series(values, index=self.rows.get(name)) for name, values in self.items()}
        return pandas.DataFrame(columns, index=pandas.RangeIndex(steps, name="step"))


class Reports:
    """Gathers the reports of steps. Steps that are repeated after a lost worker replace the earlier ones."""

    def __init__(self) -> None:
        self._steps: dict[int, dict[str, float]] = {}
        self._seconds: dict[int, float] = {}

    def add(self, report: training_pb2.StepReport) -> None:
        """Takes the report of a step."""
        self._steps[report.step] = dict(report.values)
        self._seconds[report.step] = report.seconds

    def means(self, first: int, end: int) -> tuple[dict[str, float], float]:
        """The means of the values of steps `first` to `end` - 1, and the seconds that they took."""
        steps = [self._steps[step] for step in range(first, end) if step in self._steps]
        names = {name for values in steps for name in values}
        means = {}
        for name in names:
            found = [values[name] for values in steps if name in values]
            means[name] = math.fsum(found) / len(found) if all(map(math.isfinite, found)) else sum(found) / len(found)
        return means, sum(self._seconds.get(step, 0.0) for step in range(first, end))

    def history(self) -> History:
        """The values of all steps, in order."""
        steps = [self._steps[step] for step in sorted(self._steps)]
        names = sorted({name for values in steps for name in values}, key=lambda name: (name != "loss", name))
        return History({name: [values.get(name, math.nan) for values in steps] for name in names})


def state_name(state: int) -> str:
    """ "queued", "running", "succeeded", ..."""
    return str(training_pb2.JobState.Name(state)).lower()


def progress_of(record: training_pb2.Job) -> float:
    """The part of a job's steps that is done, from 0 to 1."""
    if record.state == training_pb2.SUCCEEDED:  # may be before the last step: by early stopping
        return 1.0
    return record.steps_done / record.total_steps if record.total_steps else 0.0


def time_of(unix_ms: int) -> datetime:
    """A time of the coordinator, in the zone of this machine."""
    return datetime.fromtimestamp(unix_ms / 1000, timezone.utc).astimezone()


def is_over(state: int) -> bool:
    """Whether only a resume moves the job on."""
    return state in _OVER


@dataclass
class Position:
    """What has been seen of a job's log, so that a second watch goes on behind it."""

    step: int = 0  # the next one
    messages: int = 0
    validated: int = 0  # the next step after which a validation is new


def watch(
    job_id: str,
    settings: Settings,
    position: Position,
    follow: bool = True,
    end: float | None = None,
) -> Generator[Step | Emit[training_pb2.JobEvent], Any, None]:
    """Emits the job's record, its reports and messages, and new ones until it is over (or, without `follow`, so far).

    A lost connection is resumed where it broke off, for up to watch_retry_for seconds; a WARNING says so.
    DeadlineExceeded at `end` (of time.monotonic).
    """
    over, messages = False, 0

    def open_watch(left: float | None) -> Open:
        nonlocal messages
        messages = 0  # the coordinator sends all messages again
        request = training_pb2.WatchRequest(job_id=job_id, from_step=position.step, no_follow=not follow)
        return Open(method("Training", "Watch"), request, left)

    def take(event: training_pb2.JobEvent) -> training_pb2.JobEvent | None:
        nonlocal over, messages
        if event.HasField("step"):
            position.step = max(position.step, event.step.step + 1)
        elif event.HasField("job"):
            over = is_over(event.job.state)
            if event.job.state == training_pb2.RECOVERING:
                # The job goes back to its checkpoint and repeats those steps.
                position.step = min(position.step, event.job.checkpoint_step)
                position.validated = min(position.validated, event.job.checkpoint_step)
        elif event.HasField("validation"):
            if event.validation.step < position.validated:
                return None
            position.validated = event.validation.step + 1
        else:
            messages += 1
            if messages <= position.messages:
                return None
            position.messages = messages
        return event

    def warning(text: str) -> training_pb2.JobEvent:
        message = training_pb2.JobMessage(text=text, level=training_pb2.JobMessage.WARNING)
        return training_pb2.JobEvent(message=message)

    watched = Watched(
        open_watch,
        take,
        lambda: over,
        warning,
        late=f"job {job_id} is not over yet; it goes on",
        kept=f"The job is kept (wait for it: client.job('{job_id}').wait())",
    )
    yield from keep_watching(watched, settings, end, settings.watch_retry_for)


def download(name: str, folder: Path, progress: Progress | None = None) -> Steps[models_pb2.Artifact]:
    """Writes an artifact's files to a folder, which it makes. Errors as FolderWriter, NotFound."""
    writer = FolderWriter(folder, progress)
    replies = yield Open(method("Models", "Get"), models_pb2.DownloadRequest(name=name))
    try:
        while (reply := (yield Read(replies))) is not None:
            yield Work(functools.partial(writer.take, reply))
    except Lost as lost:
        raise lost.error from None
    except BaseException:
        writer.abandon()
        raise
    finally:
        replies.cancel()
    yield Work(writer.finish)
    return writer.artifact


def download_weights(name: str) -> Steps[dict[str, np.ndarray[Any, Any]]]:
    """The tensors of a model artifact by name."""
    from espalier import safetensors_io

    with tempfile.TemporaryDirectory(prefix="espalier-") as folder:
        yield from download(name, Path(folder))
        tensors: dict[str, np.ndarray[Any, Any]] = yield Work(lambda: safetensors_io.load_folder(folder))
        return tensors


def going_on(record: training_pb2.Job) -> str:
    """How a cancelled job goes on."""
    step = record.checkpoint_step
    where = f"after step {step}" if step else "from its beginning, as it has no checkpoint"
    return f"go on with it, {where}: client.job('{record.id}').resume()"


class JobMethods(Generic[R]):
    """What Job and AsyncJob have in common. `id` is the coordinator's name of the job, `R` the class of replays."""

    _connection: Any

    def _make_replay(self, replay_id: str) -> R:
        raise NotImplementedError

    def __init__(self, connection: Any, job_id: str, graph: Graph | None = None, notes: tuple[str, ...] = ()):
        self._connection = connection
        self.id = job_id
        self._graph = graph
        self._notes = notes

    def _watch(
        self, from_step: int = 0, follow: bool = True, end: float | None = None
    ) -> Generator[Step | Emit[training_pb2.JobEvent], Any, None]:
        return watch(self.id, self._connection.settings, Position(from_step), follow, end)

    def _get(self) -> Steps[training_pb2.Job]:
        request = training_pb2.GetJobRequest(job_id=self.id)
        reply: training_pb2.GetJobReply = yield Unary(method("Training", "Get"), request)
        return reply.job

    def _with_sources(self, message: str) -> str:
        return message if self._graph is None else self._graph.with_sources(message)

    def failure(self, record: training_pb2.Job) -> errors.JobFailed | None:
        """The exception for a job that has FAILED or was CANCELLED; None for others."""
        if record.state == training_pb2.CANCELLED:
            return errors.JobFailed(self.id, f"job {self.id} was cancelled; {going_on(record)}")
        if record.state != training_pb2.FAILED:
            return None
        checkpoint = (
            f"; its checkpoint after step {record.checkpoint_step} is kept: client.job('{self.id}').resume()"
            if record.checkpoint_step > 0
            else ""
        )
        return errors.JobFailed(self.id, f"job {self.id} failed: {self._with_sources(record.error)}{checkpoint}")

    @value
    def record(self) -> Steps[training_pb2.Job]:
        """The coordinator's record (docs/reference/grpc-api.md, Job), as it is now."""
        return (yield from self._get())

    @value
    def state(self) -> Steps[str]:
        """ "queued", "planning", "running", "recovering", "succeeded", "failed" or "cancelled"."""
        return state_name((yield from self._get()).state)

    @value
    def name(self) -> Steps[str]:
        """As it was submitted; empty: none."""
        return (yield from self._get()).spec.name

    @value
    def progress(self) -> Steps[float]:
        """The part of its steps that is done, from 0 to 1."""
        return progress_of((yield from self._get()))

    @value
    def created(self) -> Steps[datetime]:
        """When it was submitted."""
        return time_of((yield from self._get()).created_unix_ms)

    @value
    def owner(self) -> Steps[str]:
        """Of the key that submitted it; empty: nobody."""
        return (yield from self._get()).owner

    @value
    def model(self) -> Steps[str]:
        """The trained model's artifact, for `serve`, `weights` and `download`; empty before the job has succeeded."""
        return (yield from self._get()).output_model

    @value
    def stream_position(self) -> Steps[int]:
        """Batches that were pushed to a job of fit(stream=True): the step whose examples come next."""
        return (yield from self._get()).steps_pushed

    @value
    def notes(self) -> Steps[list[str]]:
        """What differs from what one may expect, one sentence each."""
        return list((yield from self._get()).notes)

    @value
    def evaluation(self) -> Steps[dict[str, float]]:
        """Loss and metrics on the held-out examples; empty before the job has succeeded, or without such examples."""
        return dict((yield from self._get()).evaluation)

    @value
    def history(self) -> Steps[History]:
        """The values that each step has reported so far."""
        reports = Reports()

        def take(event: training_pb2.JobEvent) -> None:
            if event.HasField("step"):
                reports.add(event.step)

        yield from consume(self._watch(follow=False), take)
        return reports.history()

    @value
    def plan(self) -> Steps[Plan]:
        """The plan by which it runs. FailedPrecondition while it has none."""
        settings = self._connection.settings
        request = plan_pb2.ExplainRequest(job_id=self.id)
        reply = yield Unary(method("Planner", "Explain"), request, settings.plan_timeout)
        return Plan(reply.plan, reply.text, reply.measured_step_seconds, tuple(reply.notes))

    @stream
    def events(
        self, from_step: int = 0, follow: bool = True
    ) -> Generator[Step | Emit[training_pb2.JobEvent], Any, None]:
        """JobEvents: the job's record, reports and messages so far, then with `follow` new ones until it is over.

        A message has a text and a level: INFO, DETAIL (about plans and files) or WARNING (training_pb2.JobMessage).
        A lost connection is resumed where it broke off; a WARNING says so.
        """
        yield from self._watch(from_step, follow)

    @operation
    def wait(self, timeout: float | None = None) -> Steps[training_pb2.Job]:
        """Waits until the job is over and returns its record. JobFailed if it has failed or was cancelled.

        Messages of the coordinator go to the log "espalier", at level INFO or WARNING.
        TimeoutError (DeadlineExceeded) if it goes on after `timeout` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        last = training_pb2.Job()

        def take(event: training_pb2.JobEvent) -> None:
            if event.HasField("job"):
                last.CopyFrom(event.job)
            elif event.HasField("message"):
                is_warning = event.message.level == training_pb2.JobMessage.WARNING
                level = logging.WARNING if is_warning else logging.INFO
                logger.log(level, "job %s: %s", self.id, event.message.text)

        yield from consume(self._watch(from_step=_NO_STEPS, end=end), take)
        record = (yield from self._get()) if not is_over(last.state) else last
        failure = self.failure(record)
        if failure is not None:
            raise failure
        return record

    @operation
    def cancel(self) -> Steps[str]:
        """Ends the job; returns its state. FailedPrecondition if it has succeeded or failed.

        The steps since its last checkpoint are lost; checkpoint() before it keeps them.
        """
        request = training_pb2.CancelRequest(job_id=self.id, idempotency_key=idempotency_key())
        reply = yield Unary(method("Training", "Cancel"), request)
        return state_name(reply.job.state)

    @operation
    def checkpoint(self, *, timeout: float = 600.0) -> Steps[int]:
        """Has a running job write a checkpoint now, and returns the number of steps that its checkpoint has.

        Waits for that; DeadlineExceeded after `timeout` seconds. FailedPrecondition if the job is over.
        """
        request = training_pb2.CheckpointRequest(job_id=self.id)
        reply = yield Unary(method("Training", "Checkpoint"), request, timeout)
        return int(reply.job.checkpoint_step)

    @operation
    def resume(self) -> Steps[str]:
        """Queues a failed or cancelled job again, from its last checkpoint; returns its state."""
        request = training_pb2.ResumeRequest(job_id=self.id, idempotency_key=idempotency_key())
        reply = yield Unary(method("Training", "Resume"), request)
        return state_name(reply.job.state)

    @operation
    def update(self, *, priority: int | None = None, time_limit: float | timedelta | None = None) -> Steps[str]:
        """Changes a job that is not over, its priority only while it is queued; returns its state.

        As of espalier.fit; a time_limit of 0 is none. FailedPrecondition if it is too late.
        """
        request = training_pb2.UpdateJobRequest(job_id=self.id, idempotency_key=idempotency_key())
        if priority is not None:
            request.priority = check_count("priority", priority, -1000, 1000)
        if time_limit is not None:
            request.time_limit_seconds = seconds_of("time_limit", time_limit)
        reply = yield Unary(method("Training", "Update"), request)
        return state_name(reply.job.state)

    @operation
    def delete(self) -> Steps[None]:
        """Deletes a job that is over: its record, its log and its checkpoints; the model that it made stays.

        FailedPrecondition if it is not over: cancel() it first.
        """
        yield Unary(
            method("Training", "Delete"),
            training_pb2.DeleteJobRequest(job_id=self.id, idempotency_key=idempotency_key()),
        )

    @operation
    def weights(self) -> Steps[dict[str, np.ndarray[Any, Any]]]:
        """The trained parameters by their names in the graph. FailedPrecondition before the job has succeeded."""
        record = yield from self._get()
        if record.state != training_pb2.SUCCEEDED:
            raise self.failure(record) or errors.FailedPrecondition(
                f"job {self.id} is {state_name(record.state)}: its weights are there once it has succeeded; wait()"
            )
        return (yield from download_weights(record.output_model))

    @operation
    @asks_itself(replay_spec)
    def replay(self, spec: replay_pb2.ReplaySpec) -> Steps[R]:
        """As client.replay, of this job."""
        from espalier.replays import start_replay

        return (yield from start_replay(self._connection, spec, self._make_replay))

    @operation
    def logged(
        self, *, log: str | Sequence[str] = (), steps: StepsOf = None, source: str | None = None
    ) -> Steps[Logged]:
        """As client.history, of this job: what was recorded, and the answers to replays."""
        from espalier.history import read_history

        return (yield from read_history(self._connection.settings, self.id, log, steps, source))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"


class Job(JobMethods["Replay"], Blocking):
    """A training job."""

    def _make_replay(self, replay_id: str) -> Replay:
        from espalier.replay import Replay

        return Replay(self._connection, replay_id)

    def push(self, data: Any, *, end: bool = True, columns: Mapping[str, str] | None = None) -> int:
        """Brings the examples of the next steps to a job of fit(stream=True); returns the number of batches it has.

        They are those behind `stream_position` batches; data: as of fit, read once, and beyond the job's steps not at
        all. With `end`, the job ends with them. Waits while the job has as many batches as may wait. The last examples
        that do not fill a batch are left out, with a warning. FailedPrecondition if the job is over: resume it first;
        or has the examples of all its steps. InvalidArgument for fewer examples than a batch.
        """
        from espalier import streaming

        return streaming.push(self, data, end=end, columns=columns)

    def _events_after(self, position: Position) -> Iterator[training_pb2.JobEvent]:
        """As events, behind `position`, which moves along."""
        return drive_stream(self._connection, watch(self.id, self._connection.settings, position))


class AsyncJob(JobMethods["AsyncReplay"], Asynchronous):
    """A training job, for asyncio: methods are coroutines, and so are the properties (`await job.state`)."""

    def _make_replay(self, replay_id: str) -> AsyncReplay:
        from espalier.replay import AsyncReplay

        return AsyncReplay(self._connection, replay_id)
