"""Datasets in: whatever holds examples becomes columns that the coordinator stores.

Accepted: a dict of arrays, (x, y), an .npz or .npy file, the name of an artifact, "s3://bucket/key" beneath a
--dataset-root of the daemon and its workers, a pandas DataFrame, a dataset of Hugging Face, a torch Dataset or
DataLoader, a tf.data.Dataset, and any iterable of batches or of examples.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from espalier.errors import InvalidArgument
from espalier.npz import Array, Spool, as_array, as_float32, as_integers, temporary_folder, write_npz
from espalier.spelling import meant
from espalier.v1 import graph_pb2, training_pb2

if TYPE_CHECKING:
    from espalier.graph import Graph

_FLOATS = (graph_pb2.F32, graph_pb2.BF16, graph_pb2.F16)
_CHUNK = 1024  # examples of a sliced or unbatched dataset that are converted at once


@dataclass(frozen=True)
class Input:
    """An input of a graph: what its column must hold."""

    name: str
    shape: tuple[int, ...]  # of an example
    is_float: bool

    def __str__(self) -> str:
        return f"input {self.name} {list(self.shape)}"


@dataclass
class Prepared:
    """A dataset that can be uploaded (`path`) or is there already (`uri`)."""

    uri: str = ""
    path: Path | None = None
    stem: str = "data"
    columns: dict[str, str] = field(default_factory=dict)  # graph input -> column, where names differ
    examples: int = 0  # 0: not known here
    format: int = training_pb2.Dataset.NPZ
    template: training_pb2.Dataset | None = None  # what was given as a message


def inputs_of(graph: Graph) -> list[Input]:
    """The inputs of a graph, in order."""
    return [
        Input(v.name, tuple(v.type.dims[1:]), v.type.dtype in _FLOATS)
        for v in graph.proto.values
        if v.kind == graph_pb2.INPUT
    ]


@contextlib.contextmanager
def temporary_npz(arrays: Mapping[str, Any]) -> Iterator[Path]:
    """Arrays as an .npz file that exists within the context."""
    columns = {str(name): as_array(given, f"column {name}") for name, given in arrays.items()}
    _check_lengths(columns)
    with temporary_folder() as folder:
        write_npz(folder / "data.npz", columns)
        yield folder / "data.npz"


def is_numbers(item: Any) -> bool:
    """Whether it is a list of numbers, or of lists of them, or a tuple of numbers: a column that is no array."""
    if not isinstance(item, (list, tuple)) or not item:
        return False
    first = item[0]
    while isinstance(item, list) and isinstance(first, (list, tuple)) and first:
        first = first[0]
    return isinstance(first, (bool, int, float, np.number, np.bool_))


def flat_columns(items: Sequence[Any], *, numbers: bool = False, lists: bool = False) -> list[Any]:
    """((x1, x2), y) as [x1, x2, y]. numbers: a tuple of numbers is a column; lists: those of arrays are several."""
    flat: list[Any] = []
    for item in items:
        several = isinstance(item, tuple) or (lists and isinstance(item, list) and not is_numbers(item))
        flat.extend(item if several and not (numbers and is_numbers(item)) else [item])
    return flat


def _check_lengths(columns: Mapping[str, Array]) -> int:
    for name, array in columns.items():
        if array.ndim == 0:
            raise InvalidArgument(f"column {name} is a single number; its dimension 0 must be the examples")
    lengths = {name: len(array) for name, array in columns.items()}
    if len(set(lengths.values())) > 1:
        described = ", ".join(f"{name} {count}" for name, count in lengths.items())
        raise InvalidArgument(f"columns have unequal numbers of examples: {described}")
    return next(iter(lengths.values()), 0)


class _Columns:
    """Finds the column of each input and gives it the input's shape and type."""

    def __init__(self, inputs: Sequence[Input], given: Mapping[str, str] | None, ordered: bool = True):
        self._inputs = inputs
        self._ordered = ordered  # whether the inputs are in the order of the graph
        self._given = dict(given or {})
        unknown = set(self._given) - {i.name for i in inputs}
        if unknown:
            names, wrong = [i.name for i in inputs], sorted(unknown)[0]
            raise InvalidArgument(
                f"columns names the input {wrong}; the graph's are {', '.join(names)}{meant(wrong, names)}"
            )

    def names(self, have: Iterable[str]) -> dict[str, str]:
        """Input -> column. InvalidArgument if one is missing."""
        known = list(have)
        found = {i.name: self._given.get(i.name, i.name) for i in self._inputs}
        # A name that was given is more likely the cause than inputs that have none.
        for i in sorted(self._inputs, key=lambda i: i.name not in self._given):
            column = found[i.name]
            if column in known:
                continue
            lacks = f"the data has no column {column}, only {', '.join(known) or 'none'}"
            if i.name in self._given:
                raise InvalidArgument(f"columns={{'{i.name}': '{column}'}}: {lacks}{meant(column, known)}")
            raise InvalidArgument(f"{i}: {lacks}; name one: columns={{'{i.name}': ...}}")
        return found

    def of_sequence(self, items: Sequence[Any]) -> dict[str, Any]:
        """(x, y), (x, y, weights), ((x1, x2), y) by the order of the inputs."""
        if len(self._inputs) > 1 and not self._ordered:
            raise InvalidArgument(
                "data holds tuples, and which array is which is known only to the program that submitted the job; give "
                f"dicts by column: {', '.join(i.name for i in self._inputs)}"
            )
        if any(isinstance(item, Mapping) for item in items):
            raise InvalidArgument("data holds a dict within a tuple: give one dict of all columns")
        flat = flat_columns(items)
        # Tuples may also be columns of numbers, and lists the arrays of several inputs, as loaders of torch make them.
        for other in (flat_columns(items, numbers=True), flat_columns(items, lists=True)):
            flat = other if len(flat) != len(self._inputs) == len(other) else flat
        if len(flat) != len(self._inputs):
            raise InvalidArgument(
                f"data has {len(flat)} arrays, the graph {len(self._inputs)} inputs "
                f"({', '.join(i.name for i in self._inputs)}); give a dict by name"
            )
        return {i.name: item for i, item in zip(self._inputs, flat, strict=True)}

    def fit(self, arrays: Mapping[str, Array], first: int = 0, batched: bool = True) -> dict[str, Array]:
        """The arrays that inputs read, by column, of the shapes and types of the inputs.

        first: the number of their first row in the data, for errors.
        """
        return {
            column: _conform(i, column, arrays[column], first, batched)
            for i, column in zip(self._inputs, self.names(arrays).values(), strict=True)
        }

    def renamed(self, have: Iterable[str]) -> dict[str, str]:
        """What Dataset.columns says."""
        return {name: column for name, column in self.names(have).items() if name != column}

    def rank(self, column: str) -> int | None:
        """Dimensions of an example in this column; None if no input reads it."""
        for i in self._inputs:
            if self._given.get(i.name, i.name) == column:
                return len(i.shape)
        return None


