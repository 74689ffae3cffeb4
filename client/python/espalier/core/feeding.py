"""The part of FFModel that knows what its inputs hold: arrays, data loaders, batches."""

from __future__ import annotations

from typing import Any

import numpy as np

from espalier.core.builder import Builder
from espalier.core.data_loader import SingleDataLoader
from espalier.core.enums import CompMode
from espalier.core.layer import Array, Tensor
from espalier.core.loss import Compiled
from espalier.errors import FailedPrecondition, InvalidArgument
from espalier.v1 import graph_pb2

_SEQUENCE = "seq_length"
_WHOLE = (1 << 31) - 1


class Feeding(Builder):
    """Inputs and labels, and what they hold."""

    def __init__(self, batch_size: int) -> None:
        super().__init__(batch_size)
        self._compiled: Compiled | None = None
        self._mode = CompMode.TRAINING
        self._loaders: dict[str, SingleDataLoader] = {}  # the first one of each input, and of the labels
        self._uploaded: dict[str, SingleDataLoader] = {}  # loaders whose examples are the session's dataset
        self._read: list[Tensor] | None = None  # inputs that layers read, once the model is compiled
        self._length: Tensor | None = None  # input: the sequence length, in every example
        self._longest: Tensor | None = None  # the same as one number

    def _need(self) -> Compiled:
        if self._compiled is None:
            raise FailedPrecondition("call compile() first")
        return self._compiled

    def _column(self, tensor: Tensor) -> str | None:
        """The name of an input, or of the labels; None for other tensors."""
        if any(tensor is known for known in self._inputs):
            return tensor.name
        label = None if self._compiled is None else self._compiled.label
        return label.name if label is not None and tensor is label else None

    def _example_shape(self, column: str) -> tuple[int, ...]:
        graphs = [self._graph, *([] if self._compiled_graph is None else [self._compiled_graph])]
        values = [v for g in graphs for v in g.proto.values if v.kind == graph_pb2.INPUT and v.name == column]
        return tuple(values[0].type.dims[1:])

    def _fed_tensors(self) -> list[Tensor]:
        label = self._need().label
        return [*self._read_inputs(), *([] if label is None else [label])]

    def _read_inputs(self) -> list[Tensor]:
        """Inputs that layers read and that the user feeds."""
        if self._compiled_graph is not None and self._read is not None:
            return self._read
        read = {index for node in self._graph.proto.nodes for index in node.inputs}
        self._read = [tensor for tensor in self._inputs if tensor.value.index in read and tensor is not self._length]
        return self._read

    def _whole_data(self) -> dict[str, SingleDataLoader]:
        """Loaders of all inputs and the labels, if each has one and they go together: one dataset."""
        found = dict(self._loaders)
        names = {tensor.name for tensor in self._fed_tensors()}
        if self._length is not None or set(found) != names or self._mode == CompMode.INFERENCE:
            return {}
        return found if len({loader.num_samples for loader in found.values()}) == 1 else {}

    def _batch(self, seq_length: int | None = None) -> Any:
        """What the inputs were fed last: rows of the session's dataset, or arrays by column."""
        feeds = {}
        for tensor in self._fed_tensors():
            if tensor._fed is None:
                if self._mode == CompMode.INFERENCE and tensor is self._need().label:
                    continue
                raise FailedPrecondition(
                    f"{tensor.name} has no elements: call next_batch of its data loader, or set_tensor, before forward"
                )
            feeds[tensor.name] = tensor._fed
        sources = [feed.source for feed in feeds.values()]
        rows = {source[1] for source in sources if source is not None}
        known = all(
            feed.source is not None and self._uploaded.get(name) is feed.source[0] for name, feed in feeds.items()
        )
        if known and len(rows) == 1 and feeds:
            (first,) = rows
            return range(first, first + self._batch_size)
        shapes = {name: (-1, *self._example_shape(name)) for name in feeds}
        return self._with_length({name: feed.array.reshape(shapes[name]) for name, feed in feeds.items()}, seq_length)

    def _with_length(self, arrays: dict[str, Array], seq_length: int | None) -> dict[str, Array]:
        if self._length is None:
            if seq_length not in (None, -1):
                raise InvalidArgument(
                    f"seq_length {seq_length}: no batch_matmul of the model names a dimension of sequences"
                )
            return arrays
        length = _WHOLE if seq_length in (None, -1) else int(seq_length or 0)
        examples = len(next(iter(arrays.values()))) if arrays else self._batch_size
        return {**arrays, _SEQUENCE: np.full(examples, length, np.int32)}

    def _sequence_length(self) -> Tensor:
        # The same number in every example, so that it is a column as any other; the largest one is the number.
        if self._length is None or self._longest is None:
            value = self._graph.input(_SEQUENCE, (None,), "int32")
            self._length = Tensor(value, [self._batch_size], "int32")
            largest = self._graph.op("reduce_max", [value], {"axes": [0]}, name=_SEQUENCE, dtype="int32")
            self._longest = Tensor(largest, [], "int32", None)
        return self._longest

    def create_data_loader(self, batch_tensor: Tensor, full_array: Any) -> SingleDataLoader:
        """A loader of examples for an input, or for label_tensor."""
        loader = SingleDataLoader(self, batch_tensor, full_array)  # type: ignore[arg-type]
        self._loaders.setdefault(loader.column, loader)
        return loader

    def _loaders_of(self, what: str, x: Any, y: Any, batch_size: int | None) -> list[SingleDataLoader]:
        if batch_size is not None and batch_size != self._batch_size:
            raise InvalidArgument(
                f"{what}: batch_size {batch_size}, and the model was made for {self._batch_size} (-b); give the same"
            )
        label = self._need().label
        inputs = self._read_inputs()
        given = list(x) if isinstance(x, (list, tuple)) else [x]
        tensors = list(inputs)
        if label is not None:
            given += list(y) if isinstance(y, (list, tuple)) else [y]
            tensors.append(label)
        elif y is not None:
            raise InvalidArgument(f"{what}: y is given, and the loss takes no labels")
        if len(given) != len(tensors):
            raise InvalidArgument(
                f"{what}: {len(given)} loaders or arrays for the tensors {', '.join(t.name for t in tensors)}"
            )
        loaders = [
            item if isinstance(item, SingleDataLoader) else self.create_data_loader(tensor, item)
            for item, tensor in zip(given, tensors, strict=True)
        ]
        found = {loader.column for loader in loaders}
        if len(found) != len(tensors):
            raise InvalidArgument(f"{what}: no loader feeds {next(t.name for t in tensors if t.name not in found)}")
        counts = {loader.column: loader.num_samples for loader in loaders}
        if len(set(counts.values())) > 1:
            described = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise InvalidArgument(f"{what}: unequal numbers of examples: {described}")
        return loaders
