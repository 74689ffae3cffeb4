"""Starting replays: what is asked, what it would take, and the table of all replays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from espalier.listing import Listing
from espalier.plan import seconds, size
from espalier.replay import ReplayMethods, get_replay
from espalier.replay_question import asks, replay_spec
from espalier.replay_record import ReplayInfo, counted
from espalier.rpc import idempotency_key, method
from espalier.steps import Steps, Unary, operation
from espalier.v1 import replay_pb2

R = TypeVar("R", bound=ReplayMethods)


@dataclass(frozen=True, repr=False)
class ReplayEstimate:
    """What a replay would take.

    steps: that are trained again, of which logged_steps are logged; checkpoints: that are read instead. seconds: with
    the workers that are idle now, of which loading_seconds for checkpoints. answers: so many, of `bytes`. segments:
    that may run at once. lacking: probes of names that a run does not have, by run; reasons: why, of each of these.
    fetched: by spool, how many checkpoints of how many bytes are copied back from there.
    """

    steps: int
    logged_steps: int
    checkpoints: int
    seconds: float
    loading_seconds: float
    answers: int
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
            f"{seconds(self.seconds)}; {counted(self.answers, 'answer')}, about {size(self.bytes)}{''.join(lacks)}>"
        )


def _estimate_of(found: replay_pb2.ReplayEstimate) -> ReplayEstimate:
    return ReplayEstimate(
        steps=found.steps,
        logged_steps=found.logged_steps,
        checkpoints=sum(segment.checkpoints for segment in found.segments),
        seconds=found.seconds,
        loading_seconds=found.loading_seconds,
        answers=found.rows,
        bytes=found.bytes,
        segments=len(found.segments),
        lacking={lacking.run: tuple(lacking.log) for lacking in found.lacking},
        reasons={lacking.run: tuple(lacking.reasons) for lacking in found.lacking},
        notes=tuple(found.notes),
        fetched={fetched.spool: (fetched.checkpoints, fetched.bytes) for fetched in found.fetched},
    )


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
        graphs by the names of their answers, evaluated in each logged step, or over the batches of an evaluation: an
        espalier.Graph, or ONNX (a model, its bytes or a path), whose inputs are named after what they read, such as
        "grad(w)". steps: a step, a range, (first, end), or "A:B"; None: all. every: only every so many of these.
        segment: (k, n), part k of n, from 1 on. workers: at most so many at once; None: all that are idle. any_plan:
        where workers like the recorded ones are not idle, others will do, and losses are compared within a tolerance.
        at="checkpoints": only at steps that have a checkpoint, without training: parameters, optimizer state and, with
        evaluate="holdout" or the name of a dataset, an evaluation. Its notes are shown as warnings (EspalierWarning).

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

    @operation
    def get_replay(self, replay_id: str) -> Steps[ReplayInfo[R]]:
        """A replay by its id, as it is now: `rows()` has its answers, `.replay` can be cancelled and deleted."""
        return ReplayInfo((yield from get_replay(replay_id)), self._make_replay(replay_id))


__all__ = ["ReplayCalls", "ReplayEstimate", "ReplayInfo"]
