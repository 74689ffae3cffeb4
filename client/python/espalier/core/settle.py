"""Initial elements for graphs that are too large for one message, which travel as a file of all parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from espalier.graph import Graph
from espalier.v1 import graph_pb2

# Well below what espalier.values sends within a message.
MOST_BYTES = 32 << 20
_Kind = graph_pb2.Initializer


def settle(graph: Graph, seed: int) -> None:
    """Gives elements to all float32 parameters of a graph that has many elements of some, as those of a module.

    They are drawn here by the formulas of their initializers; otherwise the coordinator draws them.
    """
    parameters = [v for v in graph.proto.values if v.kind == graph_pb2.PARAMETER]
    if sum(len(v.data) for v in parameters) <= MOST_BYTES:
        return
    random = np.random.default_rng(seed)
    for value in parameters:
        if not value.data:
            value.data = drawn(value.initializer, tuple(value.type.dims), random).astype("<f4").tobytes()
            value.ClearField("initializer")


def drawn(
    initializer: graph_pb2.Initializer, shape: Sequence[int], random: np.random.Generator
) -> np.ndarray[Any, Any]:
    """Elements of an initializer of espalier.core."""
    kind = initializer.kind
    if kind == _Kind.NORMAL:
        return random.normal(initializer.mean, initializer.scale, shape)
    if kind == _Kind.UNIFORM:
        return random.uniform(initializer.mean - initializer.scale, initializer.mean + initializer.scale, shape)
    if kind == _Kind.GLOROT_UNIFORM:
        # Of kernels [out, in, window...]; of vectors both are their size.
        window = math.prod(shape[2:])
        fans = (shape[0] + shape[1]) * window if len(shape) > 1 else 2 * shape[0]
        limit = math.sqrt(6 / fans)
        return random.uniform(-limit, limit, shape)
    constants = {_Kind.ZEROS: 0.0, _Kind.ONES: 1.0, _Kind.CONSTANT: initializer.mean}
    return np.full(shape, constants[kind])
