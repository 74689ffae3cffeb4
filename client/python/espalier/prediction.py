"""Predictions of served graphs: examples in, the graph's named outputs back, by the Open Inference Protocol."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from espalier import data as datasets
from espalier import errors
from espalier.listing import ServedInfo
from espalier.notes import warn
from espalier.npz import Array, as_array
from espalier.pipeline import Pipeline
from espalier.rpc import Settings, method
from espalier.spelling import meant
from espalier.steps import Steps, Work, operation
from espalier.tensor_types import Tensor, converted
from espalier.v1 import open_inference_pb2

# Of a request, and of its answer.
_BYTES = 16 << 20
# So that requests of others get their turn between, and what a program asked for before it ended is computed soon.
_EXAMPLES = 1024
# One is computed while others travel.
_UNDER_WAY = 3
_SERVICE = "GRPCInferenceService"


class _Model:
    """A served graph: the tensors that it takes and gives."""

    def __init__(self, metadata: open_inference_pb2.ModelMetadataResponse):
        self.name = metadata.name
        self.version = metadata.versions[0] if metadata.versions else ""
        if any(tensor.datatype == "BYTES" for tensor in metadata.inputs):
            raise errors.InvalidArgument(
                f"predict: '{self.name}' is a language model: ask client.generate or client.embed"
            )
        self.inputs = [Tensor(t.name, t.datatype, tuple(t.shape[1:])) for t in metadata.inputs]
        self.outputs = {t.name: Tensor(t.name, t.datatype, tuple(t.shape[1:])) for t in metadata.outputs}

    @property
    def takes(self) -> str:
        """ "x FP32[-1, 64], mask BOOL[-1, 64]"."""
        return ", ".join(map(str, self.inputs))

    def asked(self, outputs: Sequence[str] | str | None) -> list[Tensor]:
        """The outputs of these names; None: all."""
        if outputs is None:
            return list(self.outputs.values())
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        if not names:
            raise errors.InvalidArgument(f"outputs is empty; model '{self.name}' gives {', '.join(self.outputs)}")
        for name in names:
            if name not in self.outputs:
                raise errors.InvalidArgument(
                    f"model '{self.name}' has no output {name!r}; it gives "
                    f"{', '.join(map(str, self.outputs.values()))}{meant(str(name), self.outputs)}"
                )
        return [self.outputs[name] for name in dict.fromkeys(names)]

    def columns(self, given: Any, named: Mapping[str, str]) -> dict[str, Array]:
        """What is given as arrays by input, of the types and shapes that the model takes.

        named: input -> column of what is given, where names differ.
        """
        for name in named:
            if name not in self._names:
                raise errors.InvalidArgument(
                    f"columns names the input {name!r}; model '{self.name}' takes {self.takes}"
                    f"{meant(str(name), self._names)}"
                )
        found = self._by_name(given, named)
        arrays = {t.name: self._fitted(t, found[named.get(t.name, t.name)]) for t in self.inputs}
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            counted = ", ".join(f"{name} {count}" for name, count in lengths.items())
            raise errors.InvalidArgument(f"inputs have unequal numbers of examples: {counted}")
        return arrays

    @property
    def _names(self) -> list[str]:
        return [tensor.name for tensor in self.inputs]

    def _by_name(self, given: Any, named: Mapping[str, str]) -> dict[str, Array]:
        """Arrays by column."""
        if isinstance(given, Mapping):
            return self._of_mapping(given, named)
        if _is_array(given):
            if len(self.inputs) != 1:
                raise errors.InvalidArgument(
                    f"model '{self.name}' takes {len(self.inputs)} inputs; give a dict of arrays: {self.takes}"
                )
            name = self.inputs[0].name
            return {named.get(name, name): _as_array(given, name)}
        if isinstance(given, (str, os.PathLike)) or not _is_collection(given):
            raise errors.InvalidArgument(
                f"inputs is a {type(given).__name__}; model '{self.name}' takes {self.takes}: give an array, a dict of "
                "arrays, a DataFrame, or batches of such examples"
            )
        self._warn_of_order(given, named)
        return datasets.whole(given, [datasets.Input(t.name, t.shape, t.is_float) for t in self.inputs], named)

    def _warn_of_order(self, given: Any, named: Mapping[str, str]) -> None:
        """Columns of a DataFrame that make one input together: a model does not know their names."""
        if not (hasattr(given, "iloc") and hasattr(given, "columns")):
            return
        columns = list(map(str, given.columns))
        if len(columns) > 1 and any(named.get(name, name) not in columns for name in self._names):
            shown = ", ".join(columns[:8]) + (", ..." if len(columns) > 8 else "")
            warn(f"model '{self.name}' does not know the names of its columns: taken in the order {shown}")

    def _of_mapping(self, given: Mapping[str, Any], named: Mapping[str, str]) -> dict[str, Array]:
        columns = [named.get(name, name) for name in self._names]
        for name in given:
            if name not in columns:
                raise errors.InvalidArgument(
                    f"model '{self.name}' has no input {name!r}; it takes {self.takes}{meant(str(name), columns)}"
                )
        for tensor, column in zip(self.inputs, columns, strict=True):
            if column not in given:
                raise errors.InvalidArgument(f"input {column!r} of model '{self.name}' is missing: {tensor}")
        return {name: _as_array(given[name], name) for name in columns}

    def _fitted(self, tensor: Tensor, array: Array) -> Array:
        given = array.shape[1:]
        # [N, 1] for [N], and the other way round.
        if array.shape == (0,):  # of an empty list
            array = array.reshape((0, *tensor.shape))
        elif array.ndim == 0 or [d for d in given if d != 1] != [d for d in tensor.shape if d != 1]:
            hint = ": for one example give array[None]" if array.shape == tensor.shape else ""
            raise errors.InvalidArgument(
                f"input {tensor.name!r} is {array.dtype}{list(array.shape)}; model '{self.name}' takes {tensor}, where "
                f"-1 counts the examples{hint}"
            )
        return converted(array.reshape((len(array), *tensor.shape)), tensor)


def _is_array(given: Any) -> bool:
    """Whether it is one array, or what becomes one; not a collection of batches or of examples by name."""
    if isinstance(given, list):
        return not given or isinstance(given[0], (list, int, float, bool, np.generic))
    is_frame = hasattr(given, "iloc") and hasattr(given, "columns")
    is_dataset = hasattr(given, "column_names") and hasattr(given, "with_format")
    return isinstance(given, (int, float)) or (hasattr(given, "__array__") and not is_frame and not is_dataset)


def _is_collection(given: Any) -> bool:
    """Whether batches or examples can be read from it."""
    return hasattr(given, "__iter__") or hasattr(given, "__getitem__")


def _as_array(given: Any, name: str) -> Array:
    return as_array(given, f"input {name!r}", keep_float64=True)


class _Outputs:
    """The outputs of all examples, filled in by replies in order."""

    def __init__(self, tensors: Sequence[Tensor], examples: int):
        self.arrays = {t.name: np.empty((examples, *t.shape), t.dtype) for t in tensors}
        self._examples = examples
        self._done = 0

    def take(self, reply: open_inference_pb2.ModelInferResponse) -> None:
        """Appends a reply. DataLoss for one that does not fit the model."""
        if len(reply.outputs) != len(reply.raw_output_contents):
            raise errors.DataLoss("the coordinator's answer has outputs without contents")
        described = {
            t.name: (tuple(t.shape), raw) for t, raw in zip(reply.outputs, reply.raw_output_contents, strict=True)
        }
        if described.keys() != self.arrays.keys():
            raise errors.DataLoss(f"the coordinator's answer has the outputs {', '.join(described) or '(none)'}")
        counts = {shape[0] for shape, _ in described.values()}
        count = counts.pop()
        if counts or not 0 < count <= self._examples - self._done:
            raise errors.DataLoss("the coordinator's answer has another number of examples than was asked for")
        for name, array in self.arrays.items():
            shape, raw = described[name]
            part = array[self._done : self._done + count]
            if shape != part.shape or len(raw) != part.nbytes:
                raise errors.DataLoss(
                    f"output {name!r}: the coordinator's answer is {list(shape)} in {len(raw)} bytes, expected "
                    f"{list(part.shape)} in {part.nbytes}"
                )
            part[...] = np.frombuffer(raw, array.dtype).reshape(shape)
        self._done += count

    def whole(self) -> dict[str, Array]:
        """All of them. DataLoss if some are missing."""
        if self._done != self._examples:
            raise errors.DataLoss(f"the coordinator answered for {self._done} of {self._examples} examples")
        return self.arrays


def _requests(
    model: _Model, arrays: Mapping[str, Array], outputs: Sequence[Tensor], examples: int
) -> Iterator[open_inference_pb2.ModelInferRequest]:
    # The answer in full, even if few outputs are asked for: the coordinator computes and holds all.
    one = max(sum(t.example_bytes for t in model.inputs), sum(t.example_bytes for t in model.outputs.values()), 1)
    most = max(1, min(_EXAMPLES, _BYTES // one))
    for first in range(0, examples, most):
        # The version: all answers are of one, also if another is served meanwhile.
        request = open_inference_pb2.ModelInferRequest(model_name=model.name, model_version=model.version)
        for tensor in model.inputs:
            part = arrays[tensor.name][first : first + most]
            request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=part.shape)
            request.raw_input_contents.append(np.ascontiguousarray(part).tobytes())
        for tensor in outputs:
            request.outputs.add(name=tensor.name)
        yield request


class PredictionMethods:
    """Calls to served graphs."""

    _settings: Settings

    @operation
    def predict(
        self,
        model: str | ServedInfo,
        inputs: Any,
        *,
        columns: Mapping[str, str] | None = None,
        outputs: Sequence[str] | str | None = None,
        version: str | int = "",
        timeout: float | None = None,
    ) -> Steps[dict[str, Array]]:
        """The named outputs of a served graph, for any number of examples: a dict of arrays.

        model: its name, or what `serve` returned. inputs: a dict of arrays by the names of the model's inputs; one
        array, if there is one input; a tuple of them in the model's order; a DataFrame, as fit takes it; or an iterable
        of batches or of examples, read whole. Dimension 0 counts the examples. columns: the names by which `inputs` has
        them, where they differ. Elements are converted to the model's types where that loses nothing but digits of
        floats. outputs: some of their names; None: all. version: another one is refused. timeout: seconds for the whole
        call; None: no limit.

        Many examples go as several requests, which are made again for 10 seconds while the coordinator is away or its
        queue is full. NotFound if no such model is served; InvalidArgument, saying what the model takes, for inputs
        that do not fit; ResourceExhausted if the queue stays full; DeadlineExceeded after `timeout`.
        """
        end = _end_of(timeout)
        name = model.name if isinstance(model, ServedInfo) else model
        if not isinstance(name, str):
            raise errors.InvalidArgument(f"predict: model is a {type(model).__name__}; give the name of a served model")
        known = yield from self._model(name, str(version), end)
        wanted = known.asked(outputs)
        arrays: dict[str, Array] = yield Work(functools.partial(known.columns, inputs, columns or {}))
        examples = len(next(iter(arrays.values())))
        answers = _Outputs(wanted, examples)
        if examples:
            requests = _requests(known, arrays, wanted, examples)
            yield Pipeline(method(_SERVICE, "ModelInfer"), requests, answers.take, _UNDER_WAY, end)
        return answers.whole()

    def _model(self, name: str, version: str, end: float | None) -> Steps[_Model]:
        request = open_inference_pb2.ModelMetadataRequest(name=name, version=version)
        found: list[open_inference_pb2.ModelMetadataResponse] = []
        if end is None:
            end = time.monotonic() + self._settings.call_timeout
        try:
            yield Pipeline(method(_SERVICE, "ModelMetadata"), [request], found.append, 1, end)
        except errors.NotFound as error:
            if version:
                raise
            raise errors.NotFound(f"{error}; serve one: client.serve(ARTIFACT, name={name!r})") from None
        return _Model(found[0])


def _end_of(timeout: float | None) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
        raise errors.InvalidArgument(f"timeout={timeout!r}; accepted: seconds, above 0, or None")
    return time.monotonic() + timeout


__all__ = ["PredictionMethods"]
