"""What losses say of the examples: whether they are means over them, and which labels there may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from espalier.errors import InvalidArgument
from espalier.graph import Tensor
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

    The coordinator makes means of those over labels that are not ignored and over the weights of classes, if it knows
    the weights, and the labels are an input. Otherwise the divisor is another one in each batch, and it is none. What
    is not recognized counts as none, too.
    """
    return isinstance(value.held, Tensor) and _is_mean(emitter, value.held.index, rows)


@dataclass(frozen=True)
class LabelRange:
    """An input of labels of classes 0 to `classes` - 1; `ignored` may be there, too."""

    name: str
    classes: int
    ignored: int

    def check(self, labels: np.ndarray[Any, Any], who: str) -> None:
        """InvalidArgument names the first example with another label."""
        wrong = ((labels < 0) | (labels >= self.classes)) & (labels != self.ignored)
        if wrong.any():
            place = tuple(int(i) for i in np.argwhere(wrong)[0])
            inner = f" at {list(place[1:])}" if place[1:] else ""
            raise InvalidArgument(
                f"{who}: {self.name} of example {place[0]}{inner} is {labels[place]}; accepted are 0 to "
                f"{self.classes - 1}, or {self.ignored} to leave it out"
            )


def label_ranges(emitter: Emitter) -> list[LabelRange]:
    """Of the inputs that the graph's losses read as labels of classes."""
    found = set()
    for node in emitter.graph.proto.nodes:
        axis = {"sparse_categorical_crossentropy": -1, "negative_log_likelihood": 1}.get(node.op)
        shape = emitter.shapes.get(node.inputs[0]) if axis is not None else None
        name = _source(emitter, node.inputs[1]) if axis is not None else ""
        if name and shape and axis is not None and isinstance(shape[axis], int):
            ignored = node.attributes["ignore_index"].i if "ignore_index" in node.attributes else -100
            found.add(LabelRange(name, shape[axis], int(ignored)))
    return sorted(found, key=lambda of: (of.name, of.classes))


def _is_mean(emitter: Emitter, value: int, rows: Size) -> bool:
    node = emitter.producer(value)
    if node is None:
        return False
    if node.op in _LINEAR:
        return all(_is_mean(emitter, i, rows) for i in node.inputs)
    shape = emitter.shapes.get(node.inputs[0], ())
    if node.op not in _MEANS or not shape or not same(shape[0], rows) or _text(node, "reduction", "mean") != "mean":
        return False
    if _text(node, "mean_over", "counted" if node.op == "negative_log_likelihood" else "all") != "counted":
        return True
    return _knows_class_weights(emitter, node) and bool(_source(emitter, node.inputs[1], rows))


def _knows_class_weights(emitter: Emitter, node: Any) -> bool:
    """Whether there are none, or constants that server/jobs/add_example_weights.cc divides by."""
    if len(node.inputs) < 3 or node.inputs[2] < 0:
        return True
    found = emitter.graph.proto.values[node.inputs[2]]
    if found.kind != pb.CONSTANT or found.type.dtype != pb.F32:
        return False
    weights = np.frombuffer(found.data, "<f4")
    return bool(np.all(np.isfinite(weights) & (weights >= 0)))


def _source(emitter: Emitter, value: int, rows: Size | None = None) -> str:
    """The input that a value is, in another shape or type at most (with `rows`: that many in dimension 0); or ""."""
    while True:
        shape = emitter.shapes.get(value)
        if rows is not None and shape is not None and (not shape or not same(shape[0], rows)):
            return ""
        node = emitter.producer(value)
        if node is None:
            found = emitter.graph.proto.values[value]
            return str(found.name) if found.kind == pb.INPUT else ""
        if node.op not in _SAME or len(node.inputs) != 1:
            return ""
        value = node.inputs[0]


def _text(node: Any, name: str, default: str) -> str:
    return str(node.attributes[name].s) if name in node.attributes else default


__all__ = ["LabelRange", "is_mean", "label_ranges"]
