"""Replays of recorded runs: how far they are, their answers, and whether the losses are the recorded ones."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any, TypeAlias

from espalier.history import History, HistoryInfo
from espalier.notes import warn
from espalier.plan import seconds
from espalier.progress import Printer
from espalier.replay_record import (
    Comparison,
    ReplayInfo,
    comparison_of,
    counted,
    failure_of,
    replay_is_over,
    replay_state,
    steps_of,
    unit_of,
)
from espalier.rpc import Settings, method
from espalier.steps import (
    Asynchronous,
    Blocking,
    Emit,
    Open,
    Step,
    Steps,
    Unary,
    consume,
    operation,
    stream,
    value,
)
from espalier.v1 import replay_pb2
from espalier.watching import Watched, keep_watching

logger = logging.getLogger("espalier")
Answers: TypeAlias = "Generator[Step | Emit[HistoryInfo], Any, None]"
Changed: TypeAlias = Callable[[replay_pb2.ReplayInfo], None]


def watch(
    replay_id: str,
    settings: Settings,
    changed: Changed,
    *,
    with_rows: bool = False,
    end: float | None = None,
    retry_for: float,
) -> Answers:
    """Emits with_rows the replay's answers, until it is over; `changed` gets its record, again after each change.

    What `changed` raises ends it. A lost connection is resumed for up to retry_for seconds, and no answer comes twice.
    DeadlineExceeded at `end` (of time.monotonic).
    """
    seen: set[tuple[str, str, str, int]] = set()  # answers: the coordinator sends all of them again
    over = False

    def open_watch(left: float | None) -> Open:
        request = replay_pb2.WatchReplayRequest(replay_id=replay_id, with_rows=with_rows)
        return Open(method("Replay", "Watch"), request, left)

    def take(event: replay_pb2.ReplayEvent) -> HistoryInfo | None:
        nonlocal over
        if not event.HasField("row"):
            over = replay_is_over(event.replay.state)
            changed(event.replay)
            return None
        row = event.row
        key = (row.job_id, row.name, row.reduction, row.step)
        if key in seen:
            return None
        seen.add(key)
        return HistoryInfo(row)

    def warn_of_loss(text: str) -> None:
        logger.warning("%s", text)

    watched: Watched[HistoryInfo] = Watched(
        open_watch,
        take,
        lambda: over,
        warn_of_loss,
        late=f"{replay_id} is not over yet; it goes on",
        kept="The replay is kept",
    )
    yield from keep_watching(watched, settings, end, retry_for)


def get_replay(replay_id: str) -> Steps[replay_pb2.ReplayInfo]:
    """What the coordinator has of a replay, as it is now."""
    reply = yield Unary(method("Replay", "Get"), replay_pb2.GetReplayRequest(replay_id=replay_id))
    record: replay_pb2.ReplayInfo = reply.replay
    return record


class _Enough(Exception):
    """Ends a watch when what was wanted is there."""


def _ignore(row: HistoryInfo) -> None:
    """Where no answers are asked for."""


class _Shown:
    """What a replay's wait prints."""

    def __init__(self, printer: Printer, noted: set[str]):
        self._printer = printer
        self._noted = noted
        self._done = 0  # that were shown
        self._began: tuple[float, int] | None = None  # when the first steps were done, and how many

    def take(self, record: replay_pb2.ReplayInfo) -> None:
        for note in record.notes:
            if note not in self._noted:
                self._noted.add(note)
                self._printer.note(note)
        done, total = steps_of(record)
        if record.state == replay_pb2.REPLAY_WAITING or done in (0, self._done):
            return
        self._done = done
        now = time.monotonic()
        if self._began is None:
            self._began = now, done
        since, at_first = self._began
        pace = (now - since) / (done - at_first) if done > at_first else 0.0
        verb = "read " if record.spec.at_checkpoints else "replayed "
        self._printer.step(done, total, pace, {}, verb, unit_of(record))

    def finish(self, record: replay_pb2.ReplayInfo) -> None:
        done, total = steps_of(record)
        took = (record.finished_unix_ms - record.created_unix_ms) / 1000
        compared = "" if record.spec.at_checkpoints else f"; {comparison_of(record)}"
        steps = f"{done} of {counted(total, unit_of(record))}"
        self._printer.finish(
            f"{record.id} {replay_state(record.state)} after {steps} in {seconds(took)}, "
            f"{counted(record.rows, 'answer')}{compared}"
        )


