"""How each ONNX operator becomes a layer of an FFModel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper

from espalier.core.builder import AttributeDict, Layer
from espalier.core.enums import DataType, OpType
from espalier.core.layer import Parameter, Tensor
from espalier.errors import InvalidArgument

if TYPE_CHECKING:
    from espalier.core import FFModel

# A tensor, known elements, a parameter without elements (its name), or an absent one.
Operand: TypeAlias = "Tensor | np.ndarray[Any, Any] | str | None"
Made: TypeAlias = "Operand | list[Any]"
HANDLERS: dict[str, Callable[[Node], Made]] = {}


class Node:
    """A node with its operands. `source` makes parameters."""

    def __init__(self, model: FFModel, proto: onnx.NodeProto, operands: Sequence[Operand], source: Any, opset: int):
        self.opset = opset
        self.model, self.proto, self.operands, self._source = model, proto, operands, source
        self.attributes = {a.name: onnx.helper.get_attribute_value(a) for a in proto.attribute}

    def error(self, text: str) -> InvalidArgument:
        """An error that names the node."""
        return InvalidArgument(f"ONNX node {self.proto.name or self.proto.output[0]} ({self.proto.op_type}): {text}")

    def has(self, place: int) -> bool:
        """Whether an optional operand is there."""
        return place < len(self.operands) and self.operands[place] is not None

    def tensor(self, place: int = 0) -> Tensor:
        """An operand that is computed from the inputs."""
        value = self.operands[place]
        if not isinstance(value, Tensor):
            raise self.error(f"input {place} must depend on the model's inputs")
        return value

    def array(self, place: int) -> np.ndarray[Any, Any]:
        """An operand of known elements."""
        value = self.operands[place]
        if not isinstance(value, np.ndarray):
            raise self.error(f"input {place} must be known when the file is read")
        return value

    def is_known(self, place: int) -> bool:
        """Whether an operand has known elements."""
        return isinstance(self.operands[place], np.ndarray)

    def layer(self, kind: OpType, *inputs: Tensor) -> Layer:
        """A layer that is named after the node."""
        name = self.proto.name.strip("/").replace("/", ".") or self.proto.op_type.lower()
        return self.model._begin(kind, name, None, list(inputs))

    def parameter(self, layer: Layer, place: int, *, trainable: bool = True) -> Parameter | None:
        """An operand as a parameter of a layer; None if it is absent."""
        if not self.has(place):
            return None
        found: Parameter = self._source.parameter(self, place, trainable=trainable)
        layer.op.parameters.append(found)
        return found

    def shape(self, place: int) -> list[int]:
        """Dims of an operand that is a parameter."""
        found: list[int] = self._source.shape(self, place)
        return found

    def get(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        value = self.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def ints(self, name: str, place: int) -> list[int] | None:
        """Integers that are an attribute in old opsets and an operand in new ones; None if absent."""
        if name in self.attributes:
            return [int(v) for v in self.attributes[name]]
        return [int(v) for v in self.array(place).reshape(-1)] if self.has(place) else None


def _handles(*names: str) -> Callable[[Callable[[Node], Made]], Callable[[Node], Made]]:
    def register(function: Callable[[Node], Made]) -> Callable[[Node], Made]:
        HANDLERS.update(dict.fromkeys(names, function))
        return function

    return register


# Windows.


def _pads(node: Node) -> list[int]:
    if node.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise node.error(f"auto_pad {node.get('auto_pad')}; write the pads")
    return [int(p) for p in node.get("pads", [0, 0, 0, 0])]


def _sizes(
    node: Node, x: Tensor, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> list[int]:
    if x.num_dims != 4 or len(kernel) != 2:
        raise node.error(f"of dims {list(x.dims)}; images [N, C, H, W] are needed")
    up = math.ceil if node.get("ceil_mode", 0) else math.floor
    return [
        up((have + pads[d] + pads[d + 2] - dilations[d] * (kernel[d] - 1) - 1) / strides[d]) + 1
        for d, have in enumerate(x.dims[2:])
    ]


@_handles("Conv")
def _conv(node: Node) -> Tensor:
    x, shape = node.tensor(), node.shape(1)
    strides, dilations = list(node.get("strides", [1, 1])), list(node.get("dilations", [1, 1]))
    pads = _pads(node)
    sizes = _sizes(node, x, shape[2:], strides, pads, dilations)
    layer = node.layer(OpType.CONV2D, x)
    layer.check_batch(x)
    operands = [x, node.parameter(layer, 1), node.parameter(layer, 2)]
    attributes: AttributeDict = {
        "strides": strides,
        "pads": pads,
        "dilations": dilations,
        "groups": int(node.get("group", 1)),
    }
    made = layer.emit("conv2d", operands, attributes, dims=[x.dims[0], shape[0], *sizes])
    return node.model._end(layer, made)


@_handles("MaxPool", "AveragePool")
def _pool(node: Node) -> Tensor:
    x, kernel = node.tensor(), list(node.get("kernel_shape"))
    strides, dilations = list(node.get("strides", [1, 1])), list(node.get("dilations", [1, 1]))
    pads = _pads(node)
    sizes = _sizes(node, x, kernel, strides, pads, dilations)
    layer = node.layer(OpType.POOL2D, x)
    layer.check_batch(x)
    attributes: AttributeDict = {
        "kernel": kernel,
        "strides": strides,
        "pads": pads,
        "dilations": dilations,
        "ceil_mode": bool(node.get("ceil_mode", 0)),
        "kind": "max" if node.proto.op_type == "MaxPool" else "average",
        "count_include_pad": bool(node.get("count_include_pad", 0)),
    }
    return node.model._end(layer, layer.emit("pool2d", [x], attributes, dims=[*x.dims[:2], *sizes]))


@_handles("GlobalAveragePool")
def _global_average_pool(node: Node) -> Tensor:
    x = node.tensor()
    return node.model.mean(x, list(range(2, x.num_dims)), keepdims=True)


@_handles("BatchNormalization")
def _batch_norm(node: Node) -> Tensor:
    x = node.tensor()
    layer = node.layer(OpType.BATCH_NORM, x)
    layer.check_batch(x)
    learned = [node.parameter(layer, 1), node.parameter(layer, 2)]
    running = [node.parameter(layer, place, trainable=False) for place in (3, 4)]
    stats = layer.emit("batch_norm_stats", [x], dims=[2, x.dims[1]], batch_dim=None)
    # ONNX's momentum is that of the old value.
    attributes: AttributeDict = {
        "epsilon": float(node.get("epsilon", 1e-5)),
        "momentum": 1 - float(node.get("momentum", 0.9)),
    }
    made = layer.emit("batch_norm", [x, *learned, *running, stats], attributes, dims=x.dims)
    return node.model._end(layer, made)


# Products.


@_handles("Gemm")
def _gemm(node: Node) -> Tensor:
    if float(node.get("alpha", 1)) != 1 or float(node.get("beta", 1)) != 1 or node.get("transA", 0):
        raise node.error("alpha, beta and transA other than 1, 1 and 0")
    x, shape = node.tensor(), node.shape(1)
    if not node.get("transB", 0):
        return _times(node, x, shape, bias=True)
    layer = node.layer(OpType.LINEAR, x)
    operands = [x, node.parameter(layer, 1), node.parameter(layer, 2)]
    return node.model._end(layer, layer.emit("linear", operands, dims=[x.dims[0], shape[0]]))


def _times(node: Node, x: Tensor, shape: Sequence[int], bias: bool) -> Tensor:
    if len(shape) != 2:
        raise node.error(f"of a parameter of dims {list(shape)}; two are needed")
    layer = node.layer(OpType.LINEAR, x)
    kernel = node.parameter(layer, 1)
    dims = [*x.dims[:-1], shape[1]]
    made = layer.emit("matmul", [x, kernel], dims=dims, batch_dim=x.batch_dim)
    offset = node.parameter(layer, 2) if bias else None
    if offset is not None:
        made = layer.emit("add", [made, offset], dims=dims, batch_dim=x.batch_dim)
    return node.model._end(layer, made)


@_handles("MatMul")
def _matmul(node: Node) -> Tensor:
    if isinstance(node.operands[1], Tensor):
        return node.model.batch_matmul(node.tensor(0), node.tensor(1))
    return _times(node, node.tensor(), node.shape(1), bias=False)


# Elements.

_UNARY = {
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Elu": "elu",
    "Exp": "exp",
    "Gelu": "gelu",
    "Sin": "sin",
    "Cos": "cos",
}


@_handles(*_UNARY)
def _unary(node: Node) -> Tensor:
    if node.proto.op_type == "Elu" and float(node.get("alpha", 1)) != 1:
        raise node.error(f"alpha {node.get('alpha')}; accepted: 1")
    if node.proto.op_type == "Gelu" and node.get("approximate", "none") != "none":
        raise node.error(f"approximate {node.get('approximate')}; accepted: none")
    made: Tensor = getattr(node.model, _UNARY[node.proto.op_type])(node.tensor())
    return made


_BINARY = {"Add": ("add", np.add), "Sub": ("subtract", np.subtract), "Mul": ("multiply", np.multiply)}
_BINARY |= {"Div": ("divide", np.true_divide), "Max": ("max", np.maximum), "Min": ("min", np.minimum)}


@_handles(*_BINARY)
def _binary(node: Node) -> Made:
    name, compute = _BINARY[node.proto.op_type]
    if len(node.operands) != 2:
        raise node.error(f"of {len(node.operands)} operands; two are accepted")
    if node.is_known(0) and node.is_known(1):
        if node.proto.op_type == "Div" and node.array(0).dtype.kind in "iu":
            compute = np.floor_divide
        found: np.ndarray[Any, Any] = np.asarray(compute(node.array(0), node.array(1)))
        return found
    operands = [node.operands[place] for place in (0, 1)]
    if not all(isinstance(operand, Tensor) for operand in operands):
        place = 0 if isinstance(operands[1], Tensor) else 1
        if node.is_known(place) and node.array(place).size == 1:
            x = node.tensor(1 - place)
            value = node.array(place).reshape(()).item()
            operands[place] = node.model.create_constant([1] * x.num_dims, value, x.data_type)
        elif node.is_known(place) and node.array(place).dtype.kind != "f":
            raise node.error(f"of integers {node.array(place).tolist()}; accepted: one number, or a parameter")
        else:
            operands[place] = node._source.parameter(node, place)
    made: Tensor = getattr(node.model, name)(*operands)
    node.model.get_last_layer().parameters += [item for item in operands if isinstance(item, Parameter)]
    return made


@_handles("Softmax")
def _softmax(node: Node) -> Tensor:
    x = node.tensor()
    old = node.opset < 13
    axis = int(node.get("axis", 1 if old else -1)) % x.num_dims
    if old and axis != x.num_dims - 1:
        raise node.error(f"over dimensions {axis} and later, as opset {node.opset} says; accepted: the last one")
    return node.model.softmax(x, axis)


@_handles("Dropout")
def _dropout(node: Node) -> Tensor:
    rate = float(node.get("ratio", node.array(1) if node.has(1) else 0.5))
    return node.model.dropout(node.tensor(), rate)


@_handles("Identity")
def _identity(node: Node) -> Made:
    return node.operands[0]


_TYPES = {
    onnx.TensorProto.FLOAT: DataType.DT_FLOAT,
    onnx.TensorProto.INT32: DataType.DT_INT32,
    onnx.TensorProto.INT64: DataType.DT_INT64,
    onnx.TensorProto.BOOL: DataType.DT_BOOLEAN,
}


@_handles("Cast")
def _cast(node: Node) -> Made:
    to = int(node.get("to"))
    if node.is_known(0):
        found: np.ndarray[Any, Any] = node.array(0).astype(onnx.helper.tensor_dtype_to_np_dtype(to))
        return found
    if to not in _TYPES:
        raise node.error(f"to {onnx.TensorProto.DataType.Name(to)}; accepted: FLOAT, INT32, INT64, BOOL")
    return node.model.cast(node.tensor(), _TYPES[to])


# Shapes.


@_handles("Constant")
def _constant(node: Node) -> np.ndarray[Any, Any]:
    if "value" in node.attributes:
        found: np.ndarray[Any, Any] = numpy_helper.to_array(node.attributes["value"])
        return found
    (value,) = node.attributes.values()
    return np.asarray(value)


@_handles("Shape")
def _shape(node: Node) -> np.ndarray[Any, Any]:
    dims = node.tensor().dims if isinstance(node.operands[0], Tensor) else node.array(0).shape
    return np.asarray(dims, np.int64)


@_handles("Gather")
def _gather(node: Node) -> Made:
    if node.is_known(0) and node.is_known(1) and node.array(0).dtype.kind in "iu":
        found: np.ndarray[Any, Any] = np.take(node.array(0), node.array(1), axis=int(node.get("axis", 0)))
        return found
    if isinstance(node.operands[0], Tensor) or int(node.get("axis", 0)) != 0:
        raise node.error("accepted: rows of a parameter by ids, axis 0")
    ids = node.tensor(1)
    layer = node.layer(OpType.EMBEDDING, ids)
    kernel = node.parameter(layer, 0)
    dims = [*ids.dims, *node.shape(0)[1:]]
    return node.model._end(layer, layer.emit("embedding", [ids, kernel], dims=dims, batch_dim=ids.batch_dim))


@_handles("Flatten")
def _flatten(node: Node) -> Tensor:
    if int(node.get("axis", 1)) != 1:
        raise node.error(f"axis {node.get('axis')}; accepted: 1")
    return node.model.flat(node.tensor())


@_handles("Reshape")
def _reshape(node: Node) -> Made:
    shape = node.ints("shape", 1) or []
    if node.is_known(0):
        found: np.ndarray[Any, Any] = node.array(0).reshape(shape)
        return found
    x = node.tensor()
    return node.model.reshape(x, [x.dims[d] if size == 0 else size for d, size in enumerate(shape)])


@_handles("Transpose")
def _transpose(node: Node) -> Tensor:
    x = node.tensor()
    return node.model.transpose(x, list(node.get("perm", range(x.num_dims)[::-1])))


@_handles("Concat")
def _concat(node: Node) -> Made:
    if all(node.is_known(place) for place in range(len(node.operands))):
        arrays = [node.array(place) for place in range(len(node.operands))]
        found: np.ndarray[Any, Any] = np.concatenate(arrays, int(node.get("axis")))
        return found
    return node.model.concat([node.tensor(place) for place in range(len(node.operands))], int(node.get("axis")))


@_handles("Split")
def _split(node: Node) -> list[Tensor]:
    sizes = node.ints("split", 1)
    return node.model.split(node.tensor(), sizes or len(node.proto.output), int(node.get("axis", 0)))


@_handles("Unsqueeze", "Squeeze")
def _squeeze(node: Node) -> Made:
    axes = node.ints("axes", 1)
    squeezes = node.proto.op_type == "Squeeze"
    value = node.array(0) if node.is_known(0) else node.tensor()
    dims = list(value.shape)
    if axes is None:
        axes = [d for d, size in enumerate(dims) if size == 1]
    rank = len(dims) + (0 if squeezes else len(axes))
    places = sorted(axis % rank for axis in axes)
    if squeezes:
        if any(dims[d] != 1 for d in places):
            raise node.error(f"axes {axes} of dims {dims}")
        dims = [size for d, size in enumerate(dims) if d not in places]
    else:
        for d in places:
            dims.insert(d, 1)
    return value.reshape(dims) if isinstance(value, np.ndarray) else node.model.reshape(value, dims)


@_handles("ReduceMean", "ReduceSum")
def _reduce(node: Node) -> Tensor:
    x = node.tensor()
    axes = node.ints("axes", 1) or list(range(x.num_dims))
    reduce = node.model.mean if node.proto.op_type == "ReduceMean" else node.model.reduce_sum
    return reduce(x, axes, bool(node.get("keepdims", 1)))