def _conform(i: Input, column: str, array: Array, first: int, batched: bool) -> Array:
    shape = array.shape[1:] if batched else array.shape
    if shape != i.shape:
        if [d for d in shape if d != 1] != [d for d in i.shape if d != 1]:
            raise InvalidArgument(f"{i}: its column has examples of shape {list(shape)}")
        array = array.reshape((len(array), *i.shape) if batched else i.shape)
    if array.dtype.kind != "f":
        return array
    rows = array if batched else array[None]
    if i.is_float:
        converted = as_float32(rows, f"column {column}", first)
    else:
        converted = as_integers(rows, f"{i} takes integers, and its column {column} has", first)
    return converted if batched else converted[0]


def _is_torch_dataset(data: Any) -> bool:
    return any(c.__module__.startswith("torch.utils.data") and c.__name__ == "Dataset" for c in type(data).__mro__)


def _items(data: Any) -> Iterator[Any]:
    """The elements of an iterable: batches or examples."""
    if _is_torch_dataset(data) and not hasattr(type(data), "__iter__"):
        return (data[index] for index in range(len(data)))
    try:
        found: Iterator[Any] = iter(data)
    except TypeError:
        raise InvalidArgument(
            f"data is a {type(data).__name__}; accepted: a dict of arrays, (x, y), a file, the name of an artifact, a "
            "DataFrame, a dataset or loader of torch, tf.data or Hugging Face, or an iterable of batches"
        ) from None
    return found


