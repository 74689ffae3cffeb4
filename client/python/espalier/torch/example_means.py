"""Which losses and metrics are means over examples, so that batches of any size have means that add up."""

from __future__ import annotations

from typing import Any

from espalier.graph import Graph, Tensor
from espalier.torch.emitter import Emitter
from espalier.torch.values import Size, Value, same
from espalier.v1 import graph_pb2 as pb

# Operators that the coordinator gives weights of examples (docs/reference/operators.md): the first input's dimension 0
# is the examples.
_MEANS = {
    "accuracy",
    "binary_crossentropy",
    "categorical_crossentropy",
    "mean_absolute_error",
    "mean_squared_error",
    "negative_log_likelihood",
    "sparse_categorical_crossentropy",
}
_LINEAR = {"add", "subtract", "multiply_scalar", "divide_scalar", "identity", "stop_gradient", "reshape", "cast"}
_SAME = {"reshape", "flatten", "squeeze", "unsqueeze", "cast", "identity"}


def is_mean(emitter: Emitter, value: Value, rows: Size) -> bool:
    """Whether a value of the graph is a mean over `rows` examples, or a linear combination of such means.

    A mean over the weights of classes, or over labels that are computed and may be ignored, is none: its divisor is
    another one in each batch. What is not recognized counts as none, too.
    """
    return isinstance(value.held, Tensor) and _is_mean(emitter, emitter.graph, value.held.index, rows)


def _is_mean(emitter: Emitter, graph: Graph, value: int, rows: Size) -> bool:
    node = emitter.producer(value)
    if node is None:
        return False
    if node.op in _LINEAR:
        return all(_is_mean(emitter, graph, i, rows) for i in node.inputs)
    shape = emitter.shapes.get(node.inputs[0], ())
    if node.op not in _MEANS or not shape or not same(shape[0], rows) or _text(node, "reduction", "mean") != "mean":
        return False
    if _text(node, "mean_over", "counted" if node.op == "negative_log_likelihood" else "all") != "counted":
        return True
    has_class_weights = len(node.inputs) > 2 and node.inputs[2] >= 0
    return not has_class_weights and _is_input(emitter, graph, node.inputs[1], rows)


def _is_input(emitter: Emitter, graph: Graph, value: int, rows: Size) -> bool:
    """Whether labels are an input of the graph, in another shape or type at most, their examples in dimension 0."""
    while True:
        shape = emitter.shapes.get(value)
        if shape is not None and (not shape or not same(shape[0], rows)):
            return False
        node = emitter.producer(value)
        if node is None:
            return bool(graph.proto.values[value].kind == pb.INPUT)
        if node.op not in _SAME or len(node.inputs) != 1:
            return False
        value = node.inputs[0]


def _text(node: Any, name: str, default: str) -> str:
    return str(node.attributes[name].s) if name in node.attributes else default


__all__ = ["is_mean"]
