"""Starting replays: what is asked, what it would take, and the table of all replays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from espalier.job import time_of
from espalier.listing import Info, Listing
from espalier.plan import seconds, size
from espalier.replay import Comparison, ReplayMethods, comparison_of, counted, replay_state, steps_of
from espalier.replay_question import asks, replay_spec
from espalier.rpc import idempotency_key, method
from espalier.steps import Steps, Unary, operation
from espalier.v1 import replay_pb2

R = TypeVar("R", bound=ReplayMethods)


@dataclass(frozen=True, repr=False)
class ReplayEstimate:
    """What a replay would take.

    steps: that are trained again, of which logged_steps are logged; checkpoints: that are read instead. seconds: with
    the workers that are idle now, of which loading_seconds for checkpoints. rows, bytes: of the answers. segments: that
    may run at once. lacking: probes of names that a run does not have, by run; reasons: why, of each of these.
    fetched: by spool, how many checkpoints of how many bytes are copied back from there.
    """

    steps: int
    logged_steps: int
    checkpoints: int
    seconds: float
    loading_seconds: float
    rows: int
    bytes: int
    segments: int
    lacking: dict[str, tuple[str, ...]] = field(default_factory=dict)
    reasons: dict[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    fetched: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __repr__(self) -> str:
        lacks = [f"; {run} has no {', '.join(names)}" for run, names in self.lacking.items()]
        lacks += [
            f"; copies {counted(count, 'checkpoint')}, {size(taken)}, back from {spool}"
            for spool, (count, taken) in self.fetched.items()
        ]
        what = counted(self.checkpoints, "checkpoint") if self.checkpoints else counted(self.steps, "step")
        return (
            f"<ReplayEstimate: {what} in {counted(self.segments, 'segment')}, about "
            f"{seconds(self.seconds)}; {counted(self.rows, 'answer')}, about {size(self.bytes)}{''.join(lacks)}>"
        )


def _estimate_of(found: replay_pb2.ReplayEstimate) -> ReplayEstimate:
    return ReplayEstimate(
        steps=found.steps,
        logged_steps=found.logged_steps,
        checkpoints=sum(segment.checkpoints for segment in found.segments),
        seconds=found.seconds,
        loading_seconds=found.loading_seconds,
        rows=found.rows,
        bytes=found.bytes,
        segments=len(found.segments),
        lacking={lacking.run: tuple(lacking.log) for lacking in found.lacking},
        reasons={lacking.run: tuple(lacking.reasons) for lacking in found.lacking},
        notes=tuple(found.notes),
        fetched={fetched.spool: (fetched.checkpoints, fetched.bytes) for fetched in found.fetched},
    )


class ReplayInfo(Info, Generic[R]):
    """A replay of client.replays(), as it was then. `replay` is what client.replay gave: how it is now, its methods."""

    head = ("replay", "run", "state", "steps", "answers", "started", "owner", "error")
    fields = ("id", "run", "state", "steps_done", "total_steps", "rows", "created", "owner", "error")
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
        return [r.id, self.run, self.state, steps, str(r.rows), started, r.owner, r.error]


def start_replay(connection: Any, spec: replay_pb2.ReplaySpec, make: Callable[[str], R]) -> Steps[R]:
    """Starts a replay, and shows its notes as warnings."""
    request = replay_pb2.StartReplayRequest(spec=spec, idempotency_key=idempotency_key())
    reply = yield Unary(method("Replay", "Start"), request, connection.settings.plan_timeout)
    made = make(reply.replay.id)
    made.warn_of(reply.replay)
    return made


class ReplayCalls(Generic[R]):
    """Calls for replays; `R` is their class."""

    _connection: Any
    _make_replay: Callable[[str], R]

    @operation
    @asks(replay_spec)
    def replay(self, spec: replay_pb2.ReplaySpec) -> Steps[R]:
        """Trains steps of recorded runs again and logs what nobody logged then; compares every loss with the record.

        Returns at once; Replay.wait() waits. run: "NAME@V", "NAME" (the newest version), or a job's id; "*" in NAME:
        the newest version of each experiment that matches; "NAME@*": all versions. log: probes, "norm(grad(layers.*))",
        "histogram(relu_1, 64)" (`espalier help replay` lists them); none: only losses are compared. graphs: small
        graphs by the names of their answers, evaluated in each logged step: an espalier.Graph, or ONNX (a model, its
        bytes or a path), whose inputs are named after what they read, such as "grad(w)". steps: a step, a range,
        (first, end), or "A:B"; None: all. every: only every so many of these. segment: (k, n), part k of n, from 1 on.
        workers: at most so many at once; None: all that are idle. any_plan: where workers like the recorded ones are
        not idle, others will do, and losses are compared within a tolerance. at="checkpoints": only at steps that have
        a checkpoint, without training: parameters, optimizer state and, with evaluate="holdout" or the name of a
        dataset, an evaluation. Its notes are shown as warnings (EspalierWarning).

        InvalidArgument for a probe that cannot be read, a graph that cannot be evaluated, and steps that were not
        trained; NotFound for an unknown run or a name that no run has; FailedPrecondition for a run that was not
        recorded.
        """
        return (yield from start_replay(self._connection, spec, self._make_replay))

    @operation
    @asks(replay_spec)
    def estimate_replay(self, spec: replay_pb2.ReplaySpec) -> Steps[ReplayEstimate]:
        """What `replay` with the same arguments would take, and names that runs lack. Errors as `replay`."""
        request = replay_pb2.EstimateReplayRequest(spec=spec)
        reply = yield Unary(method("Replay", "Estimate"), request, self._connection.settings.plan_timeout)
        return _estimate_of(reply.estimate)

    @operation
    def replays(self, run: str = "") -> Steps[Listing[ReplayInfo[R]]]:
        """Replays of runs, named as for `replay`, or (empty) all, the newest first: a list that prints a table."""
        reply = yield Unary(method("Replay", "List"), replay_pb2.ListReplaysRequest(run=run))
        return Listing(ReplayInfo, (ReplayInfo(record, self._make_replay(record.id)) for record in reply.replays))


__all__ = ["ReplayCalls", "ReplayEstimate", "ReplayInfo"]
