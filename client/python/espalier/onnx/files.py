"""ONNX files on their way to the coordinator: what belongs to a model, and the columns of its data."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from espalier import data as datasets
from espalier.errors import InvalidArgument
from espalier.external_data import files_of
from espalier.npz import Array, Spool, as_array, temporary_folder, write_npz
from espalier.steps import drive
from espalier.v1 import training_pb2

LABELS = "labels"
_MOST_BYTES = 2_000_000_000  # of a protobuf message: 2 GiB, less what the model has beside its weights


def _library() -> Any:
    try:
        import onnx
    except ImportError:
        raise InvalidArgument("espalier.onnx reads files with the package onnx: pip install 'espalier[onnx]'") from None
    return onnx


@dataclass(frozen=True)
class Source:
    """A model: its artifact, or its files by their names in one; and its inputs, as (name, rank)."""

    artifact: str = ""
    files: Mapping[str, Path] | None = None
    inputs: tuple[tuple[str, int], ...] = ()
    stem: str = "model"

    def upload(self, client: Any) -> str:
        """The artifact's name; uploads nothing that is there already."""
        if self.files is None:
            return self.artifact
        return str(drive(client._connection, client._upload(self.files, self.stem, "onnx", None)))


def _inputs(model: Any) -> tuple[tuple[str, int], ...]:
    initialized = {tensor.name for tensor in model.graph.initializer}
    return tuple(
        (value.name, len(value.type.tensor_type.shape.dim))
        for value in model.graph.input
        if value.name not in initialized
    )


@contextlib.contextmanager
def source_of(given: Any) -> Iterator[Source]:
    """The files of a model, which exist within the context. InvalidArgument says what is missing.

    given: the path of a file, with its weights inside or beside it, or of a folder that holds one; "artifact:NAME"; or
    an onnx.ModelProto.
    """
    if isinstance(given, str) and given.startswith("artifact:"):
        yield Source(artifact=given.removeprefix("artifact:"))
        return
    onnx = _library()
    if isinstance(given, onnx.ModelProto):
        with temporary_folder() as folder:
            file = folder / "model.onnx"
            onnx.save(given, file)
            model = onnx.load(file, load_external_data=False)
            yield Source("", files_of(file), _inputs(model), model.graph.name or "model")
        return
    if not isinstance(given, (str, os.PathLike)):
        raise InvalidArgument(
            f"model is a {type(given).__name__}; accepted: the path of an ONNX file or of a folder that holds one, "
            "'artifact:NAME', an onnx.ModelProto"
        )
    files = files_of(Path(given))
    file = next(iter(files.values()))
    try:
        model = onnx.load(file, load_external_data=False)
    except Exception as error:  # protobuf's DecodeError, whose place differs by version
        raise InvalidArgument(f"{file} holds no ONNX model: {error}") from None
    yield Source("", files, _inputs(model), file.stem)


def save_in_one_file(made: Path, to: Path) -> None:
    """Copies a model, with the weights that it keeps beside it, where one file can hold them."""
    onnx = _library()
    model = onnx.load(made)
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) < _MOST_BYTES:
        onnx.save(model, to)
    else:
        onnx.save(model, to, save_as_external_data=True, location=f"{to.name}.data")


def named_arrays(items: Any, inputs: tuple[tuple[str, int], ...]) -> dict[str, Array]:
    """(x, y), ((x1, x2), y), or a dict of columns."""
    if isinstance(items, Mapping):
        named: Mapping[str, Any] = items
    else:
        flat: list[Any] = []
        for item in items if isinstance(items, (tuple, list)) else [items]:
            flat.extend(item if isinstance(item, tuple) else [item])
        names = [*(name for name, _ in inputs), LABELS]
        if len(flat) not in (len(names) - 1, len(names)) or len(names) == 1:
            raise InvalidArgument(
                f"data has {len(flat)} arrays; the model's inputs and the labels are "
                f"{', '.join(names) if inputs else 'not known here'}: give a dict by name"
            )
        named = dict(zip(names, flat, strict=False))
    return {str(name): as_array(array, f"column {name}") for name, array in named.items()}


def _spool(data: Any, inputs: tuple[tuple[str, int], ...], spool: Spool, most: int | None) -> None:
    """Reads an iterable of batches or of examples to its end, or to `most` examples."""
    ranks = dict(inputs)
    for element in datasets._items(data):
        arrays = named_arrays(element, inputs)
        batched = {array.ndim == ranks[name] for name, array in arrays.items() if name in ranks}
        single = {array.ndim == ranks[name] - 1 for name, array in arrays.items() if name in ranks}
        if batched != {True} and single != {True}:
            shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
            wanted = ", ".join(f"{name} of {rank} dimensions" for name, rank in inputs) or "by a file, not an artifact"
            raise InvalidArgument(
                f"an element of the data has {shapes}: neither a batch nor an example of the model's inputs ({wanted})"
            )
        spool.add(arrays if batched == {True} else {name: array[np.newaxis] for name, array in arrays.items()})
        if most is not None and spool.examples >= most:
            break
    if spool.examples == 0:
        raise InvalidArgument("data has no examples; was an iterator used up by an earlier run?")


@contextlib.contextmanager
def prepared(
    data: Any, source: Source, columns: Mapping[str, str] | None, most: int | None
) -> Iterator[datasets.Prepared]:
    """Makes a file of the data, which exists within the context, or finds what it names.

    The coordinator compares its columns with the model. InvalidArgument if it cannot be read.
    """
    given = dict(columns or {})
    if isinstance(data, training_pb2.Dataset):
        yield datasets.Prepared(uri=data.uri, columns=given, template=data)
        return
    if isinstance(data, (str, os.PathLike)):
        yield datasets._of_name(data, datasets._Columns([datasets.Input(name, (), True) for name in given], given))
        return
    if hasattr(data, "iloc"):
        raise InvalidArgument("data is a DataFrame; give a dict of arrays, as {'x': frame[names].to_numpy(), ...}")
    with temporary_folder() as folder:
        path = folder / "data.npz"
        if isinstance(data, (Mapping, tuple)):
            arrays = named_arrays(data, source.inputs)
            examples = datasets._check_lengths(arrays)
            write_npz(path, arrays)
        else:
            spool = Spool(folder)
            try:
                batches = datasets._slices(data) if datasets._is_huggingface(data) else data
                _spool(batches, source.inputs, spool, None if hasattr(data, "__len__") else most)
                spool.write(path)
            finally:
                spool.close()
            examples = spool.examples
        yield datasets.Prepared(path=path, stem="arrays", columns=given, examples=examples)
