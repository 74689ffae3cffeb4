"""Runs of experiments, as client.runs(), client.run() and client.diff_runs() give them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from espalier.job import state_name
from espalier.listing import Info, Listing, plain
from espalier.plan import size
from espalier.v1 import recording_pb2, training_pb2

J = TypeVar("J")


class RunInfo(Info, Generic[J]):
    """A run: a job as a version of its experiment, with what was recorded of it.

    record: the coordinator's Recording (docs/reference/grpc-api.md), of which client.run() also fills attempts and
    checkpoints. `job` is what client.job(id) gives: how it is now, and its methods.
    """

    head = ("run", "job", "state", "steps", "first loss", "last", "best", "checkpoints", "size", "owner")
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
        "recorded_checkpoints",
        "recorded_bytes",
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
        """The step that had the smallest loss."""
        return self.record.losses.best_step if self.record.HasField("losses") else None

    @property
    def recorded_checkpoints(self) -> int:
        """Checkpoints that there are."""
        return self.record.job.recorded_checkpoints

    @property
    def recorded_bytes(self) -> int:
        """Of these."""
        return self.record.job.recorded_bytes

    def _loss(self, which: str) -> float | None:
        return float(getattr(self.record.losses, which)) if self.record.HasField("losses") else None

    def __repr__(self) -> str:
        named = [f"{name}: {plain(cell)}" for name, cell in zip(self.head, self.cells(), strict=True) if cell]
        return f"<RunInfo {', '.join(named)}>"

    def cells(self) -> list[str]:
        """A row of the table."""
        job = self.record.job
        losses = ["" if loss is None else f"{loss:.4g}" for loss in (self.first_loss, self.last_loss, self.best_loss)]
        kept = [str(job.recorded_checkpoints), size(job.recorded_bytes)] if self.recorded else ["off", ""]
        steps = f"{job.steps_done}/{job.total_steps}" if job.total_steps else ""
        return [self.name, job.id, self.state, steps, *losses, *kept, job.owner]


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


__all__ = ["RunDiff", "RunDifference", "RunInfo", "run_diff"]
