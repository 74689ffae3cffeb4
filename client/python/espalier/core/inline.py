"""Copies a graph into another one."""

from __future__ import annotations

from collections.abc import Mapping

from espalier.graph import Graph, Tensor, dtype_name
from espalier.v1 import graph_pb2

_NAMES = {
    graph_pb2.F32: "float32",
    graph_pb2.BF16: "bfloat16",
    graph_pb2.F16: "float16",
    graph_pb2.I32: "int32",
    graph_pb2.I64: "int64",
    graph_pb2.BOOL: "bool",
    graph_pb2.I8: "int8",
    graph_pb2.U8: "uint8",
}


def inline(
    target: Graph, source: Graph, given: Mapping[str, Tensor] | None = None, prefix: str = ""
) -> dict[int, Tensor]:
    """Adds the values and nodes of `source` to `target`; returns what each value has become, by its index.

    given: tensors of `target` that take the place of inputs of `source`, by name. Names that are taken get a number;
    `prefix` comes before those of nodes and parameters. Outputs, and inputs that no node reads, are not copied.
    """
    made: dict[int, Tensor] = {}
    read = {index for node in source.proto.nodes for index in node.inputs}
    replaced = dict(given or {})
    for index, value in enumerate(source.proto.values):
        dtype = _NAMES[value.type.dtype] if value.kind != graph_pb2.COMPUTED else None
        dims = tuple(value.type.dims)
        if value.kind == graph_pb2.INPUT and value.name in replaced:
            made[index] = replaced[value.name]
        elif value.kind == graph_pb2.INPUT and index in read:
            made[index] = target.input(value.name, [None if d < 0 else d for d in dims], dtype_name(dtype))
        elif value.kind == graph_pb2.PARAMETER:
            made[index] = target.parameter(f"{prefix}{value.name}", dims, dtype, initializer=value.initializer)
            copied = target.proto.values[made[index].index]
            copied.frozen = value.frozen
            if value.data:
                copied.data = value.data
                copied.ClearField("initializer")
        elif value.kind == graph_pb2.CONSTANT:
            # Not Graph.constant, which finds equal constants: `source` did that.
            made[index] = target._value(value.name, graph_pb2.CONSTANT, dtype, dims)
            target.proto.values[made[index].index].data = value.data
    for node in source.proto.nodes:
        outputs = target.op(
            node.op,
            [None if i < 0 else made[i] for i in node.inputs],
            None,
            outputs=len(node.outputs),
            name=f"{prefix}{node.name}",
            source=source.sources.get(node.name, ""),
        )
        copy = target.proto.nodes[-1]
        for key, attribute in node.attributes.items():
            copy.attributes[key].CopyFrom(attribute)
        made.update(zip(node.outputs, outputs, strict=True))
    return made


__all__ = ["inline"]
