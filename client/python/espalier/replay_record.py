"""What the coordinator has of a replay: its state, how its losses were compared, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, Protocol, TypeVar

from espalier import errors
from espalier.job import time_of
from espalier.listing import Info, plain
from espalier.v1 import replay_pb2


class HasRows(Protocol):
    """A replay, for asyncio or not."""

    @property
    def rows(self) -> Any:
        """A method that gives its answers."""


R = TypeVar("R", bound=HasRows)

_EXPERIMENTS_NAMED = 2  # in a short list of runs


def replay_state(state: int) -> str:
    """ "waiting", "running", "succeeded", "differs", ..."""
    return replay_pb2.ReplayState.Name(state).lower().removeprefix("replay_")


def replay_is_over(state: int) -> bool:
    """Whether it does not go on."""
    return state not in (replay_pb2.REPLAY_WAITING, replay_pb2.REPLAY_RUNNING)


def steps_of(record: replay_pb2.ReplayInfo) -> tuple[int, int]:
    """How many steps are trained again so far, or checkpoints read, and how many will be."""
    done = total = 0
    for segment in record.segments:
        trained = segment.kind == replay_pb2.ReplaySegment.TRAINING
        steps = segment.end_step - segment.checkpoint_step if trained else segment.checkpoints
        done += steps if segment.state == replay_pb2.REPLAY_SUCCEEDED else segment.steps_done
        total += steps
    return done, total


@dataclass(frozen=True)
class Comparison:
    """How the losses of a replay were compared with the recorded ones, so far.

    compared: losses; exact: of these, to the bit. Of the others: tolerance (relative) is what is accepted, largest the
    largest difference that there was, and reasons say why their bits may differ. A loss that differs ends the replay.
    """

    compared: int
    exact: int
    tolerance: float
    largest: float
    reasons: tuple[str, ...]

    @property
    def bits(self) -> bool:
        """Whether all losses were compared to the bit."""
        return self.exact == self.compared

    def __str__(self) -> str:
        if not self.compared:
            return "no loss was compared with the record"
        parts = [f"{self.exact} to the bit"] if self.exact else []
        if not self.bits:
            parts.append(
                f"{self.compared - self.exact} within a relative {self.tolerance:.2g} (largest difference "
                f"{self.largest:.2g}), as {' and '.join(self.reasons)}"
            )
        return f"losses compared with the record: {', '.join(parts)}"


def comparison_of(record: replay_pb2.ReplayInfo) -> Comparison:
    """The comparisons of all segments."""
    found = [segment.comparison for segment in record.segments if segment.comparison.compared]
    others = [comparison for comparison in found if not comparison.bits]
    return Comparison(
        compared=sum(comparison.compared for comparison in found),
        exact=sum(comparison.compared for comparison in found if comparison.bits),
        tolerance=max((comparison.tolerance for comparison in others), default=0.0),
        largest=max((comparison.largest for comparison in others), default=0.0),
        reasons=tuple(dict.fromkeys(comparison.reason for comparison in others)),
    )


def failure_of(record: replay_pb2.ReplayInfo) -> errors.ReplayFailed | None:
    """The exception for a replay that is over and has not succeeded; None for others."""
    if record.state == replay_pb2.REPLAY_DIFFERS:
        d = record.difference
        where = f", first in {d.node}" if d.node else ""
        return errors.ReplayDiffers(
            record.id,
            f"{record.id} differs from the recording of {d.job_id} at step {d.step}{where}: loss {d.replayed!r}, "
            f"recorded {d.recorded!r}; {d.cause}",
            job_id=d.job_id,
            step=d.step,
            replayed=d.replayed,
            recorded=d.recorded,
            node=d.node,
            cause=d.cause,
        )
    if record.state == replay_pb2.REPLAY_FAILED:
        return errors.ReplayFailed(record.id, f"{record.id} failed: {record.error}")
    if record.state == replay_pb2.REPLAY_CANCELLED:
        return errors.ReplayFailed(record.id, f"{record.id} was cancelled")
    return None


def counted(count: int, unit: str, units: str = "") -> str:
    """ "1 answer", "2 answers"."""
    return f"{count} {unit if count == 1 else units or unit + 's'}"


def unit_of(record: replay_pb2.ReplayInfo) -> str:
    """What it counts: "step" or "checkpoint"."""
    return "checkpoint" if record.spec.at_checkpoints else "step"


def runs_in_short(runs: list[str]) -> str:
    """ "lm@1-3,5 and other@2"."""
    versions: dict[str, list[int]] = {}
    for run in runs:
        experiment, _, version = run.rpartition("@")
        if experiment and version.isdigit():
            versions.setdefault(experiment, []).append(int(version))
        else:
            versions.setdefault(run, [])
    parts = []
    for experiment, numbers in sorted(versions.items()):
        ranges: list[list[int]] = []
        for number in sorted(numbers):
            if ranges and number == ranges[-1][1] + 1:
                ranges[-1][1] = number
            else:
                ranges.append([number, number])
        of = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
        parts.append(f"{experiment}@{of}" if of else experiment)
    if len(parts) > _EXPERIMENTS_NAMED + 1:
        parts[_EXPERIMENTS_NAMED:] = [f"{len(parts) - _EXPERIMENTS_NAMED} more experiments"]
    return " and ".join(parts)


class ReplayInfo(Info, Generic[R]):
    """A replay, as it was when it was asked for. `replay` is what client.replay gave: how it is now, its methods."""

    head = ("replay", "run", "state", "steps", "answers", "started", "owner", "error")
    fields = ("id", "runs", "state", "steps_done", "total_steps", "answers", "created", "owner", "error")
    none = "no replays"

    record: replay_pb2.ReplayInfo

    def __init__(self, record: replay_pb2.ReplayInfo, replay: R):
        super().__init__(record)
        self.replay = replay

    @property
    def run(self) -> str:
        """What was asked for: "lm@3", "lm*"."""
        return self.record.spec.run

    @property
    def runs(self) -> list[str]:
        """What is replayed: "lm@3"."""
        return list(self.record.runs)

    @property
    def log(self) -> list[str]:
        """Its probes."""
        return list(self.record.spec.log)

    @property
    def state(self) -> str:
        """As Replay.state: "waiting", "running", "succeeded", ..."""
        return replay_state(self.record.state)

    @property
    def steps_done(self) -> int:
        """Steps that are trained again so far."""
        return steps_of(self.record)[0]

    @property
    def total_steps(self) -> int:
        """Steps that are trained again in all."""
        return steps_of(self.record)[1]

    @property
    def answers(self) -> int:
        """How many answers there are so far; rows() has them."""
        return self.record.rows

    def rows(self) -> Any:
        """As Replay.rows: the answers that there are now, a table; for asyncio: a coroutine."""
        return self.replay.rows()

    @property
    def comparison(self) -> Comparison:
        """How its losses were compared with the recorded ones."""
        return comparison_of(self.record)

    @property
    def created(self) -> datetime:
        """When it was started."""
        return time_of(self.record.created_unix_ms)

    def cells(self) -> list[str]:
        """A row of the table."""
        r = self.record
        steps = f"{self.steps_done}/{self.total_steps}"
        started = self.created.strftime("%Y-%m-%d %H:%M")
        return [r.id, runs_in_short(self.runs) or self.run, self.state, steps, str(r.rows), started, r.owner, r.error]

    def __repr__(self) -> str:
        r, compared = self.record, self.comparison
        parts = [f"{self.steps_done} of {counted(self.total_steps, unit_of(r))}"]
        if compared.compared:
            how = "to the bit" if compared.bits else f"{compared.exact} of them to the bit"
            parts.append(f"{counted(compared.compared, 'loss', 'losses')} compared, {how}")
        if r.state == replay_pb2.REPLAY_DIFFERS:
            parts.append(f"step {r.difference.step} is another")
        parts += [counted(r.rows, "answer"), *filter(None, [plain(r.error)])]
        runs = plain(runs_in_short(self.runs) or self.run)
        return f"<ReplayInfo {r.id} of {runs}: {self.state}, {', '.join(parts)}>"


__all__ = ["Comparison", "ReplayInfo"]
