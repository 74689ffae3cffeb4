"""What was logged, as rows and as a table of pandas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from espalier.errors import InvalidArgument, NotFound
from espalier.flor import store, values
from espalier.flor.record import key_of


@dataclass(frozen=True)
class Row:
    """One logged value. source: "forward" as it was recorded, "replay" as a replay found it.

    at: the loops it is in, as (name, index) or (name, index, value), and blocks as their names. differs: whether a
    replay found another value than was recorded, where both are there then; or, of a value that the record lacks,
    whether that replay had taken another course before.
    """

    experiment: str
    version: int
    at: tuple[Any, ...]
    ordinal: int
    name: str
    value: Any
    source: str
    differs: bool = False

    @property
    def loops(self) -> tuple[tuple[str, int], ...]:
        """The loops and the indices of their iterations."""
        return tuple((entry[0], entry[1]) for entry in self.at if not isinstance(entry, str))


def _rows(version: store.Version) -> Iterator[Row]:
    for line in store.read_lines(version.journal):
        if "arg" in line:
            yield Row(version.experiment, version.number, (), 0, line["arg"], values.decode(line["value"]), "forward")
        elif "log" in line:
            yield _row(version, line, "forward")
    found = {}
    for path in version.replays():  # of several replays the last one counts
        for line in store.read_lines(path):
            if "log" in line:
                found[key_of(line["at"]), line["log"], line["n"]] = line
    for line in found.values():
        yield _row(version, line, "replay")


def _row(version: store.Version, line: dict[str, Any], source: str) -> Row:
    at = tuple(entry if isinstance(entry, str) else tuple(entry) for entry in line["at"])
    value = values.decode(line["value"])
    differs = bool(line.get("differs"))
    return Row(version.experiment, version.number, at, line["n"], line["log"], value, source, differs)


def rows(experiment: str, names: Sequence[str] = (), versions: Sequence[int] = ()) -> list[Row]:
    """The values of these names (none: of all), recorded and replayed. NotFound for names that nothing has."""
    found = store.versions(experiment)
    if not found:
        store.find_version(experiment)
    chosen = [store.find_version(experiment, number) for number in versions] if versions else found
    every = [row for version in chosen for row in _rows(version)]
    known = {row.name for row in every}
    missing = [name for name in names if name not in known]
    if missing:
        raise NotFound(
            f"{experiment} has no value {', '.join(missing)}; logged are {', '.join(sorted(known)) or 'none'}"
        )
    return [row for row in every if not names or row.name in names]


def _tabulate(every: Sequence[Row]) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns, and a row for each place: values of an outer loop are repeated in the rows of inner ones."""
    cells: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in every:
        place: tuple[Any, ...] = (row.version, row.loops, row.ordinal, row.differs)
        if row.name in cells.get(place, {"values": {}})["values"]:  # of another block of the same iteration
            place = (*place, row.at)
        cell = cells.setdefault(place, {"row": row, "sources": set(), "values": {}})
        cell["sources"].add(row.source)
        cell["values"][row.name] = row.value
    loops = list(dict.fromkeys(name for row in every for name, _ in row.loops))
    inner: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for place, cell in cells.items():
        version, at = place[0], cell["row"].loops
        for length in range(len(at)):
            inner.setdefault((version, at[:length]), []).append(place)
    made: list[dict[str, Any]] = []
    inherited: dict[tuple[Any, ...], tuple[dict[str, Any], set[str]]] = {}
    for place, cell in cells.items():
        key = (place[0], cell["row"].loops)
        if key in inner and not place[3] and not place[2]:
            have, sources = inherited.setdefault(key, ({}, set()))
            have.update(cell["values"])
            sources.update(cell["sources"])
    for place, cell in cells.items():
        first: Row = cell["row"]
        key = (place[0], first.loops)
        if key in inner and not place[3] and not place[2]:
            continue
        line: dict[str, Any] = {"version": first.version}
        line.update(dict.fromkeys(loops))
        line.update(dict(first.loops))
        sources = set(cell["sources"])
        for length in range(len(first.loops)):
            have, more = inherited.get((place[0], first.loops[:length]), ({}, set()))
            line.update(have)
            sources |= more if length else set()
        line.update(cell["values"])
        line |= {"ordinal": first.ordinal, "source": "+".join(sorted(sources)), "differs": first.differs}
        made.append(line)
    made.sort(
        key=lambda line: (
            line["version"],
            [-1 if line[name] is None else line[name] for name in loops],
            line["ordinal"],
        )
    )
    return loops, made


def dataframe(every: Sequence[Row], names: Sequence[str] = ()) -> Any:
    """Rows as a DataFrame of pandas, with the columns of these names, or of all.

    ModuleNotFoundError without pandas, naming the extra that has it.
    """
    try:
        import pandas
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            "flor.dataframe needs the package pandas: pip install 'espalier[pandas]'; flor.rows needs nothing",
            name="pandas",
        ) from None
    loops, lines = _tabulate(every)
    reserved = {"version", *loops, "ordinal", "source", "differs"}
    logged = list(dict.fromkeys(names or (row.name for row in every)))
    taken = [name for name in logged if name in reserved]
    if taken:
        raise InvalidArgument(
            f"flor.dataframe: {taken[0]} is a column of the place; log under another name, or use flor.rows"
        )
    columns = ["version", *loops, "ordinal", *logged, "source", "differs"]
    table = pandas.DataFrame([[line.get(name) for name in columns] for line in lines], columns=columns)
    for name in loops:
        table[name] = table[name].astype("Int64")
    return table


__all__ = ["Row", "dataframe", "rows"]
