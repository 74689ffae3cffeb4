"""Layers and tensors of an FFModel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from espalier import graph
from espalier.core.enums import DataType, OpType, ParameterSyncType, data_type_of
from espalier.errors import FailedPrecondition, InvalidArgument

if TYPE_CHECKING:
    from espalier.core.model import FFModel

Array = np.ndarray[Any, Any]
_T = TypeVar("_T", bound="Tensor")


class Tensor:
    """A tensor of a model. `dims` are its sizes, outermost first, the batch among them.

    batch_dim: the dimension that follows the batch, of a size that is a multiple of it; None: none does.
    """

    def __init__(
        self,
        value: graph.Tensor,
        dims: Sequence[int],
        dtype: str,
        batch_dim: int | None = 0,
        uniform: bool = False,
    ):
        self.value = value
        self.dims = tuple(int(d) for d in dims)
        self.dtype = dtype
        self.batch_dim = batch_dim
        self.uniform = uniform  # all elements are equal: `value` has one of them, and the dimensions 1, 1, ...
        self.owner_op: Op | None = None
        self.logits: Tensor | None = None  # what a softmax over the last dimension was applied to
        self._fed: Feed | None = None  # elements for the next forward
        self._mapped: Array | None = None

    @property
    def num_dims(self) -> int:
        """Number of dimensions."""
        return len(self.dims)

    @property
    def shape(self) -> tuple[int, ...]:
        """As dims."""
        return self.dims

    @property
    def data_type(self) -> DataType:
        """The element type."""
        return data_type_of(self.dtype)

    @property
    def name(self) -> str:
        """The name of the value in the graph."""
        return self.value.name

    def set_tensor(self, ffmodel: FFModel, np_array: Any) -> None:
        """Elements of an input, or of the labels, for the following forward passes."""
        if ffmodel._column(self) is None:
            raise InvalidArgument(f"tensor {self.name} is computed; set_tensor is for inputs and labels")
        array = np.asarray(np_array)
        if array.size != math.prod(self.dims) or array.shape[0] != self.dims[0]:
            raise InvalidArgument(f"tensor {self.name} has dims {list(self.dims)}, the array {list(array.shape)}")
        self._fed = Feed(array if array.flags.writeable else array.copy(), None)

    def attach_numpy_array(self, ffmodel: FFModel, ffconfig: Any, np_array: Any) -> None:
        """As set_tensor; the elements are copied when a forward pass reads them."""
        self.set_tensor(ffmodel, np_array)

    def detach_numpy_array(self, ffconfig: Any) -> None:
        """Nothing: arrays are not shared."""

    def inline_map(self, ffmodel: FFModel, ffconfig: Any) -> None:
        """Lets get_array return an array that stands for the tensor until inline_unmap."""
        self._mapped = self.get_tensor(ffmodel)

    def inline_unmap(self, ffmodel: FFModel, ffconfig: Any) -> None:
        """Ends inline_map: what was written into the array of a parameter is set."""
        self._mapped = None

    def is_mapped(self) -> bool:
        """Whether inline_map was called last."""
        return self._mapped is not None

    def get_tensor(self, ffmodel: FFModel) -> Array:
        """The elements that the last forward pass computed; of an input or the labels: that it was given, or zeros.

        Zeros, and what set_tensor was given, are an array that the program may write into before forward.
        FailedPrecondition for a computed tensor that ffmodel.keep() was not told of, except the model's result.
        """
        return ffmodel._elements(self)

    def get_array(self, ffmodel: FFModel, ffconfig: Any = None) -> Array:
        """The array of inline_map; without it as get_tensor, and not to be written into, unless set_tensor gave it."""
        if self._mapped is not None:
            return self._mapped
        array = self.get_tensor(ffmodel)
        if self._fed is None:
            array.flags.writeable = False
        return array

    def get_flat_array(self, ffmodel: FFModel, ffconfig: Any = None) -> Array:
        """As get_tensor, in one dimension."""
        return self.get_tensor(ffmodel).reshape(-1)

    def get_output_tensor(self, ffmodel: FFModel, data_type: DataType | None = None) -> Array:
        """As get_tensor."""
        return self.get_tensor(ffmodel)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.data_type.name} {list(self.dims)}>"


class Feed:
    """Elements of an input for the next forward pass, and the loader and row that they come from, if any."""

    def __init__(self, array: Array, source: tuple[Any, int] | None):
        self.array, self.source = array, source


class Parameter(Tensor):
    """A trained tensor, or a running statistic, of a layer."""

    def get_weights(self, ffmodel: FFModel) -> Array:
        """The elements."""
        return ffmodel._session().get(self.name)

    def set_weights(self, ffmodel: FFModel, np_array: Any) -> None:
        """Sets the elements. InvalidArgument unless the array has the parameter's shape."""
        array = np.asarray(np_array)
        if array.shape != self.dims:
            raise InvalidArgument(f"parameter {self.name} has dims {list(self.dims)}, the array {list(array.shape)}")
        ffmodel._session().set_parameters({self.name: array})

    def set_tensor(self, ffmodel: FFModel, np_array: Any) -> None:
        """As set_weights."""
        self.set_weights(ffmodel, np_array)

    def get_tensor(self, ffmodel: FFModel) -> Array:
        """As get_weights."""
        return self.get_weights(ffmodel)

    def inline_map(self, ffmodel: FFModel, ffconfig: Any) -> None:
        """As for all tensors."""
        super().inline_map(ffmodel, ffconfig)
        self._before = None if self._mapped is None else self._mapped.copy()

    def inline_unmap(self, ffmodel: FFModel, ffconfig: Any) -> None:
        """Ends inline_map and sets the elements that have changed."""
        mapped, self._mapped = self._mapped, None
        if mapped is not None and (self._before is None or not np.array_equal(mapped, self._before)):
            self.set_weights(ffmodel, mapped)

    _before: Array | None = None

    def get_gradients(self, ffmodel: FFModel, comm_type: ParameterSyncType = ParameterSyncType.NCCL) -> Array:
        """The gradients, summed over backward passes since zero_gradients, of all workers."""
        return ffmodel._session().get(self.name, "gradient")


