"""The loss and metrics of any number of examples, as PyTorch gives them for all of them as one batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from espalier import data as datasets
from espalier.errors import InvalidArgument
from espalier.torch import predicting
from espalier.torch.structure import rebuilt
from espalier.training import Callback, Run, TrainingResult

if TYPE_CHECKING:
    from espalier.session import Session
    from espalier.torch.module_graph import ModuleGraph

Array = np.ndarray[Any, Any]


class Examples:
    """Examples to evaluate, in memory, as the inputs of a graph take them. `columns`: input -> column, if named so.

    A loss that is a mean over examples, or their classes' weights, is computed by the workers, in batches. Of another
    one, such as a sum, the workers compute the module's outputs, and PyTorch the loss of all of them. Where the module
    computes such a loss itself, it is that of each batch, and the mean over examples.
    """

    def __init__(self, data: Any, converted: ModuleGraph, columns: Mapping[str, str] | None, loss: Any):
        self._converted, self._loss = converted, loss
        self.columns = datasets.inline_batch(data, converted.graph, columns)
        self._names = {name: dict(columns or {}).get(name, name) for name in converted.inputs}
        self.count = len(next(iter(self.columns.values())))
        for labels in converted.ranges:
            labels.check(self.columns[self._names[labels.name]], "evaluate")

    @property
    def _of_outputs(self) -> bool:
        return bool(self._converted.no_mean) and self._loss is not None

    def parts(self, batch_size: int) -> list[tuple[int, int, int]]:
        """Examples (from, to) and the batch size that evaluates them: two if the rest needs one of its own."""
        rest = self.count % batch_size
        if not self._converted.no_mean or self._of_outputs or rest == 0:
            return [(0, self.count, batch_size)]
        whole = [(0, self.count - rest, batch_size)] if self.count > rest else []
        return [*whole, (self.count - rest, self.count, rest)]

    def in_one(self, batch_size: int) -> Examples:
        """Itself, if batches of this size do. InvalidArgument if not."""
        if len(self.parts(batch_size)) > 1 or self.parts(batch_size)[0][2] != batch_size:
            raise InvalidArgument(
                f"{self._converted.no_mean} is no mean over examples, and the module computes it itself: the number of "
                f"examples to validate on must be a multiple of batch_size {batch_size}, not {self.count}; or return "
                "the logits, and give the trainer a loss of them"
            )
        return self

    def all_of(self, session: Session) -> dict[str, float]:
        """The values of all."""
        return self.evaluate(session, 0, self.count)

    def evaluate(self, session: Session, first: int, end: int) -> dict[str, float]:
        """Examples from `first` to before `end`."""
        part = {name: array[first:end] for name, array in self.columns.items()}
        return self._by_torch(session, part) if self._of_outputs else session.evaluate(part)

    def _by_torch(self, session: Session, part: Mapping[str, Array]) -> dict[str, float]:
        converted, names = self._converted, self._names
        labels = [name for name in converted.inputs if name in converted.labels]
        given = {names[name]: part[names[name]] for name in converted.inputs if name not in labels}
        found = predicting.outputs_of(session, converted, given, names)
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in found.items()}
        targets = {name: torch.from_numpy(np.array(part[names[name]])) for name in labels}
        values = {"loss": self._loss_of(tensors, list(targets.values()))}
        output, label = converted.accuracy_of
        if output:
            values["accuracy"] = accuracy(tensors[output].numpy(), targets[label].numpy())
        return values

    def _loss_of(self, tensors: Mapping[str, torch.Tensor], labels: Sequence[torch.Tensor]) -> float:
        outputs = rebuilt(self._converted.structure, tensors)
        if isinstance(self._loss, nn.Module) and isinstance(outputs, Mapping):
            outputs = outputs["logits"]
        with torch.no_grad():
            return float(self._loss(outputs, *(t.float() if t.dtype == torch.float64 else t for t in labels)))


def accuracy(logits: Array, labels: Array) -> float:
    """Fraction of labels, but -100, whose logit is the largest, as the operator `accuracy` says."""
    last = logits.ndim > 2 and logits.shape[:-1] == labels.shape
    classes = logits.ndim - 1 if last else 1
    places, highest = logits.argmax(classes), logits.max(classes)
    labels = labels.reshape(places.shape)
    counted = labels != -100
    right = (places == labels) & ~np.isnan(highest) & counted
    return float(right.sum() / max(1, counted.sum()))


def merged(parts: Sequence[tuple[int, Mapping[str, float]]]) -> dict[str, float]:
    """The means over examples of values of parts, each with its number of examples."""
    total = sum(count for count, _ in parts)
    return {name: sum(count * values[name] for count, values in parts) / total for name in parts[0][1]}


class Validations(Callback):
    """Keeps what each epoch's validation gave, for the history of the result."""

    def __init__(self) -> None:
        self._found: dict[int, dict[str, float]] = {}  # by epoch: a job repeats some after a lost worker

    def on_epoch(self, run: Run, epoch: int, values: Mapping[str, float]) -> None:
        """Takes the values of a validation."""
        found = {name: value for name, value in values.items() if name.startswith("val_")}
        if found:
            self._found[epoch] = found
            self._per_epoch = run.steps_per_epoch

    def on_end(self, run: Run, result: TrainingResult) -> None:
        """Adds them to the history."""
        for epoch, values in sorted(self._found.items()):
            for name, value in values.items():
                result.history.setdefault(name, []).append(value)
                result.history.rows.setdefault(name, []).append((epoch + 1) * self._per_epoch - 1)


__all__ = ["Examples", "Validations", "accuracy", "merged"]
