"""What was recorded of runs, and the answers to replays of them, as client.history() gives them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

import numpy as np

from espalier.errors import InvalidArgument
from espalier.job import time_of
from espalier.listing import Info, Listing
from espalier.rpc import Settings, method
from espalier.session_stream import numpy_dtype
from espalier.spelling import meant
from espalier.step_range import StepsOf, step_bounds
from espalier.steps import Lost, Open, Read, Sleep, Steps, operation
from espalier.v1 import probe_pb2, replay_pb2, training_pb2

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

_LABELS_NAMED = 20  # in an error message
_SOURCES = {"forward": replay_pb2.HistoryRow.FORWARD, "replay": replay_pb2.HistoryRow.REPLAY}


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts of a tensor's elements in ranges of equal width from `low` to `high`; `outside` are in none of them."""

    low: float
    high: float
    counts: Array
    outside: int = 0

    @property
    def edges(self) -> Array:
        """Where the ranges begin and end, as numpy.histogram gives it."""
        return np.linspace(self.low, self.high, len(self.counts) + 1)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Histogram)
            and (self.low, self.high, self.outside) == (other.low, other.high, other.outside)
            and np.array_equal(self.counts, other.counts)
        )

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return f"{int(self.counts.sum())} in [{self.low:.4g}, {self.high:.4g}]"