class Op:
    """A layer of a model: its inputs, outputs and parameters."""

    def __init__(self, op_type: OpType, name: str, label: str, inputs: Sequence[Tensor]):
        self.op_type = op_type
        self.name = name  # as given, or made up
        self.label = label  # unique: the names of the layer's nodes and parameters begin with it
        self.inputs = list(inputs)
        self.outputs: list[Tensor] = []
        self.parameters: list[Parameter] = []

    def get_number_inputs(self) -> int:
        """Number of inputs."""
        return len(self.inputs)

    def get_input_by_id(self, id: int) -> Tensor:
        """An input."""
        return self._of("input", self.inputs, id)

    def get_input_tensor(self) -> Tensor:
        """The first input."""
        return self.get_input_by_id(0)

    def get_number_outputs(self) -> int:
        """Number of outputs."""
        return len(self.outputs)

    def get_output_by_id(self, id: int) -> Tensor:
        """An output."""
        return self._of("output", self.outputs, id)

    def get_output_tensor(self) -> Tensor:
        """The first output."""
        return self.get_output_by_id(0)

    def get_number_parameters(self) -> int:
        """Number of parameters."""
        return len(self.parameters)

    def get_parameter_by_id(self, id: int) -> Parameter:
        """A parameter."""
        return self._of("parameter", self.parameters, id)

    def get_weight_tensor(self) -> Parameter:
        """The kernel. FailedPrecondition if the layer has no parameters."""
        if not self.parameters:
            raise FailedPrecondition(f"layer {self.name} has no parameters")
        return self.parameters[0]

    def get_bias_tensor(self) -> Parameter:
        """The bias. FailedPrecondition if the layer has none."""
        for parameter in self.parameters:
            if parameter.name.endswith(".bias"):
                return parameter
        raise FailedPrecondition(f"layer {self.name} has no bias")

    def _of(self, what: str, items: Sequence[_T], id: int) -> _T:
        if not 0 <= id < len(items):
            raise InvalidArgument(f"layer {self.name} has {len(items)} {what}s, not one of number {id}")
        return items[id]

    def init(self, model: FFModel) -> None:
        """Nothing: init_layers makes the parameters of all layers."""

    def __repr__(self) -> str:
        dims = ", ".join(str(list(tensor.dims)) for tensor in self.outputs)
        return f"<{self.op_type.name} {self.name}: {dims}>"


__all__ = ["Feed", "Op", "Parameter", "Tensor"]
