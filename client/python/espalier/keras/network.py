"""A graph of layers between inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from espalier.errors import InvalidArgument
from espalier.keras.layer import Layer, Spec, lower_layer
from espalier.keras.lowering import Lowering, Value
from espalier.keras.tensor import KerasTensor, Node, flatten, topological


class Network:
    """Inputs, outputs and the nodes between them."""

    def __init__(self, inputs: Any, outputs: Any):
        self.inputs_structure, self.outputs_structure = inputs, outputs
        self.inputs: list[KerasTensor] = flatten(inputs)
        self.outputs: list[KerasTensor] = flatten(outputs)
        for what, tensors in (("inputs", self.inputs), ("outputs", self.outputs)):
            for tensor in tensors:
                if not isinstance(tensor, KerasTensor):
                    raise InvalidArgument(f"{what} hold {type(tensor).__name__}; accepted: results of Input and layers")
            if not tensors:
                raise InvalidArgument(f"{what} are empty")
        self.nodes: list[Node]
        self.layers: list[Layer]
        self.nodes, self.layers = topological(self.outputs, self.inputs)
        names: dict[str, Layer] = {layer.name: layer for layer in self.layers if not layer._named_by_call}
        for layer in self.layers:
            if layer._named_by_call:
                base, i = layer.name, 1
                while names.get(layer.name, layer) is not layer:
                    layer.name, i = f"{base}_{i}", i + 1
            if names.setdefault(layer.name, layer) is not layer:
                raise InvalidArgument(f"two layers of the model are named {layer.name!r}: give them other names")

    def input_names(self) -> list[str]:
        """Names of the inputs, in order; unique."""
        found: list[str] = []
        for tensor in self.inputs:
            name, i = tensor.name, 1
            while name in found:
                name, i = f"{tensor.name}_{i}", i + 1
            found.append(name)
        return found

    def output_names(self) -> list[str]:
        """Names of the outputs: those of their layers, numbered where one has several."""
        found: list[str] = []
        for tensor in self.outputs:
            base = tensor.name if tensor.node is None else tensor.node.layer.name
            name, i = base, 1
            while name in found:
                name, i = f"{base}_{i}", i + 1
            found.append(name)
        return found

    def infer(self, specs: list[Spec]) -> list[Spec]:
        """Shapes and types of the outputs for those of the inputs."""
        if len(specs) != len(self.inputs):
            raise InvalidArgument(f"takes {len(self.inputs)} inputs, got {len(specs)}")
        known: dict[int, Spec] = {}
        for tensor, (shape, dtype) in zip(self.inputs, specs, strict=True):
            same = len(shape) == len(tensor.shape) and all(
                a == b or a is None or b is None for a, b in zip(shape, tensor.shape, strict=True)
            )
            if not same:
                raise InvalidArgument(f"input {tensor.name} has shape {tensor.shape}, got {shape}")
            known[id(tensor)] = (shape, dtype)
        for node in self.nodes:
            made = node.layer._outputs([known[id(t)] for t in node.inputs], node.arguments)
            for tensor, spec in zip(node.outputs, made, strict=True):
                known[id(tensor)] = spec
        return [known[id(tensor)] for tensor in self.outputs]

    def lower(self, g: Lowering, values: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        """The operators of all nodes, for values of the inputs."""
        known = {id(tensor): value for tensor, value in zip(self.inputs, values, strict=True)}
        for node in self.nodes:
            made = lower_layer(node.layer, g, [known[id(t)] for t in node.inputs], node.arguments, node.source)
            for tensor, value in zip(node.outputs, made, strict=True):
                known[id(tensor)] = value
        return [known[id(tensor)] for tensor in self.outputs]
