"""Starting replays: what is asked, what it would take, and the table of all replays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from espalier.counts import check_count
from espalier.errors import InvalidArgument
from espalier.history import StepsOf, step_bounds
from espalier.job import time_of
from espalier.listing import Info, Listing
from espalier.plan import seconds, size
from espalier.replay import Comparison, ReplayMethods, comparison_of, replay_state, steps_of
from espalier.rpc import idempotency_key, method
from espalier.spelling import meant
from espalier.steps import Steps, Unary, operation
from espalier.v1 import replay_pb2, training_pb2

R = TypeVar("R", bound=ReplayMethods)
Segment = tuple[int, int]


def replay_spec(
    run: str,
    log: str | Sequence[str],
    steps: StepsOf,
    every: int,
    segment: Segment | None,
    workers: int | None,
    any_plan: bool,
    at: str | None,
    evaluate: str | None,
) -> replay_pb2.ReplaySpec:
    """The message for the arguments of client.replay. InvalidArgument for what cannot be meant."""
    first, end, stride = step_bounds(steps)
    check_count("every", every)
    if stride != 1 and every != 1:
        raise InvalidArgument(f"steps={steps!r} and every={every} both say which steps are logged; give one of them")
    spec = replay_pb2.ReplaySpec(
        run=run,
        log=[log] if isinstance(log, str) else list(log),
        first_step=first,
        end_step=end,
        every=every * stride,
        max_workers=0 if workers is None else check_count("workers", workers),
        any_plan=any_plan,
    )
    if segment is not None:
        if not isinstance(segment, tuple) or len(segment) != 2:
            raise InvalidArgument(f"segment={segment!r}: accepted is (k, n), part k of n, from 1 on")
        spec.segments = check_count("segment: n", segment[1], 1, (1 << 31) - 1)
        spec.segment = check_count("segment: k", segment[0], 1, spec.segments)
    if at is not None:
        if at != "checkpoints":
            raise InvalidArgument(f"at={at!r}: accepted is 'checkpoints'{meant(str(at), ['checkpoints'])}")
        spec.at_checkpoints = True
    if evaluate is not None:
        if at is None:
            raise InvalidArgument("evaluate: checkpoints are evaluated: give at='checkpoints', too")
        if evaluate == "holdout":
            spec.evaluate_holdout = True
        else:
            spec.evaluate.CopyFrom(_dataset(evaluate))
    return spec


def _dataset(given: str) -> training_pb2.Dataset:
    """Without a format, which is that of the job's dataset."""
    if not isinstance(given, str) or not given:
        raise InvalidArgument(
            f"evaluate is {given!r}; accepted: 'holdout', the name of a dataset of client.upload, or 's3://...'"
        )
    is_uri = given.startswith(("artifact:", "s3://", "/"))
    return training_pb2.Dataset(uri=given if is_uri else f"artifact:{given}")


@dataclass(frozen=True, repr=False)
class ReplayEstimate:
    """What a replay would take.

    steps: that are trained again, of which logged_steps are logged; checkpoints: that are read instead. seconds: with
    the workers that are idle now, of which loading_seconds for checkpoints. rows, bytes: of the answers. segments: that
    may run at once. lacking: probes of names that a run does not have, by run.
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
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        lacks = [f"; {run} has no {', '.join(names)}" for run, names in self.lacking.items()]
        what = _count(self.checkpoints, "checkpoint") if self.checkpoints else _count(self.steps, "step")
        return (
            f"<ReplayEstimate: {what} in {_count(self.segments, 'segment')}, about "
            f"{seconds(self.seconds)}; {_count(self.rows, 'answer')}, about {size(self.bytes)}{''.join(lacks)}>"
        )


def _count(count: int, unit: str) -> str:
    return f"{count} {unit}{'' if count == 1 else 's'}"


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
        notes=tuple(found.notes),
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
    def replay(
        self,
        run: str,
        *,
        log: str | Sequence[str] = (),
        steps: StepsOf = None,
        every: int = 1,
        segment: Segment | None = None,
        workers: int | None = None,
        any_plan: bool = False,
        at: str | None = None,
        evaluate: str | None = None,
    ) -> Steps[R]:
        """Trains steps of recorded runs again and logs what nobody logged then; compares every loss with the record.

        Returns at once; Replay.wait() waits. run: "NAME@V", "NAME" (the newest version), or a job's id; "*" in NAME:
        the newest version of each experiment that matches; "NAME@*": all versions. log: probes, "norm(grad(layers.*))",
        "histogram(relu_1, 64)" (`espalier help replay` lists them); none: only losses are compared. steps: a step, a
        range, or (first, end); None: all. every: only every so many of these. segment: (k, n), only part k of n, from
        1 on. workers: at most so many at once; None: all that are idle. any_plan: where workers like the recorded ones
        are not idle, others will do, and losses are compared within a tolerance. at="checkpoints": only at steps that
        have a checkpoint, without training: parameters, optimizer state and, with evaluate="holdout" or the name of a
        dataset, an evaluation. Its notes are shown as warnings (EspalierWarning).

        InvalidArgument for a probe that cannot be read, and steps that were not trained; NotFound for an unknown run or
        a name that no run has; FailedPrecondition for a run that was not recorded.
        """
        spec = replay_spec(run, log, steps, every, segment, workers, any_plan, at, evaluate)
        return (yield from start_replay(self._connection, spec, self._make_replay))

    @operation
    def estimate_replay(
        self,
        run: str,
        *,
        log: str | Sequence[str] = (),
        steps: StepsOf = None,
        every: int = 1,
        segment: Segment | None = None,
        workers: int | None = None,
        any_plan: bool = False,
        at: str | None = None,
        evaluate: str | None = None,
    ) -> Steps[ReplayEstimate]:
        """What `replay` with the same arguments would take, and names that runs lack. Errors as `replay`."""
        spec = replay_spec(run, log, steps, every, segment, workers, any_plan, at, evaluate)
        request = replay_pb2.EstimateReplayRequest(spec=spec)
        reply = yield Unary(method("Replay", "Estimate"), request, self._connection.settings.plan_timeout)
        return _estimate_of(reply.estimate)

    @operation
    def replays(self, run: str = "") -> Steps[Listing[ReplayInfo[R]]]:
        """Replays of runs, named as for `replay`, or (empty) all, the newest first: a list that prints a table."""
        reply = yield Unary(method("Replay", "List"), replay_pb2.ListReplaysRequest(run=run))
        return Listing(ReplayInfo, (ReplayInfo(record, self._make_replay(record.id)) for record in reply.replays))


__all__ = ["ReplayCalls", "ReplayEstimate", "ReplayInfo"]