@dataclass(frozen=True, eq=False)
class Elements:
    """Some elements of a tensor, and their places in it in row-major order (of quantiles: in sorted order)."""

    indices: Array
    values: Array

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Elements)
            and np.array_equal(self.indices, other.indices)
            and np.array_equal(self.values, other.values, equal_nan=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return str(self.values)


Value: TypeAlias = "float | Histogram | Elements | Array | None"


def _tensor(tensor: training_pb2.TensorValue) -> Array:
    return np.frombuffer(tensor.data, numpy_dtype(tensor.dtype)).reshape(tuple(tensor.dims))


def value_of(value: probe_pb2.ProbeValue) -> Value:
    """A reduction's result as a Python object. None: it has none."""
    kind = value.WhichOneof("kind")
    if kind == "scalar":
        return value.scalar
    if kind == "histogram":
        found = value.histogram
        return Histogram(found.low, found.high, np.array(found.counts, np.int64), found.outside)
    if kind == "elements":
        return Elements(np.array(value.elements.indices, np.int64), np.array(value.elements.values, np.float64))
    if kind != "tensor":
        return None
    array = _tensor(value.tensor)
    return array if array.shape else float(array)


def label_of(name: str, reduction: str) -> str:
    """What asks for a value: "loss", "norm(grad(w))", "histogram(relu_1, 64)"."""
    if reduction in ("", "full"):
        return name
    call, opened, arguments = reduction.partition("(")
    return f"{call}({name}{', ' if opened else ''}{arguments[:-1]})"


class HistoryInfo(Info):
    """A value that a run has logged at a step."""

    head = ("run", "step", "value of", "is", "source", "replay")
    fields = (
        *("experiment", "version", "job_id", "step", "name", "reduction", "label", "value"),
        *("source", "replay_id", "logged"),
    )
    # As in the files of `espalier history`.
    columns = MappingProxyType({"job_id": "job", "replay_id": "replay", "logged": "time"})
    none = "nothing is recorded that matches"
    most_rows: ClassVar[int] = 40

    record: replay_pb2.HistoryRow

    @property
    def run(self) -> str:
        """NAME@VERSION."""
        return f"{self.record.experiment}@{self.record.version}"

    @property
    def label(self) -> str:
        """The name with its reduction, as it is asked for: "norm(grad(w))"."""
        return label_of(self.record.name, self.record.reduction)

    @property
    def value(self) -> Value:
        """A float; a Histogram; Elements (samples, the largest ones, quantiles); a tensor as an array."""
        return value_of(self.record.value)

    @property
    def source(self) -> str:
        """ "forward": it was recorded; "replay": it was answered later."""
        return "replay" if self.record.source == replay_pb2.HistoryRow.REPLAY else "forward"

    @property
    def logged(self) -> datetime | None:
        """When; None: this is not known."""
        return time_of(self.record.unix_ms) if self.record.unix_ms else None

    def cells(self) -> list[str]:
        """A row of the table."""
        value = self.value
        if isinstance(value, float):
            shown = f"{value:.6g}"
        elif isinstance(value, np.ndarray):
            shown = f"{value.dtype}{list(value.shape)}"
        else:
            shown = "" if value is None else str(value)
        return [self.run, str(self.record.step), self.label, shown, self.source, self.record.replay_id]


class History(Listing[HistoryInfo]):
    """The values of one or several runs, by run, name and step."""

    def _of(self, entries: list[HistoryInfo]) -> History:
        return History(self._kind, entries)

    def curve(
        self, label: str, run: str | None = None, source: str | None = None, replay: str | None = None
    ) -> tuple[Array, Array]:
        """The steps and the numbers of a label: what plot() takes.

        run: NAME@VERSION; it may be left out if there is one. Of what was both recorded and replayed, the record
        counts, unless source="replay". replay: only the answers of the replay with this id. InvalidArgument for a
        label without numbers, and if replays have answered a step differently: choose one.
        """
        runs = list(dict.fromkeys(row.run for row in self if row.label == label))
        if not runs:
            labels = list(dict.fromkeys(row.label for row in self))
            shown = ", ".join([*labels[:_LABELS_NAMED], *(["..."] if len(labels) > _LABELS_NAMED else [])])
            raise InvalidArgument(f"there is no {label!r}{meant(label, labels)}; there is {shown or 'nothing'}")
        if run is None and len(runs) > 1:
            raise InvalidArgument(f"{label} is of several runs: say which, of {', '.join(runs)}")
        rows = [
            row
            for row in self
            if row.label == label
            and row.run == (run or runs[0])
            and source in (None, row.source)
            and replay in (None, row.replay_id)
        ]
        found: dict[int, tuple[HistoryInfo, float]] = {}
        for row in sorted(rows, key=lambda row: row.source != "forward"):
            value = row.value
            if not isinstance(value, float):
                raise InvalidArgument(f"{label} is no number, but a {type(value).__name__}")
            other, known = found.setdefault(row.step, (row, value))
            if other.source != "forward" and not np.array_equal(known, value, equal_nan=True):
                raise InvalidArgument(
                    f"{label} of step {row.step} is {known} by {other.replay_id}, and {value} by {row.replay_id}: "
                    f"choose one, as in replay={row.replay_id!r}"
                )
        steps = sorted(found)
        return np.array(steps, np.int64), np.array([found[step][1] for step in steps], np.float64)


def query_request(
    run: str, log: str | Sequence[str], steps: StepsOf, source: str | None
) -> replay_pb2.QueryHistoryRequest:
    """The request for the rows of a run. InvalidArgument for what cannot be meant."""
    first, end, _ = step_bounds(steps)
    request = replay_pb2.QueryHistoryRequest(
        run=run, log=[log] if isinstance(log, str) else list(log), first_step=first, end_step=end
    )
    if source is not None:
        if source not in _SOURCES:
            raise InvalidArgument(f"source={source!r}: accepted are {', '.join(_SOURCES)}{meant(source, _SOURCES)}")
        request.source = _SOURCES[source]
    return request


def read_history(
    settings: Settings, run: str, log: str | Sequence[str], steps: StepsOf, source: str | None
) -> Steps[History]:
    """The rows of a run; asks again while the coordinator is unavailable."""
    request = query_request(run, log, steps, source)
    first, _, every = step_bounds(steps)
    give_up, pause = time.monotonic() + settings.retry_for, 0.1
    while True:
        rows: list[replay_pb2.HistoryRow] = []
        replies = yield Open(method("Replay", "Query"), request)
        try:
            while (reply := (yield Read(replies))) is not None:
                rows.extend(row for row in reply.rows if (row.step - first) % every == 0)
            return History(HistoryInfo, map(HistoryInfo, rows))
        except Lost as lost:
            if time.monotonic() + pause > give_up:
                raise lost.error from None
        finally:
            replies.cancel()
        yield Sleep(pause)
        pause = min(2 * pause, 2.0)


class HistoryMethods:
    """Calls for what was recorded."""

    _settings: Settings

    @operation
    def history(
        self,
        run: str,
        *,
        log: str | Sequence[str] = (),
        steps: StepsOf = None,
        source: str | None = None,
    ) -> Steps[History]:
        """What was recorded of runs, and the answers to replays of them: a list that prints a table.

        run: "NAME@V", "NAME" (the newest version), a job's id, "NAME@*" (all versions); "*" in NAME stands for any
        characters. log: names or probes, "loss", "norm(grad(*))"; "*" stands for any characters; none: all. steps: a
        step, a range, (first, end), or "A:B". source: "forward" (recorded) or "replay"; None: both. NotFound for an
        unknown run.
        """
        return (yield from read_history(self._settings, run, log, steps, source))


__all__ = ["Elements", "Histogram", "History", "HistoryInfo"]
