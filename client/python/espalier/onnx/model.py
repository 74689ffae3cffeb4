"""FlexFlow's `flexflow.onnx.model`: an ONNX file as layers of an FFModel.

onnx_model = ONNXModel("cifar10_cnn.onnx")
output = onnx_model.apply(ffmodel, {"input.1": input_tensor})
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import numpy_helper

from espalier.core.layer import Parameter, Tensor
from espalier.errors import InvalidArgument, Unsupported, UnsupportedOperators
from espalier.graph import glorot_uniform, ones, zeros
from espalier.onnx.handlers import HANDLERS, Node, Operand

if TYPE_CHECKING:
    from espalier.core import FFModel


class ONNXModel:
    """An ONNX model to be trained, from a file or a ModelProto.

    Initializers are parameters with these elements; those that a file of export_params=False leaves out begin as in
    FlexFlow: kernels from Glorot's uniform distribution, biases from 0, scales of norms from 1.
    """

    def __init__(self, filename: str | os.PathLike[str] | onnx.ModelProto):
        try:
            self.model = filename if isinstance(filename, onnx.ModelProto) else onnx.load(os.fspath(filename))
        except FileNotFoundError:
            raise InvalidArgument(f"{os.fspath(filename)}: there is no such file") from None
        except Exception as error:
            raise InvalidArgument(f"{filename} is no ONNX file: {error}") from error

    def apply(self, ffmodel: FFModel, input_dict: Mapping[str, Tensor]) -> Any:
        """Adds the model's nodes as layers and returns its output, or a list of several.

        input_dict: tensors by the names of the file's inputs. UnsupportedOperators lists all operators that cannot be
        converted; InvalidArgument for inputs that are missing or do not fit.
        """
        opset = max((o.version for o in self.model.opset_import if o.domain in ("", "ai.onnx")), default=1)
        made = _Import(self.model.graph, ffmodel, dict(input_dict), opset).run()
        return made[0] if len(made) == 1 else made


class ONNXModelKeras(ONNXModel):
    """As ONNXModel; FlexFlow has another class for files that keras2onnx wrote."""

    def __init__(self, filename: str | os.PathLike[str] | onnx.ModelProto, ffconfig: Any = None, ffmodel: Any = None):
        super().__init__(filename)


class _Import:
    """Converts the nodes of one graph."""

    def __init__(self, graph: onnx.GraphProto, model: FFModel, inputs: dict[str, Tensor], opset: int):
        self._graph, self._model, self._opset = graph, model, opset
        self._values: dict[str, Operand] = dict(inputs)
        self._parameters: dict[str, Parameter] = {}
        self._arrays: dict[str, np.ndarray[Any, Any]] = {i.name: numpy_helper.to_array(i) for i in graph.initializer}
        self._absent = self._shapes_of_absent(inputs)

    def _shapes_of_absent(self, inputs: Mapping[str, Tensor]) -> dict[str, list[int]]:
        """Shapes of parameters without elements: inputs of the file for which no tensor is given."""
        known = {i.name for i in self._graph.input}
        unknown = sorted(set(inputs) - known)
        named = ", ".join(i.name for i in self._graph.input if i.name not in self._arrays)
        if unknown:
            raise InvalidArgument(f"the file has no input {unknown[0]!r}; it has {named}")
        found = {}
        for value in self._graph.input:
            if value.name in inputs or value.name in self._arrays:
                continue
            kind = value.type.tensor_type
            dims = [d.dim_value for d in kind.shape.dim]
            if (
                kind.elem_type != onnx.TensorProto.FLOAT
                or any(d < 1 for d in dims)
                or not _named_as_parameter(value.name)
            ):
                raise InvalidArgument(
                    f"the file's input {value.name!r} {dims} is given no tensor; its inputs are {named}"
                )
            found[value.name] = dims
        return found

    def run(self) -> list[Tensor]:
        """Converts all nodes and returns the outputs."""
        missing = Counter(node.op_type for node in self._graph.node if node.op_type not in HANDLERS)
        if missing:
            first = {node.op_type: node.name for node in reversed(self._graph.node)}
            raise UnsupportedOperators(
                "ONNX", [Unsupported(op, count, f"node {first[op]}") for op, count in missing.items()]
            )
        for node in self._graph.node:
            operands = [self._operand(name) for name in node.input]
            made = HANDLERS[node.op_type](Node(self._model, node, operands, self, self._opset))
            outputs = made if isinstance(made, list) else [made]
            self._values.update(zip(node.output, outputs, strict=False))
        results = []
        for output in self._graph.output:
            value = self._values.get(output.name)
            if not isinstance(value, Tensor):
                raise InvalidArgument(f"output {output.name} of the file does not depend on its inputs")
            results.append(value)
        return results

    def _operand(self, name: str) -> Operand:
        if not name:
            return None
        if name in self._values:
            return self._values[name]
        if name in self._arrays:
            return self._arrays[name]
        if name in self._absent:
            return name
        raise InvalidArgument(f"the file's value {name!r} is used before it is computed")

    def parameter(self, node: Node, place: int, *, trainable: bool = True) -> Parameter:
        """The parameter that is operand `place` of a node; one for all its uses."""
        name = node.proto.input[place]
        if name not in self._parameters:
            graph = self._model._graph
            if name in self._absent:
                dims = self._absent[name]
                start = glorot_uniform() if len(dims) > 1 else zeros()
                if name.endswith("running_var") or (node.proto.op_type == "BatchNormalization" and place == 1):
                    start = ones()
                value = graph.parameter(name, dims, initializer=start, trainable=trainable)
            else:
                array = self._arrays.get(name)
                if array is None:
                    array = node.array(place)
                dims = list(array.shape)
                value = graph.parameter(name, data=array.astype(np.float32), trainable=trainable)
            self._parameters[name] = Parameter(value, dims, "float32", None)
        return self._parameters[name]

    def shape(self, node: Node, place: int) -> list[int]:
        """Dims of a parameter that operand `place` is."""
        name = node.proto.input[place]
        return self._absent[name] if name in self._absent else list(node.array(place).shape)


def _named_as_parameter(name: str) -> bool:
    return name.rpartition(".")[2] in ("weight", "bias", "running_mean", "running_var") or "::" in name


__all__ = ["ONNXModel", "ONNXModelKeras"]
