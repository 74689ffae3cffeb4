"""Leaves out what no output of a graph needs."""

from __future__ import annotations

from espalier.graph import Graph
from espalier.v1 import graph_pb2 as pb

# Operators that also change what is kept between steps.
_KEEPS_STATE = {"batch_norm"}


def prune(graph: Graph) -> None:
    """Removes nodes and values without use; inputs and the order stay. Tensors of the graph become invalid."""
    old = graph.proto
    wanted = {output.value for output in old.outputs}
    nodes = []
    for node in reversed(old.nodes):
        if node.op in _KEEPS_STATE or any(value in wanted for value in node.outputs):
            wanted.update(value for value in node.inputs if value >= 0)
            wanted.update(node.outputs)
            nodes.append(node)
    new = pb.Graph(format_version=old.format_version, name=old.name)
    for key, text in old.metadata.items():
        new.metadata[key] = text
    places = {-1: -1}
    for place, value in enumerate(old.values):
        if place in wanted or value.kind == pb.INPUT:
            places[place] = len(new.values)
            new.values.add().CopyFrom(value)
    for node in reversed(nodes):
        made = new.nodes.add()
        made.CopyFrom(node)
        made.inputs[:] = [places[value] for value in node.inputs]
        made.outputs[:] = [places[value] for value in node.outputs]
    for output in old.outputs:
        new.outputs.add(name=output.name, value=places[output.value])
    graph.proto = new
