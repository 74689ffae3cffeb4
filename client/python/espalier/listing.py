"""What the coordinator lists (jobs, artifacts, served models), as objects and as tables."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, ClassVar, Generic, SupportsIndex, TypeVar, overload

from espalier import errors
from espalier.counts import check_count
from espalier.job import progress_of, state_name, time_of
from espalier.plan import size, table_html
from espalier.spelling import meant
from espalier.v1 import graph_pb2, inference_pb2, models_pb2, training_pb2

J = TypeVar("J")
Entry = TypeVar("Entry", bound="Info")

_ERROR_WIDTH = 60
_PAGE = 1000  # items that a page may have


class Pages:
    """The next page of a list; page_requests makes it."""

    def __init__(self, request: Any, limit: int | None):
        self.request = request
        self.over = limit == 0
        self._limit = limit
        self._size(0)

    def take(self, next_page_token: str, items: int) -> None:
        """A page has come, and with it there are so many items; the token is its reply's."""
        self.over = not next_page_token or (self._limit is not None and items >= self._limit)
        self.request.page_token = next_page_token
        self._size(items)

    def _size(self, items: int) -> None:
        if self._limit is not None:
            self.request.page_size = max(1, min(_PAGE, self._limit - items))


def page_requests(request: Any, limit: int | None) -> Iterator[Pages]:
    """The pages that are to be asked for, until there are `limit` items, or (None) all."""
    if limit is not None:
        check_count("limit", limit, 0)
    pages = Pages(request, limit)
    while not pages.over:
        yield pages


def states_of(given: str | Sequence[str] | None) -> list[Any]:
    """The states of ListJobsRequest. InvalidArgument for a name of none."""
    names = [given] if isinstance(given, str) else list(given or ())
    known = {state_name(number): number for number in training_pb2.JobState.values() if number}
    for name in names:
        if name not in known:
            raise errors.InvalidArgument(f"state {name!r}: accepted are {', '.join(known)}{meant(str(name), known)}")
    return [known[name] for name in names]


class Info:
    """An entry of a Listing, as it was when it was listed.

    record: the coordinator's message (docs/reference/grpc-api.md); its other fields are attributes, too.
    """

    head: ClassVar[tuple[str, ...]] = ()  # of the table; columns that are empty in every row are left out
    fields: ClassVar[tuple[str, ...]] = ()  # of the DataFrame
    columns: ClassVar[Mapping[str, str]] = MappingProxyType({})  # of the DataFrame, where its name is not the field's
    none: ClassVar[str] = ""  # in place of an empty table
    most_rows: ClassVar[int] = 0  # of the table, which leaves out those in the middle; 0: all

    def __init__(self, record: Any):
        self.record = record

    def __getattr__(self, name: str) -> Any:
        # What is asked for while there is no record yet (copy, pickle) is nobody's.
        if name.startswith("_") or name == "record":
            raise AttributeError(name)
        try:
            return getattr(self.record, name)
        except AttributeError:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}") from None

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.record.DESCRIPTOR.fields_by_name})

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and bool(other.record == self.record)

    __hash__ = None  # type: ignore[assignment]

    def cells(self) -> list[str]:
        """A row of the table."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {' '.join(filter(None, map(plain, self.cells())))}>"


class Listing(list[Entry]):
    """A list that is shown as a table, in a notebook, too."""

    def __init__(self, kind: type[Entry], entries: Iterable[Entry]):
        super().__init__(entries)
        self._kind = kind

    @overload
    def __getitem__(self, index: SupportsIndex) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Listing[Entry]: ...
    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return self._of(found) if isinstance(index, slice) else found

    def __reduce__(self) -> Any:
        return (type(self._of([])), (self._kind, list(self)))

    def _of(self, entries: list[Entry]) -> Listing[Entry]:
        """A part of the list."""
        return Listing(self._kind, entries)

    def _rows(self) -> tuple[list[str], list[list[str]]]:
        shown, most = list(self), self._kind.most_rows
        gap = most // 2 if 0 < most < len(shown) else None
        if gap is not None:
            shown = [*shown[:gap], *shown[gap - most :]]
        rows = [[plain(cell) for cell in entry.cells()] for entry in shown]
        if gap is not None:
            rows.insert(gap, [f"... {len(self) - most} more", *[""] * (len(self._kind.head) - 1)])
        used = [i for i in range(len(self._kind.head)) if any(row[i] for row in rows)]
        return [self._kind.head[i] for i in used], [[row[i] for i in used] for row in rows]

    def __repr__(self) -> str:
        if not self:
            return self._kind.none
        head, rows = self._rows()
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in [head, *rows]
        )

    def _repr_html_(self) -> str:
        return table_html(*self._rows()) if self else f"<div>{html.escape(self._kind.none)}</div>"

    def dataframe(self) -> Any:
        """As a pandas DataFrame, a row for each entry. Needs pandas: espalier[pandas]."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise errors.FailedPrecondition("a DataFrame needs pandas: pip install 'espalier[pandas]'") from None
        fields = self._kind.fields
        columns = [self._kind.columns.get(name, name) for name in fields]
        return pandas.DataFrame([[getattr(entry, name) for name in fields] for entry in self], columns=columns)


