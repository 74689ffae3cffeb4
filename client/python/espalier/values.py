"""Graphs whose values are too large for one message: the values travel as an artifact instead."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from espalier import safetensors_io
from espalier.errors import InvalidArgument
from espalier.v1 import graph_pb2, training_pb2

if TYPE_CHECKING:
    from espalier.client import Client

# The coordinator takes messages of 64 MiB.
MOST_BYTES = 48 << 20

_CODES = {
    graph_pb2.F32: "<f4",
    graph_pb2.F16: "<f2",
    graph_pb2.I32: "<i4",
    graph_pb2.I64: "<i8",
    graph_pb2.BOOL: "|b1",
    graph_pb2.I8: "|i1",
    graph_pb2.U8: "|u1",
}


def _array(value: graph_pb2.Value) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    if value.type.dtype == graph_pb2.BF16:
        import ml_dtypes

        kind = np.dtype(ml_dtypes.bfloat16)
    else:
        kind = np.dtype(_CODES[value.type.dtype])
    return np.frombuffer(value.data, kind).reshape(tuple(value.type.dims))


def separate_values(spec: training_pb2.TrainingSpec, client: Client) -> None:
    """If the graph of a specification exceeds MOST_BYTES, moves its values to an artifact, the job's init_artifact.

    The artifact is found again by its content. InvalidArgument if a parameter has no values of its own then.
    """
    if spec.WhichOneof("model") != "graph" or spec.graph.ByteSize() <= MOST_BYTES:
        return
    if spec.init_artifact:
        # Its values are replaced anyway; only the graph must be small.
        for value in spec.graph.values:
            if value.kind == graph_pb2.PARAMETER:
                value.ClearField("data")
        return
    graph = graph_pb2.Graph()
    graph.CopyFrom(spec.graph)
    tensors = {}
    for value in graph.values:
        if value.kind != graph_pb2.PARAMETER:
            continue
        if not value.data:
            raise InvalidArgument(
                f"the graph has {spec.graph.ByteSize() >> 20} MiB of values, so they travel as a file, which must hold "
                f"all parameters; {value.name} has an initializer instead: give it data, or the others initializers"
            )
        tensors[value.name] = _array(value)
        value.ClearField("data")
    with tempfile.TemporaryDirectory(prefix="espalier-") as name:
        folder = Path(name)
        safetensors_io.save_file(tensors, folder / "model.safetensors")
        (folder / "graph.pb").write_bytes(graph.SerializeToString(deterministic=True))
        (folder / "config.json").write_text(json.dumps({"model_type": "espalier_graph"}))
        spec.init_artifact = client.upload(folder, "model")
    # The graph itself is sent, too: its losses are matched to its predictions, which those of an artifact were before.
    spec.graph.CopyFrom(graph)
