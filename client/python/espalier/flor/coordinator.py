"""Runs of a coordinator as rows of flor: what jobs recorded, and the answers to replays of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from espalier.errors import NotFound
from espalier.flor.table import Row

if TYPE_CHECKING:
    from espalier.client import Client
    from espalier.history import HistoryInfo


def _read(client: Client, experiment: str, names: Sequence[str], versions: Sequence[int]) -> list[HistoryInfo]:
    runs = [f"{experiment}@{version}" for version in versions] or [f"{experiment}@*"]
    return [row for run in runs for row in client.history(run, log=names)]


def rows(client: Client, experiment: str, names: Sequence[str] = (), versions: Sequence[int] = ()) -> list[Row]:
    """The values of these names (none: of all); a name has its reduction: "norm(grad(w))".

    The loop is `step`. Of a value that a replay has found again, there is only the record. NotFound for names that
    nothing has.
    """
    every = [row for row in _read(client, experiment, names, versions) if not names or row.label in names]
    found = {row.label for row in every}
    missing = [name for name in names if name not in found]
    if missing:
        known = dict.fromkeys(row.label for row in _read(client, experiment, (), versions))
        raise NotFound(f"{experiment} has no value {', '.join(missing)}; logged are {', '.join(known) or 'none'}")
    recorded = {(row.version, row.label, row.step): row.value for row in every if row.source == "forward"}
    rows: dict[tuple[int, str, int, str], Row] = {}  # of several replays the last one counts
    for row in every:
        place = (row.version, row.label, row.step)
        again = row.source == "replay" and place in recorded
        if again and _same(recorded[place], row.value):
            continue
        at = (("step", row.step),)
        rows[row.version, row.label, row.step, row.source] = Row(
            row.experiment, row.version, at, 0, row.label, row.value, row.source, again
        )
    return list(rows.values())


def _same(a: object, b: object) -> bool:
    """Whether they are equal; NaN is equal to itself."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (a != a and b != b)
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.array_equal(a, b)  # type: ignore[arg-type]
    return a == b


__all__ = ["rows"]
