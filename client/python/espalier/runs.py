"""Runs of experiments, as client.runs(), client.run(), client.run_values() and client.diff_runs() give them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Generic, TypeVar

from espalier.job import state_name, time_of
from espalier.listing import Info, Listing, plain
from espalier.plan import seconds, size
from espalier.v1 import graph_pb2, program_pb2, recording_pb2, training_pb2

J = TypeVar("J")


class RunInfo(Info, Generic[J]):
    """A run: a job as a version of its experiment, with what was recorded of it.

    record: the coordinator's Recording (docs/reference/grpc-api.md), of which client.run() also fills attempts and
    checkpoints. `job` is what client.job(id) gives: how it is now, and its methods.
    """

    head = ("run", "job", "state", "steps", "first loss", "last", "best", "checkpoints", "size", "copies", "owner")
    fields = (
        "name",
        "experiment",
        "version",
        "job_id",
        "state",
        "steps_done",
        "first_loss",
        "last_loss",
        "best_loss",
        "best_step",
        "all_checkpoints",
        "recorded_checkpoints",
        "recorded_bytes",
        "copied_checkpoints",
        "copied_bytes",
        "dataset",
        "dataset_sha256",
        "optimizer",
        "learning_rate",
        "schedule",
        "batch_size",
        "epochs",
        "total_steps",
        "seed",
        "seconds",
        "started",
        "owner",
    )
    none = "no runs"

    record: recording_pb2.Recording

    def __init__(self, record: recording_pb2.Recording, job: J):
        super().__init__(record)
        self.job = job

    @property
    def name(self) -> str:
        """EXPERIMENT@VERSION, as client.run takes it."""
        return f"{self.record.experiment}@{self.record.version}"

    @property
    def job_id(self) -> str:
        """The job's id."""
        return self.record.job.id

    @property
    def state(self) -> str:
        """As Job.state: "queued", "running", "succeeded", ..."""
        return state_name(self.record.job.state)

    @property
    def recorded(self) -> bool:
        """Whether checkpoints are kept, and what they were made with."""
        return self.record.job.spec.record.mode != training_pb2.RecordOptions.OFF

    @property
    def steps_done(self) -> int:
        """Steps that it has trained."""
        return self.record.job.steps_done

    @property
    def first_loss(self) -> float | None:
        """Of the first step; None: no step is done."""
        return self._loss("first")

    @property
    def last_loss(self) -> float | None:
        """Of the last step."""
        return self._loss("last")

    @property
    def best_loss(self) -> float | None:
        """The smallest."""
        return self._loss("best")

    @property
    def best_step(self) -> int | None:
        """The step that had the smallest loss; the first step is 0."""
        return self.record.losses.best_step if self.record.HasField("losses") else None

    @property
    def recorded_checkpoints(self) -> int:
        """Checkpoints in the checkpoint store. `all_checkpoints` counts those of which only a copy is left, too."""
        return self.record.job.recorded_checkpoints

    @property
    def recorded_bytes(self) -> int:
        """Of these."""
        return self.record.job.recorded_bytes

    @property
    def dataset(self) -> str:
        """The artifact's name, or the URI; `dataset_sha256` is the hash of what it held."""
        return self.record.job.spec.dataset.uri.removeprefix("artifact:")

    @property
    def optimizer(self) -> str:
        """ "adamw", "sgd", ...: record.job.spec.optimizer has its options."""
        return self.record.job.spec.optimizer.name

    @property
    def learning_rate(self) -> float:
        """The peak of the schedule."""
        return self.record.job.spec.optimizer.learning_rate.peak

    @property
    def schedule(self) -> str:
        """ "constant", "cosine", "one_cycle", ..."""
        kind = self.record.job.spec.optimizer.learning_rate.kind
        return program_pb2.LearningRateSchedule.Kind.Name(kind).lower()

    @property
    def batch_size(self) -> int:
        """Examples of a step."""
        return self.record.job.spec.batch_size

    @property
    def epochs(self) -> int:
        """As it was asked for; 0: as many steps as were asked for."""
        return self.record.job.spec.epochs

    @property
    def total_steps(self) -> int:
        """Steps that it is to train; 0: not known yet."""
        return self.record.job.total_steps

    @property
    def seed(self) -> int:
        """Of everything random."""
        return self.record.job.spec.seed

    @property
    def started(self) -> datetime | None:
        """When it began; None: it has not."""
        return time_of(self.record.job.started_unix_ms) if self.record.job.started_unix_ms else None

    @property
    def seconds(self) -> float:
        """From its begin to its end; of one that is not over: how long it has had workers."""
        job = self.record.job
        over = (job.finished_unix_ms - job.started_unix_ms) / 1000
        return over if job.finished_unix_ms and job.started_unix_ms else job.running_seconds

    @property
    def owner(self) -> str:
        """Of the key that submitted it; empty: nobody."""
        return self.record.job.owner

    def _loss(self, which: str) -> float | None:
        return float(getattr(self.record.losses, which)) if self.record.HasField("losses") else None

    def __repr__(self) -> str:
        rate = f"{self.learning_rate:g}, {self.schedule}" if self.optimizer else ""
        more = {
            "dataset": self.dataset,
            "optimizer": self.optimizer,
            "learning rate": rate,
            "batch size": str(self.batch_size or ""),
            "epochs": str(self.epochs or ""),
            "time": seconds(self.seconds) if self.seconds else "",
        }
        cells = [*zip(self.head, self.cells(), strict=True), *more.items()]
        named = [f"{name}: {plain(cell)}" for name, cell in cells if cell]
        return f"<RunInfo {', '.join(named)}>"

    def cells(self) -> list[str]:
        """A row of the table."""
        job = self.record.job
        losses = ["" if loss is None else f"{loss:.4g}" for loss in (self.first_loss, self.last_loss, self.best_loss)]
        kept = [str(self.record.all_checkpoints), size(job.recorded_bytes)] if self.recorded else ["off", ""]
        copied = self.record.copied_checkpoints
        kept.append(f"{copied}, {size(self.record.copied_bytes)} uncompressed" if copied else "")
        steps = f"{job.steps_done}/{job.total_steps}" if job.total_steps else ""
        return [self.name, job.id, self.state, steps, *losses, *kept, job.owner]