def _element(element: Any, columns: _Columns) -> dict[str, Array]:
    if isinstance(element, Mapping):
        columns.names(map(str, element))
        given: Mapping[str, Any] = {name: item for name, item in element.items() if _wanted(name, columns)}
    elif isinstance(element, (tuple, list)):
        given = columns.of_sequence(element)
    else:
        given = columns.of_sequence([element])
    return {str(name): as_array(item, f"column {name}", keep_float64=True) for name, item in given.items()}


def _is_batch(element: Mapping[str, Array], columns: _Columns) -> bool:
    """Whether an element of an iterable is a batch; InvalidArgument if it cannot be told."""
    answers = set()
    for name, array in element.items():
        rank = columns.rank(name)
        if rank is not None and array.ndim in (rank, rank + 1):
            answers.add(array.ndim == rank + 1)
    if len(answers) != 1:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in element.items())
        raise InvalidArgument(
            f"an element of the data has {shapes}: neither an example nor a batch of what the graph's inputs take "
            f"({', '.join(map(str, columns._inputs))})"
        )
    return answers.pop()


def _float32(array: Array, where: str) -> Array:
    return as_float32(array, where) if array.dtype.kind == "f" else array.astype(np.float32)


def _of_series(series: Any, name: str) -> Any:
    """The values of a column of a DataFrame. InvalidArgument if one is missing where no NaN can stand for it."""
    values = series.to_numpy()
    if values.dtype.kind != "O" or getattr(series.dtype, "kind", "O") not in "fiub":
        return values
    missing = series.isna().to_numpy()  # of Int64 and the like
    if missing.any():
        row = int(np.argmax(missing))
        raise InvalidArgument(f"column {name} has no value in row {row}; leave such rows out, or give them a value")
    return values.astype(series.dtype.numpy_dtype)


def _of_frame(frame: Any, columns: _Columns, inputs: Sequence[Input]) -> dict[str, Array]:
    """A DataFrame's columns by name; an input without one takes all the others as its features."""
    places = {str(name): i for i, name in enumerate(frame.columns)}

    def column(name: str) -> Array:
        return as_array(_of_series(frame.iloc[:, places[name]], name), f"column {name}", keep_float64=True)

    taken = {i.name: columns._given.get(i.name, i.name) for i in inputs}
    missing = [i for i in inputs if taken[i.name] not in places]
    arrays = {name: column(name) for name in taken.values() if name in places}
    if len(missing) == 1 and len(missing[0].shape) == 1 and missing[0].name not in columns._given:
        rest = [name for name in places if name not in taken.values()]
        text = [name for name in rest if frame.iloc[:, places[name]].dtype.kind not in "fiub"]
        if len(rest) - len(text) == missing[0].shape[0] and text:
            raise InvalidArgument(
                f"{missing[0]} takes the columns that no other input reads, and {', '.join(text)} holds no numbers: "
                f"frame.drop(columns={text})"
            )
        if len(rest) != missing[0].shape[0]:
            raise InvalidArgument(
                f"{missing[0]} takes the columns that no other input reads, and there are {len(rest)}: "
                f"{', '.join(rest) or 'none'}; drop some, or name what the others read: columns={{input: column}}"
            )
        features = np.stack([_float32(column(name), f"column {name}") for name in rest], axis=1)
        arrays[taken[missing[0].name]] = features
        missing = []
    if missing:
        columns.names(places)
    return arrays


def _is_huggingface(data: Any) -> bool:
    return hasattr(data, "column_names") and hasattr(data, "with_format") and hasattr(data, "features")


def _slices(data: Any) -> Iterator[Any]:
    """A Hugging Face dataset in batches."""
    shown = data.with_format("numpy")
    if not hasattr(shown, "__len__"):
        yield from shown.iter(_CHUNK)
        return
    for first in range(0, len(shown), _CHUNK):
        yield shown[first : first + _CHUNK]


def _of_name(given: str | os.PathLike[str], columns: _Columns) -> Prepared:
    text = os.fspath(given)
    path = Path(text)
    if text.startswith(("artifact:", "s3://")):
        return Prepared(uri=text, columns=dict(columns._given))
    if path.is_file():
        if path.suffix not in (".npz", ".npy"):
            raise InvalidArgument(
                f"{path}: accepted are arrays as numpy.savez writes them (.npz, .npy); texts train language models: "
                "espalier train"
            )
        from espalier.transfer import stem

        return Prepared(path=path, stem=stem(path), columns=dict(columns._given))
    if "/" in text or path.suffix in (".npz", ".npy"):
        raise InvalidArgument(f"data: there is no file {text}")
    return Prepared(uri=f"artifact:{text}", columns=dict(columns._given))