class JobInfo(Info, Generic[J]):
    """A job of client.jobs(), as it was then. `job` is what client.job(id) gives: how it is now, and its methods."""

    head = ("job", "name", "state", "progress", "created", "model", "owner", "error")
    fields = (
        "id",
        "name",
        "state",
        "progress",
        "steps_done",
        "total_steps",
        "created",
        "output_model",
        "owner",
        "error",
    )
    none = "no jobs"

    record: training_pb2.Job

    def __init__(self, record: training_pb2.Job, job: J):
        super().__init__(record)
        self.job = job

    @property
    def name(self) -> str:
        """As it was submitted; empty: none."""
        return self.record.spec.name

    @property
    def state(self) -> str:
        """As Job.state: "queued", "running", "succeeded", ..."""
        return state_name(self.record.state)

    @property
    def progress(self) -> float:
        """The part of its steps that is done, from 0 to 1."""
        return progress_of(self.record)

    @property
    def created(self) -> datetime:
        """When it was submitted."""
        return time_of(self.record.created_unix_ms)

    def cells(self) -> list[str]:
        """A row of the table."""
        r = self.record
        steps = f"{r.steps_done}/{r.total_steps} steps" if r.total_steps else ""
        error = r.error if len(r.error) <= _ERROR_WIDTH else r.error[:_ERROR_WIDTH] + "..."
        return [r.id, self.name, self.state, steps, _minute(self.created), r.output_model, r.owner, error]


class ArtifactInfo(Info):
    """An artifact: a dataset, an ONNX file or a model."""

    head = ("artifact", "kind", "size", "files", "created", "owner")
    fields = ("name", "kind", "bytes", "created", "owner")
    none = "no artifacts"

    record: models_pb2.Artifact

    @property
    def kind(self) -> str:
        """ "dataset", "onnx" or "model", as upload takes it."""
        return str(models_pb2.Artifact.Kind.Name(self.record.kind)).lower()

    @property
    def created(self) -> datetime:
        """When it was stored."""
        return time_of(self.record.created_unix_ms)

    def cells(self) -> list[str]:
        """A row of the table."""
        r = self.record
        return [r.name, self.kind, size(r.bytes), str(len(r.files)), _minute(self.created), r.owner]


class ServedInfo(Info):
    """A served model."""

    head = ("model", "artifact", "state", "parameters", "context", "on", "loaded", "owner")
    fields = ("name", "artifact", "state", "parameters", "max_sequence_length", "loaded", "owner")
    none = "no models are served"

    record: inference_pb2.ServedModel

    @property
    def state(self) -> str:
        """ "ready", or what it waits for."""
        return str(self.record.state) or "ready"

    @property
    def loaded(self) -> datetime:
        """When it was loaded."""
        return time_of(self.record.loaded_unix_ms)

    def cells(self) -> list[str]:
        """A row of the table."""
        r = self.record
        context = "" if r.HasField("graph") else str(r.max_sequence_length)
        on = ", ".join(r.workers) or "the coordinator"
        return [r.name, r.artifact, self.state, f"{r.parameters:,}", context, on, _minute(self.loaded), r.owner]

    def __str__(self) -> str:
        r = self.record
        version = r.artifact_version or r.artifact
        head = f"{r.name}: {version}, {self.state}, {r.parameters:,} parameters"
        if not r.HasField("graph"):
            return plain(f"{head}, context of {r.max_sequence_length} tokens")
        batching = r.graph.batching
        head += f", passes of up to {batching.max_batch_size} examples"
        if batching.max_queue_delay_microseconds:
            head += f", for which a request waits up to {batching.max_queue_delay_microseconds / 1000:g} ms"
        tensors = (("inputs: ", r.graph.inputs), ("outputs:", r.graph.outputs))
        lines = [head, *(f"{what} {', '.join(map(_tensor, found))}" for what, found in tensors)]
        return "\n".join(map(plain, [*lines, *(f"note: {note}" for note in r.graph.notes)]))


def _tensor(tensor: inference_pb2.GraphTensor) -> str:
    """ "x f32[64]": of one example."""
    example = tensor.example
    return f"{tensor.name} {graph_pb2.DataType.Name(example.dtype).lower()}{list(example.dims)}"


def _minute(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M")


def plain(text: str) -> str:
    """On one line, without what a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in text)


__all__ = ["ArtifactInfo", "Info", "JobInfo", "Listing", "ServedInfo", "plain"]