class RunValue(Info):
    """A name that a replay of the run can log, as `log` writes it: "param(w)", "relu_1", "state(w, adam_m)"."""

    head = ("name", "kind", "type", "also")
    fields = ("log", "kind", "name", "slot", "dtype", "shape", "gradient", "update", "recomputed", "output_of")
    none = "no values"

    record: recording_pb2.RunValue

    @property
    def kind(self) -> str:
        """ "parameter", "value", "batch input" or "optimizer state"."""
        return recording_pb2.RunValue.Kind.Name(self.record.kind).lower().replace("_", " ")

    @property
    def dtype(self) -> str:
        """ "f32", "i32", ..."""
        return graph_pb2.DataType.Name(self.record.type.dtype).lower()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a whole batch."""
        return tuple(self.record.type.dims)

    def cells(self) -> list[str]:
        """A row of the table."""
        r = self.record
        gradient = "grad (recomputed)" if r.gradient_recomputed else "grad"
        also = [gradient] if r.gradient else []
        also += ["update"] if r.update else []
        also += ["recomputed"] if r.recomputed else []
        also += [f"is {r.output_of}"] if r.output_of else []
        return [r.log, self.kind, f"{self.dtype}{list(self.shape)}", ", ".join(also)]


class RunDifference(Info):
    """A field that differs between two runs."""

    head = ("field", "a", "b")
    fields = ("field", "a", "b")
    none = "they do not differ"

    record: recording_pb2.RunDifference

    def cells(self) -> list[str]:
        """A row of the table."""
        return [self.record.field, self.record.a, self.record.b]


class RunDiff(Listing[RunDifference]):
    """How two runs differ.

    first_different_step: whose losses differ in any bit; None: those of none of the common_steps do.
    """

    def __init__(self, differences: Iterable[RunDifference], common_steps: int, first_different_step: int | None):
        super().__init__(RunDifference, differences)
        self.common_steps = common_steps
        self.first_different_step = first_different_step

    def __repr__(self) -> str:
        if self.common_steps == 0:
            return super().__repr__()
        if self.first_different_step is None:
            losses = f"the losses of {self.common_steps} steps are the same to the bit"
        else:
            losses = (
                f"their losses differ from step {self.first_different_step} on, of {self.common_steps} that both have"
            )
        return f"{super().__repr__()}\n{losses}"

    def __reduce__(self) -> Any:
        return (RunDiff, (list(self), self.common_steps, self.first_different_step))


def run_diff(reply: recording_pb2.DiffRunsReply) -> RunDiff:
    """The differences of a reply."""
    first = reply.first_different_step
    return RunDiff(map(RunDifference, reply.differences), reply.common_steps, None if first < 0 else first)


__all__ = ["RunDiff", "RunDifference", "RunInfo", "RunValue", "run_diff"]