@contextlib.contextmanager
def prepare(
    data: Any,
    graph: Graph,
    columns: Mapping[str, str] | None = None,
    most: int | None = None,
) -> Iterator[Prepared]:
    """Makes a file of `data` for the inputs of `graph`, which exists within the context, or finds what it names.

    `columns` says which column an input reads, if not that of its own name. Of an iterable without a length, at most
    `most` examples are read. InvalidArgument if inputs and columns do not fit; what an iterable raises is passed on.
    """
    inputs = inputs_of(graph)
    finder = _Columns(inputs, columns)
    if isinstance(data, training_pb2.Dataset):
        yield Prepared(uri=data.uri, columns=dict(finder._given), template=data)
        return
    if isinstance(data, (str, os.PathLike)):
        yield _of_name(data, finder)
        return
    with temporary_folder() as folder:
        path = folder / "data.npz"
        arrays = _in_memory(data, finder, inputs)
        if arrays is not None:
            examples = _check_lengths(arrays)
            fitted = finder.fit(arrays)
            write_npz(path, fitted)
        else:
            spool = Spool(folder)
            try:
                for part in _parts(data, finder, _CHUNK, None if hasattr(data, "__len__") else most):
                    spool.add(part)
                spool.write(path)
            finally:
                spool.close()
            examples, fitted = spool.examples, dict.fromkeys(spool.types, np.empty(0))
        yield Prepared(path=path, stem="arrays", columns=finder.renamed(fitted), examples=examples)


def inline_batch(
    data: Any, graph: Graph, columns: Mapping[str, str] | None = None, *, partial: bool = False
) -> dict[str, Array]:
    """The columns of `data`, whole in memory, of the shapes that the inputs of `graph` take.

    With `partial`, inputs may be left out. InvalidArgument if inputs and columns do not fit.
    """
    inputs = inputs_of(graph)
    if partial and isinstance(data, Mapping):
        taken = dict(columns or {})
        known = {taken.get(i.name, i.name) for i in inputs}
        unknown = [name for name in map(str, data) if name not in known]
        if unknown:
            raise InvalidArgument(f"no input reads the column {unknown[0]}; inputs read {', '.join(sorted(known))}")
        inputs = [i for i in inputs if taken.get(i.name, i.name) in data]
        columns = {name: column for name, column in taken.items() if any(i.name == name for i in inputs)}
    elif partial and not hasattr(data, "iloc"):
        # What a model computes from comes first, its labels behind.
        inputs = inputs[: len(data) if isinstance(data, tuple) else 1]
    return whole(data, inputs, columns)


def whole(data: Any, inputs: Sequence[Input], columns: Mapping[str, str] | None = None) -> dict[str, Array]:
    """As inline_batch, for `inputs` in the order of tuples."""
    finder = _Columns(inputs, columns)
    arrays = _in_memory(data, finder, inputs)
    if arrays is None:
        batches = list(_parts(data, finder, _CHUNK))
        arrays = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    _check_lengths(arrays)
    return finder.fit(arrays)


def stream_columns(inputs: Sequence[Input], columns: Mapping[str, str] | None) -> dict[str, str]:
    """Input -> column, where names differ. InvalidArgument for an input that there is not."""
    given = _Columns(inputs, columns)._given
    return {name: column for name, column in given.items() if name != column}


def length(data: Any, inputs: Sequence[Input], columns: Mapping[str, str] | None) -> int | None:
    """Examples in one pass over `data`, as far as its length tells, from the size of its first batch; None: unknown."""
    finder = _Columns(inputs, columns)
    arrays = _in_memory(data, finder, inputs)
    if arrays is not None:
        return _check_lengths(arrays)
    try:
        count = len(data)
    except TypeError:  # also of what has a length that is not known, as datasets of TensorFlow
        return None
    if _is_huggingface(data) or _is_torch_dataset(data):
        return count
    batch_size: Any = getattr(data, "batch_size", None)
    source: Any = getattr(data, "dataset", None)
    if isinstance(batch_size, int) and hasattr(source, "__len__"):  # a DataLoader of torch
        return min(count * batch_size, len(source))
    first = next(_items(data), None)
    if first is None:
        return 0
    element = _element(first, finder)
    finder.names(element)
    return count * (_check_lengths(element) if _is_batch(element, finder) else 1)


