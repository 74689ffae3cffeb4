"""What the examples of a stream are, for an ONNX file: its inputs say little, so the first of them tell."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from espalier import data as datasets
from espalier.errors import InvalidArgument
from espalier.npz import Array
from espalier.onnx.files import LABELS, Source, named_arrays
from espalier.streaming import element_type
from espalier.v1 import graph_pb2


def stream_of(
    data: Any, source: Source, columns: Mapping[str, str] | None
) -> tuple[Any, list[datasets.Input], dict[str, graph_pb2.TensorType]]:
    """The data with its first element still in it, the inputs, and the types of an example by column.

    InvalidArgument for data that has no examples, or does not fit the model's inputs.
    """
    given = {column: name for name, column in (columns or {}).items()}
    if isinstance(data, (Mapping, tuple)):
        arrays, batched = named_arrays(data, source.inputs), True
    else:
        if isinstance(data, str) or not hasattr(data, "__iter__"):
            raise InvalidArgument(
                f"stream=True: data is a {type(data).__name__}; accepted: (x, labels), a dict of arrays, an iterable "
                "of batches or examples; a file is uploaded without stream=True"
            )
        data, first = _peeked(data)
        arrays = named_arrays(first, source.inputs)
        batched = _is_batch(arrays, source, given)
    ranks = dict(source.inputs)
    found, types = [], {}
    for column, array in arrays.items():
        name = given.get(column, column)
        if ranks and name not in ranks and not name.startswith(LABELS):
            continue  # what the model does not read
        shape = array.shape[1:] if batched else array.shape
        found.append(datasets.Input(name, tuple(shape), array.dtype.kind == "f"))
        types[column] = graph_pb2.TensorType(dtype=element_type(array.reshape(-1), column), dims=shape)
    # As a tuple has them.
    order = [*ranks, LABELS]
    found.sort(key=lambda i: order.index(i.name) if i.name in order else len(order))
    return data, found, types


def _peeked(data: Any) -> tuple[Any, Any]:
    iterator = iter(data)
    first = next(iterator, None)
    if first is None:
        raise InvalidArgument("data has no examples; was an iterator used up by an earlier run?")
    return (itertools.chain([first], iterator) if iterator is data else data), first


def _is_batch(arrays: Mapping[str, Array], source: Source, given: Mapping[str, str]) -> bool:
    ranks = dict(source.inputs)
    if not ranks:
        return all(array.ndim > 0 for array in arrays.values())
    more = {array.ndim - ranks[name] for c, array in arrays.items() if (name := given.get(c, c)) in ranks}
    if more not in ({0}, {-1}):
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        raise InvalidArgument(
            f"an element of the data has {shapes}: neither a batch nor an example of the model's inputs "
            f"({', '.join(f'{name} of {rank} dimensions' for name, rank in source.inputs)})"
        )
    return more == {0}


__all__ = ["stream_of"]
