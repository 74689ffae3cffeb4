"""The graph of a model under construction: layers, and the operators that they are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from espalier.core import initializers
from espalier.core.enums import ActiMode, DataType, OpType, dtype_of
from espalier.core.initializers import Initializer
from espalier.core.layer import Op, Parameter, Tensor
from espalier.counts import check_count
from espalier.errors import FailedPrecondition, InvalidArgument
from espalier.graph import AttributeValue, Graph, glorot_uniform, zeros
from espalier.v1 import graph_pb2

_ACTIVATIONS = {
    ActiMode.AC_MODE_NONE: "none",
    ActiMode.AC_MODE_RELU: "relu",
    ActiMode.AC_MODE_SIGMOID: "sigmoid",
    ActiMode.AC_MODE_TANH: "tanh",
    ActiMode.AC_MODE_GELU: "gelu",
}
Attributes = Mapping[str, AttributeValue]
AttributeDict = dict[str, AttributeValue]


class Layer:
    """A layer that is being added."""

    def __init__(self, graph: Graph, op: Op, shared: Op | None, batch_size: int):
        self.graph = graph
        self._batch_size = batch_size
        self.op = op
        self._shared = list(shared.parameters) if shared is not None else None

    def error(self, text: str) -> InvalidArgument:
        """An error that names the layer."""
        return InvalidArgument(f"layer {self.op.name} ({self.op.op_type.name.lower()}): {text}")

    def check_batch(self, tensor: Tensor, over: Sequence[int] | None = None) -> None:
        """Refuses an input that is computed over dimensions, the batch among them.

        Without `over` the layer takes the batch in dimension 0 only.
        """
        d = tensor.batch_dim
        if over is None and d not in (None, 0):
            raise self.error(f"dimension {d} of its input {tensor!r} is the batch, which must be dimension 0")
        if over is not None and d in over:
            raise self.error(f"dimension {d} of its input {tensor!r} is the batch, over which nothing is computed")

    def parameter(
        self,
        kind: str,
        shape: Sequence[int],
        initializer: Initializer | None = None,
        default: graph_pb2.Initializer | None = None,
        *,
        trainable: bool = True,
    ) -> Parameter:
        """The layer's next parameter, or that of the layer whose parameters it shares."""
        if self._shared is not None:
            if not self._shared or self._shared[0].dims != tuple(shape):
                have = list(self._shared[0].dims) if self._shared else "no more"
                raise self.error(f"shared_op: its {kind} would have dims {list(shape)}, the shared one has {have}")
            found = self._shared.pop(0)
        else:
            message = initializers.message(initializer, default or glorot_uniform(), f"layer {self.op.name}")
            name = f"{self.op.label}.{kind}"
            value = self.graph.parameter(name, shape, initializer=message, trainable=trainable)
            found = Parameter(value, shape, "float32", None)
        self.op.parameters.append(found)
        return found

    def bias(self, size: int, initializer: Initializer | None = None) -> Parameter:
        """A parameter of one dimension that begins at zero."""
        return self.parameter("bias", [size], initializer, zeros())

    def _name(self, op: str) -> str:
        return self.op.label if op != "reshape" or self.op.op_type == OpType.RESHAPE else f"{self.op.label}.{op}"

    def emit(
        self,
        op: str,
        inputs: Sequence[Tensor | None],
        attributes: Attributes | None = None,
        *,
        dims: Sequence[int],
        batch_dim: int | None = 0,
        dtype: str = "float32",
        uniform: bool = False,
    ) -> Tensor:
        """Applies an operator with one output."""
        values = [None if tensor is None else tensor.value for tensor in inputs]
        made = self.graph.op(op, values, attributes, name=self._name(op), dtype=dtype)
        return Tensor(made, dims, dtype, batch_dim, uniform)

    def emit_n(
        self, op: str, inputs: Sequence[Tensor], attributes: Attributes, results: Sequence[tuple[Sequence[int], str]]
    ) -> list[Tensor]:
        """Applies an operator with several outputs, given by dims and element type, whose dimension 0 is the batch."""
        made = self.graph.op(
            op, [tensor.value for tensor in inputs], attributes, outputs=len(results), name=self._name(op)
        )
        for value, (_, dtype) in zip(made, results, strict=True):
            value.dtype = dtype
        batch_dim = inputs[0].batch_dim
        return [Tensor(v, dims, dtype, batch_dim) for v, (dims, dtype) in zip(made, results, strict=True)]

    def activate(self, tensor: Tensor, activation: ActiMode) -> Tensor:
        """The activation as an operator of its own."""
        name = activation_name(activation, self)
        if name == "none":
            return tensor
        return self.emit(name, [tensor], dims=tensor.dims, batch_dim=tensor.batch_dim, dtype=tensor.dtype)

    def reshaped(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """The tensor with other dimensions, of which the one that follows the batch is found."""
        dims = [int(d) for d in shape]
        if dims.count(-1) == 1:
            rest = math.prod(d for d in dims if d != -1)
            if rest > 0 and math.prod(tensor.dims) % rest == 0:
                dims[dims.index(-1)] = math.prod(tensor.dims) // rest
        if any(d < 1 for d in dims) or math.prod(dims) != math.prod(tensor.dims):
            raise self.error(f"{list(tensor.dims)} cannot be reshaped to {list(shape)}: the numbers of elements differ")
        target, batch_dim = list(dims), None
        if tensor.batch_dim is not None:
            before = math.prod(tensor.dims[: tensor.batch_dim])
            places = [i for i in range(len(dims)) if math.prod(dims[:i]) == before and dims[i] % self._batch_size == 0]
            batch_dim = places[0] if places else None
            if batch_dim is None:
                raise self.error(
                    f"{list(tensor.dims)} to {list(shape)}: dimension {tensor.batch_dim}, the batch, would be split up"
                )
            target[batch_dim] = 0 if batch_dim == tensor.batch_dim and dims[batch_dim] == tensor.dims[batch_dim] else -1
        return self.emit("reshape", [tensor], {"shape": target}, dims=dims, batch_dim=batch_dim, dtype=tensor.dtype)


def activation_name(activation: ActiMode, layer: Layer) -> str:
    """The daemon's name of an activation."""
    if activation not in _ACTIVATIONS:
        raise layer.error(f"activation {activation!r}; accepted: {', '.join(mode.name for mode in _ACTIVATIONS)}")
    return _ACTIVATIONS[activation]


def axis_of(layer: Layer, axis: int, rank: int) -> int:
    """`axis`, from the front. InvalidArgument if there is no such dimension."""
    if isinstance(axis, bool) or not isinstance(axis, int) or not -rank <= axis < rank:
        raise layer.error(f"axis {axis!r}: its input has {rank} dimensions")
    return axis % rank


class Builder:
    """The part of FFModel that adds layers."""

    def __init__(self, batch_size: int) -> None:
        self._graph = Graph("ffmodel")
        self._batch_size = check_count("batch_size", batch_size)
        self._layers: dict[int, Op] = {}
        self._inputs: list[Tensor] = []
        self._labels: dict[str, int] = {}
        self._compiled_graph: Graph | None = None

    def create_tensor(
        self, dims: Sequence[int], data_type: DataType, create_grad: bool = True, name: str | None = None
    ) -> Tensor:
        """An input: a tensor that each step is given. dims[0] is the batch size if a layer reads it."""
        sizes = [int(d) for d in dims]
        self._check_open()
        if not sizes or any(d < 1 for d in sizes):
            raise InvalidArgument(f"create_tensor: dims {list(dims)}; accepted are sizes above 0, the batch size first")
        label = self._unique(name or f"input_{len(self._inputs)}")
        value = self._graph.input(label, (None, *sizes[1:]), dtype_of(data_type, f"create_tensor of {label}"))
        tensor = Tensor(value, sizes, value.dtype or "float32")
        self._inputs.append(tensor)
        return tensor

    def create_constant(self, dims: Sequence[int], value: float, data_type: DataType) -> Tensor:
        """A tensor whose elements all are `value`, for layers that work element by element."""
        self._check_open()
        dtype = dtype_of(data_type, "create_constant")
        made = self._graph.constant(float(value) if dtype == "float32" else int(value), dtype=dtype)
        return Tensor(made, [int(d) for d in dims], dtype, None, uniform=True)

    def _check_open(self) -> None:
        if self._compiled_graph is not None:
            raise FailedPrecondition("the model is compiled; layers and tensors are added before compile()")

    def _unique(self, name: str) -> str:
        count = self._labels.get(name, 0)
        self._labels[name] = count + 1
        return name if count == 0 else self._unique(f"{name}_{count}")

    def _begin(
        self,
        op_type: OpType,
        kind: str,
        name: str | None,
        inputs: Sequence[Tensor],
        shared_op: Op | Tensor | None = None,
        *,
        uniform: bool = False,
    ) -> Layer:
        self._check_open()
        label = self._unique(name or f"{kind}_{len(self._layers)}")
        layer = Layer(self._graph, Op(op_type, name or label, label, inputs), None, self._batch_size)
        for tensor in inputs:
            if not isinstance(tensor, Tensor):
                raise layer.error(f"an input is a {type(tensor).__name__}; layers take tensors of this model")
            if tensor.value.graph is not self._graph:
                raise layer.error(f"tensor {tensor.name} belongs to another model")
            if tensor.dims[:1] != (self._batch_size,) and any(tensor is known for known in self._inputs):
                raise layer.error(
                    f"dims[0] of its input {tensor!r} is not the batch size of FFConfig, {self._batch_size} (-b)"
                )
            if tensor.uniform and not uniform:
                raise layer.error("it does not take create_constant's tensors; layers of single elements do")
        if shared_op is not None:
            shared = shared_op.owner_op if isinstance(shared_op, Tensor) else shared_op
            if not isinstance(shared, Op) or shared.op_type != op_type:
                raise layer.error(
                    f"shared_op must be a layer of this kind, such as get_last_layer(); got {shared_op!r}"
                )
            return Layer(self._graph, layer.op, shared, self._batch_size)
        return layer

    def _finish(self, layer: Layer, outputs: Sequence[Tensor]) -> None:
        layer.op.outputs = list(outputs)
        for tensor in outputs:
            tensor.owner_op = layer.op
        self._layers[len(self._layers)] = layer.op

    def _end(self, layer: Layer, output: Tensor) -> Tensor:
        self._finish(layer, [output])
        return output