def batches(
    data: Any,
    inputs: Sequence[Input],
    columns: Mapping[str, str] | None,
    size: int,
    ordered: bool = True,
    left_out: Callable[[int], None] = lambda examples: None,
) -> Iterator[dict[str, Array]]:
    """The examples of `data` in order, in batches of exactly `size`; the last ones that do not fill one are left out.

    Of those `left_out` learns the number. Without `ordered`, tuples are refused: `inputs` are not in the order of the
    graph. InvalidArgument if inputs and columns do not fit; what an iterable raises is passed on.
    """
    finder = _Columns(inputs, columns, ordered)
    arrays = _in_memory(data, finder, inputs)
    if arrays is not None:
        examples = _check_lengths(arrays)
        for first in range(0, examples - size + 1, size):
            yield finder.fit({name: array[first : first + size] for name, array in arrays.items()}, first)
        left_out(examples % size)
        return
    rest: dict[str, Array] = {}
    for part in _parts(data, finder, size):
        if rest:
            if any(array.shape[1:] != rest[name].shape[1:] for name, array in part.items()):
                shapes = {name: list(array.shape[1:]) for name, array in part.items()}
                raise InvalidArgument(f"examples are of unequal shapes: {shapes} after others; pad or resize them")
            part = {name: np.concatenate([rest[name], array]) for name, array in part.items()}
        examples = _check_lengths(part)
        whole = examples - examples % size
        for first in range(0, whole, size):
            yield {name: array[first : first + size] for name, array in part.items()}
        rest = {name: array[whole:] for name, array in part.items()} if whole < examples else {}
    left_out(len(next(iter(rest.values()))) if rest else 0)


def _parts(data: Any, columns: _Columns, size: int, most: int | None = None) -> Iterator[dict[str, Array]]:
    """The elements of an iterable, to its end or `most` examples: batches as they come, examples `size` at a time.

    InvalidArgument if there are none.
    """
    batched: bool | None = None
    pending: list[dict[str, Array]] = []
    examples = 0
    for element in _slices(data) if _is_huggingface(data) else _items(data):
        arrays = _element(element, columns)
        columns.names(arrays)
        if batched is None:
            batched = _is_batch(arrays, columns)
        fitted = columns.fit(arrays, examples, batched)
        examples += len(next(iter(fitted.values()))) if batched else 1
        if batched:
            yield fitted
        else:
            pending.append(fitted)
        if len(pending) == size:
            yield _stacked(pending)
            pending = []
        if most is not None and examples >= most:
            break
    if pending:
        yield _stacked(pending)
    if examples == 0:
        raise InvalidArgument("data has no examples; was an iterator used up by an earlier run?")


def _stacked(examples: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    return {name: np.stack([example[name] for example in examples]) for name in examples[0]}


def _in_memory(data: Any, columns: _Columns, inputs: Sequence[Input]) -> dict[str, Array] | None:
    """Arrays by column if `data` holds whole columns; None for iterables."""
    if isinstance(data, Mapping):
        return _element(data, columns)
    if hasattr(data, "iloc") and hasattr(data, "columns"):
        return _of_frame(data, columns, inputs)
    if isinstance(data, tuple):
        return _element(data, columns)
    if hasattr(data, "__array__") and not _is_huggingface(data):
        return _element([data], columns)
    return None


def _wanted(name: Any, columns: _Columns) -> bool:
    return columns.rank(str(name)) is not None


def dataset_message(prepared: Prepared, uri: str, holdout: float, shuffle: bool) -> training_pb2.Dataset:
    """The message for a prepared dataset that lies at `uri`."""
    message = training_pb2.Dataset(format=prepared.format)  # type: ignore[arg-type]
    if prepared.template is not None:
        message.CopyFrom(prepared.template)
    message.uri = uri
    message.columns.update(prepared.columns)
    message.holdout_fraction = holdout or message.holdout_fraction
    if not shuffle:
        message.shuffle = False
    return message