class ReplayMethods:
    """What Replay and AsyncReplay have in common. `id` is the coordinator's name of the replay."""

    _connection: Any

    def __init__(self, connection: Any, replay_id: str):
        self._connection = connection
        self.id = replay_id
        self._noted: set[str] = set()  # notes that were shown

    def warn_of(self, record: replay_pb2.ReplayInfo) -> None:
        """Shows the record's notes as warnings, each once."""
        for note in record.notes:
            if note not in self._noted:
                self._noted.add(note)
                warn(note)

    def _watch(self, changed: Changed, *, with_rows: bool = False, end: float | None = None) -> Answers:
        settings = self._connection.settings
        return watch(self.id, settings, changed, with_rows=with_rows, end=end, retry_for=settings.watch_retry_for)

    def _get(self) -> Steps[replay_pb2.ReplayInfo]:
        return (yield from get_replay(self.id))

    @value
    def record(self) -> Steps[ReplayInfo[Any]]:
        """What the coordinator has of it (docs/reference/grpc-api.md, ReplayInfo), as it is now."""
        return ReplayInfo((yield from self._get()), self)

    @value
    def state(self) -> Steps[str]:
        """ "waiting" (for workers), "running", "succeeded", "differs", "failed" or "cancelled"."""
        return replay_state((yield from self._get()).state)

    @value
    def notes(self) -> Steps[list[str]]:
        """What differs from what one may expect, one sentence each."""
        return list((yield from self._get()).notes)

    @value
    def comparison(self) -> Steps[Comparison]:
        """How its losses were compared with the recorded ones: to the bit, or within a tolerance, and why."""
        return comparison_of((yield from self._get()))

    @operation
    def wait(self, timeout: float | None = None, *, verbose: int = 1) -> Steps[ReplayInfo[Any]]:
        """Waits until the replay is over and returns what `record` gives; verbose: as of espalier.fit.

        ReplayDiffers, with the step and both values, if a loss is not the recorded one; ReplayFailed for other failures
        and if it was cancelled. TimeoutError (DeadlineExceeded) if it goes on after `timeout` seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        shown, last = _Shown(Printer(verbose), self._noted), replay_pb2.ReplayInfo()

        def changed(record: replay_pb2.ReplayInfo) -> None:
            last.CopyFrom(record)
            shown.take(record)

        yield from consume(self._watch(changed, end=end), _ignore)
        shown.finish(last)
        failure = failure_of(last)
        if failure is not None:
            raise failure
        return ReplayInfo(last, self)

    @operation
    def rows(self) -> Steps[History]:
        """The answers that there are so far, by run, name and step: a table, as of client.history."""
        rows: list[HistoryInfo] = []
        known = 0  # as many as the coordinator had

        def check() -> None:
            if len(rows) >= known:
                raise _Enough

        def changed(record: replay_pb2.ReplayInfo) -> None:
            nonlocal known
            known = record.rows
            check()

        def take(row: HistoryInfo) -> None:
            rows.append(row)
            if known:
                check()

        with contextlib.suppress(_Enough):
            yield from consume(self._watch(changed, with_rows=True), take)
        rows.sort(key=lambda row: (row.experiment, row.version, row.name, row.reduction, row.step))
        return History(HistoryInfo, rows)

    @stream
    def answers(self) -> Answers:
        """The answers as they come, until the replay is over; then errors as `wait`. Iterating does the same."""
        last = replay_pb2.ReplayInfo()

        def changed(record: replay_pb2.ReplayInfo) -> None:
            last.CopyFrom(record)
            self.warn_of(record)

        yield from self._watch(changed, with_rows=True)
        failure = failure_of(last)
        if failure is not None:
            raise failure

    @operation
    def cancel(self) -> Steps[str]:
        """Ends the replay, and returns its state; answers that there are stay. No effect if it is over."""
        request = replay_pb2.CancelReplayRequest(replay_id=self.id)
        reply = yield Unary(method("Replay", "Cancel"), request)
        return replay_state(reply.replay.state)

    @operation
    def delete(self) -> Steps[None]:
        """Deletes a replay that is over, with its answers, which the history does not show then.

        FailedPrecondition for one that is not; NotFound after it was deleted.
        """
        yield Unary(method("Replay", "Delete"), replay_pb2.DeleteReplayRequest(replay_id=self.id))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"


class Replay(ReplayMethods, Blocking):
    """A replay of recorded runs. Iterating gives its answers as they come."""

    def __iter__(self) -> Iterator[HistoryInfo]:
        return self.answers()


class AsyncReplay(ReplayMethods, Asynchronous):
    """As Replay, for asyncio: methods are coroutines, and so are the properties (`await replay.state`)."""

    def __aiter__(self) -> AsyncIterator[HistoryInfo]:
        return self.answers()


__all__ = ["AsyncReplay", "Comparison", "Replay"]
