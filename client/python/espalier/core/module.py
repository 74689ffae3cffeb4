"""Graphs of other front ends as layers of an FFModel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from espalier.core.builder import Builder
from espalier.core.enums import OpType
from espalier.core.inline import inline
from espalier.core.layer import Parameter, Tensor
from espalier.errors import InvalidArgument
from espalier.graph import Graph
from espalier.v1 import graph_pb2

# Name of an output of a graph, its dims, element type, and the dimension that follows the batch.
Result = tuple[str, Sequence[int], str, int | None]


def add_module(
    model: Builder, name: str, graph: Graph, inputs: Mapping[str, Tensor], results: Sequence[Result]
) -> list[Tensor]:
    """Adds a graph as one layer, whose parameters have the graph's names, and returns its outputs in order.

    A softmax over the last dimension that ends it is one for crossentropies of the model, too.
    """
    layer = model._begin(OpType.MODULE, name, None, list(inputs.values()))
    expected = [v.name for v in graph.proto.values if v.kind == graph_pb2.INPUT]
    missing = [known for known in expected if known not in inputs]
    if missing:
        raise InvalidArgument(f"{name} takes the inputs {', '.join(expected)}; {missing[0]} is not given")
    values = inline(model._graph, graph, {key: tensor.value for key, tensor in inputs.items()})
    for index, value in enumerate(graph.proto.values):
        if value.kind == graph_pb2.PARAMETER:
            layer.op.parameters.append(Parameter(values[index], tuple(value.type.dims), "float32", None))
    places = {output.name: output.value for output in graph.proto.outputs}
    made_by = {node.outputs[0]: node for node in graph.proto.nodes}
    outputs = []
    for output, dims, dtype, batch_dim in results:
        index = places[output]
        values[index].dtype = dtype
        tensor = Tensor(values[index], dims, dtype, batch_dim)
        node = made_by.get(index)
        if node is not None and node.op in ("softmax", "log_softmax"):
            axis = node.attributes["axis"].i if "axis" in node.attributes else -1
            if axis in (-1, len(dims) - 1):
                # Logarithms of probabilities are logits of the same distribution.
                source = node.inputs[0] if node.op == "softmax" else index
                tensor.logits = Tensor(values[source], dims, dtype, batch_dim)
        outputs.append(tensor)
    model._finish(layer, outputs)
    return outputs


__all__ = ["Result", "add_module"]
