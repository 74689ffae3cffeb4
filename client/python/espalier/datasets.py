"""Data of any library for a graph: what `fit` accepts, in batches for a loop of your own, or uploaded once for several.

`espalier.fit` and the Trainers take all of this directly: dicts of arrays, (x, y), .npz files, names of artifacts,
pandas' DataFrames, datasets and loaders of torch, tf.data and Hugging Face, iterables of batches or of examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from espalier import data as formats
from espalier.client import Client, default_client
from espalier.counts import check_count
from espalier.errors import InvalidArgument
from espalier.npz import Array
from espalier.steps import drive

if TYPE_CHECKING:
    from espalier.graph import Graph


def batches(
    data: Any, graph: Graph, batch_size: int, *, columns: Mapping[str, str] | None = None
) -> Iterator[dict[str, Array]]:
    """The examples of `data` in order, as batches for Session.forward and Session.step: dicts of arrays by column.

    Those that do not fill a batch at the end are left out. A file is read with numpy.load before. InvalidArgument if
    inputs and columns do not fit; what an iterable raises is passed on.
    """
    check_count("batch_size", batch_size)
    if isinstance(data, str) or hasattr(data, "__fspath__"):
        raise InvalidArgument(f"batches: {data!r} is a name; give its arrays, as dict(numpy.load(...))")
    return formats.batches(data, formats.inputs_of(graph), columns, batch_size)


def upload(
    data: Any,
    graph: Graph,
    *,
    columns: Mapping[str, str] | None = None,
    name: str | None = None,
    client: Client | None = None,
) -> str:
    """Brings `data` to the coordinator for any number of trainings; returns "artifact:NAME", which `fit` takes as data.

    Equal data are found again, and nothing is sent. `columns` must be given to `fit` as well. InvalidArgument if inputs
    and columns do not fit; AlreadyExists if `name` is taken.
    """
    client = client or default_client()
    with formats.prepare(data, graph, columns) as made:
        if made.path is None:
            return made.uri
        if made.columns.keys() - (columns or {}).keys():
            raise InvalidArgument(f"upload: give columns={made.columns}, here and to fit")
        files = {made.path.name: made.path}
        return "artifact:" + drive(client._connection, client._upload(files, made.stem, "dataset", name))


__all__ = ["batches", "upload"]
