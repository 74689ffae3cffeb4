"""The losses and metrics of any number of examples, and the examples that `fit` validates on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from espalier.errors import InvalidArgument
from espalier.keras.arrays import COUNTED, SUM_WEIGHTS, WEIGHTS, Array, Source, are_batches
from espalier.keras.confusion_metrics import ConfusionMetric

if TYPE_CHECKING:
    from espalier.keras.heads import LossGraph
    from espalier.session import Session

_CHUNK_BYTES = 16 << 20  # of one command


class Totals:
    """Means over batches, as Keras' metrics take them: by examples or by their weights."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, float] = {}
        self._roots: set[str] = set()
        self._states: dict[str, tuple[ConfusionMetric, Array]] = {}

    def add(self, built: LossGraph, values: Mapping[str, float], examples: int, weight: float) -> None:
        """Takes the values of a batch: means over its examples, of products with weights that have this sum."""
        for report in built.reports:
            if report.metric is not None:
                continue
            value = values[report.name]
            if report.root:
                self._roots.add(report.name)
                value *= value
            count = weight if report.weighted and built.weighted else examples
            self._sums[report.name] = self._sums.get(report.name, 0.0) + value * examples
            self._counts[report.name] = self._counts.get(report.name, 0.0) + count

    def add_predictions(self, built: LossGraph, columns: Mapping[str, Array], made: Mapping[str, Array]) -> None:
        """Takes the predictions of a batch, by the names of the outputs."""
        for report in built.reports:
            if report.metric is not None:
                weights = columns.get(WEIGHTS) if report.weighted else None
                counts = report.metric.counts(
                    columns[report.labels], made[built.predictions[report.prediction]], weights
                )
                _, before = self._states.get(report.name, (report.metric, 0))
                self._states[report.name] = (report.metric, before + counts)

    def add_to_loss(self, penalty: float) -> None:
        """Adds what does not depend on examples."""
        self._sums["loss"] += penalty * self._counts["loss"]

    def means(self) -> dict[str, float]:
        """The means until now, sorted by name."""
        found = {name: metric.result(state) for name, (metric, state) in self._states.items()}
        for name in self._sums:
            count = self._counts[name]
            value = self._sums[name] / count if count else 0.0
            found[name] = math.sqrt(value) if name in self._roots else value
        return {name: found[name] for name in sorted(found)}


def penalties(built: LossGraph) -> float:
    """What regularizers of weights add to the loss."""
    total = 0.0
    for variable in built.lowering.variables.values():
        r = variable.regularizer
        if r is not None and variable.trainable and (r.l1 or r.l2):
            w = variable.numpy().astype(np.float64)
            total += r.l1 * float(np.abs(w).sum()) + r.l2 * float((w * w).sum())
    return total


def _rows(columns: Mapping[str, Array], first: int, end: int) -> dict[str, Array]:
    return {name: array[first:end] for name, array in columns.items()}


def _filled(columns: Mapping[str, Array], batch: int, sum_factor: float) -> dict[str, Array]:
    """Columns filled up to whole batches with examples that do not count."""
    count = len(columns[WEIGHTS])
    more = -count % batch
    found = dict(columns)
    if SUM_WEIGHTS in found:
        found[SUM_WEIGHTS] = found[SUM_WEIGHTS] * np.float32(sum_factor)
    if not more:
        return found
    for name, array in found.items():
        last = np.repeat(array[-1:], more, axis=0)
        found[name] = np.concatenate([array, np.zeros_like(last) if name.startswith(WEIGHTS) else last])
    return found


def evaluate(session: Session, built: LossGraph, columns: Mapping[str, Array], batch_size: int, totals: Totals) -> None:
    """Adds losses and metrics of all examples of `columns` to `totals`. `batch_size`: Keras', for losses that sum."""
    count = len(next(iter(columns.values())))
    if built.weighted and WEIGHTS not in columns:
        columns = {**columns, WEIGHTS: np.ones(count, np.float32)}
    if built.counted:
        extra = {COUNTED: np.ones(count, np.float32)}
        if built.sums:
            extra[SUM_WEIGHTS] = columns[WEIGHTS]
        columns = {**columns, **extra}
    size = session.batch_size
    step = batch_size if built.sums else _chunk(columns, size)
    for first in range(0, count, step):
        part = _rows(columns, first, min(first + step, count))
        examples = min(step, count - first)
        _add_predictions(session, built, part, totals)
        if not built.counted:
            totals.add(built, session.evaluate(part), examples, examples)
            continue
        # A sum is not divided by the number of examples: what its weights are multiplied by makes up for that.
        filled = _filled(part, size, examples / size)
        whole = len(filled[WEIGHTS])
        values = session.evaluate(filled)
        for report in built.reports:
            if report.metric is not None:
                continue
            values[report.name] *= math.sqrt(whole / examples) if report.root else whole / examples
        totals.add(built, values, examples, float(part[WEIGHTS].sum(dtype=np.float64)))


def _add_predictions(session: Session, built: LossGraph, columns: Mapping[str, Array], totals: Totals) -> None:
    wanted = {built.predictions[report.prediction] for report in built.reports if report.metric is not None}
    if wanted:
        inputs = {name: columns[name] for name in built.network.input_names()}
        totals.add_predictions(built, columns, session.predict(inputs, sorted(wanted)))


def _chunk(columns: Mapping[str, Array], size: int) -> int:
    """Examples of a command: whole batches."""
    each = sum(array.nbytes // max(1, len(array)) for array in columns.values())
    return max(1, _CHUNK_BYTES // max(1, each * size)) * size


def held_out(
    source: Source, data: Any, split: float, steps: int | None, batch_size: int, here: bool
) -> tuple[Source | None, float]:
    """What to validate on, in memory, and which part of `source` is held out at the coordinator instead.

    Takes a split off `source` where the coordinator could not evaluate all of it; `here`: in any case.
    """
    if data is not None:
        held = _source(data).whole(steps)
    elif split and source.examples is not None and (source.weighted or steps is not None or here):
        held = source.take_last(int(source.examples * split))
        held.class_weight = None  # which weighs the training alone, as in Keras
        held.weighted = held.first[2] is not None
    elif steps is not None:
        raise InvalidArgument("fit: validation_steps: there are no validation examples in memory; give validation_data")
    else:
        return None, split
    assert held.examples is not None
    if steps is not None and held.examples > steps * batch_size:
        held.take_last(held.examples - steps * batch_size)
    return held, 0.0


def _source(data: Any) -> Source:
    if isinstance(data, (tuple, list)) and len(data) in (2, 3) and not are_batches(data):
        return Source(data[0], data[1], data[2] if len(data) == 3 else None, None, "fit: validation_data")
    if hasattr(data, "__array__") or isinstance(data, Mapping):
        raise InvalidArgument("fit: validation_data: accepted: (x, y), (x, y, sample_weight), or an iterable of them")
    return Source(data, None, None, None, "fit: validation_data")


def evaluator(built: LossGraph, held: Source, batch_size: int) -> Callable[[Session], Mapping[str, float]]:
    """Gives the losses and metrics of `held` in a session that trains `built`."""
    held.follow(built)
    columns = held.columns(built.network, built.targets)

    def run(session: Session) -> Mapping[str, float]:
        totals = Totals()
        evaluate(session, built, columns, batch_size, totals)
        totals.add_to_loss(penalties(built))
        return totals.means()

    return run


__all__ = ["Totals", "evaluate", "evaluator", "held_out", "penalties"]
