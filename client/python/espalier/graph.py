"""Computation graphs: what every front end of the package makes and the coordinator trains.

    graph = Graph("mlp")
    x = graph.input("x", (None, 64))
    w = graph.parameter("w", (10, 64), initializer=glorot_uniform())
    logits = graph.op("linear", [x, w])
    labels = graph.input("labels", (None,), "int64")
    graph.output("loss", graph.op("sparse_categorical_crossentropy", [logits, labels]))

Operators are those of docs/reference/operators.md. A graph is checked, and its shapes are inferred, by the coordinator.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from espalier.errors import InvalidArgument, NotFound
from espalier.v1 import graph_pb2 as pb

Shape = Sequence[int | None]  # outermost first; None in dimension 0 of an input: the batch size
AttributeValue = bool | int | float | str | Sequence[int] | Sequence[float]

_DTYPES: dict[str, pb.DataType] = {
    "float32": pb.F32,
    "bfloat16": pb.BF16,
    "float16": pb.F16,
    "int32": pb.I32,
    "int64": pb.I64,
    "bool": pb.BOOL,
    "int8": pb.I8,
    "uint8": pb.U8,
}
_NAMES = {number: name for name, number in _DTYPES.items()}
# Names of types in attributes (operator "cast"): docs/reference/operators.md.
ATTRIBUTE_DTYPES = {
    "float32": "f32",
    "bfloat16": "bf16",
    "float16": "f16",
    "int32": "i32",
    "int64": "i64",
    "bool": "bool",
    "int8": "i8",
    "uint8": "u8",
}
_SOURCE = 500  # characters of Node.source, which may have 1024 bytes; of longer ones the end is kept
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


def dtype_name(dtype: Any) -> str:
    """Name of an element type given as a name, a NumPy, torch or JAX type: "float32", "int64".

    InvalidArgument for types that no tensor can have (float64, complex numbers, strings).
    """
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype))
    name = name.rsplit(".", 1)[-1]
    if name in ATTRIBUTE_DTYPES.values():
        name = next(full for full, short in ATTRIBUTE_DTYPES.items() if short == name)
    if name not in _DTYPES:
        raise InvalidArgument(f"element type {name}: accepted are {', '.join(_DTYPES)}")
    return name


def proto_dtype(dtype: Any) -> pb.DataType:
    """The number of an element type in messages. InvalidArgument as dtype_name."""
    return _DTYPES[dtype_name(dtype)]


def source_line(skip: Iterable[str] = ()) -> str:
    """`file.py:line` of the innermost caller outside of this package and of the folders in `skip`."""
    folders = (_PACKAGE, *(os.path.abspath(folder) + os.sep for folder in skip))
    frame = sys._getframe(1)
    while frame is not None:
        path = os.path.abspath(frame.f_code.co_filename)
        if not path.startswith(folders):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""


class Tensor:
    """A value of a graph.

    `shape` is what the front end knows, or None: the coordinator infers shapes. In it None stands for the batch size or
    for a dimension that is not known.
    """

    __slots__ = ("dtype", "graph", "index", "shape")

    def __init__(self, graph: Graph, index: int, dtype: str | None, shape: tuple[int | None, ...] | None):
        self.graph = graph
        self.index = index
        self.dtype = dtype
        self.shape = shape

    @property
    def name(self) -> str:
        """Name of the value, unique in the graph."""
        return str(self.graph.proto.values[self.index].name)

    def __repr__(self) -> str:
        return f"<Tensor {self.name} {self.dtype or ''} {self.shape if self.shape is not None else ''}>"

    def _binary(self, op: str, other: Tensor | float, swap: bool = False) -> Tensor:
        right = other if isinstance(other, Tensor) else self.graph.constant(other, dtype=self.dtype or "float32")
        operands = [right, self] if swap else [self, right]
        return self.graph.op(op, operands, dtype=self.dtype)

    def __add__(self, other: Tensor | float) -> Tensor:
        return self._binary("add", other)

    def __radd__(self, other: float) -> Tensor:
        return self._binary("add", other, swap=True)

    def __sub__(self, other: Tensor | float) -> Tensor:
        return self._binary("subtract", other)

    def __rsub__(self, other: float) -> Tensor:
        return self._binary("subtract", other, swap=True)

    def __mul__(self, other: Tensor | float) -> Tensor:
        return self._binary("multiply", other)

    def __rmul__(self, other: float) -> Tensor:
        return self._binary("multiply", other, swap=True)

    def __truediv__(self, other: Tensor | float) -> Tensor:
        return self._binary("divide", other)

    def __rtruediv__(self, other: float) -> Tensor:
        return self._binary("divide", other, swap=True)

    def __neg__(self) -> Tensor:
        return self.graph.op("neg", [self], dtype=self.dtype, shape=self.shape)

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.graph.op("matmul", [self, other], dtype=self.dtype)


def zeros() -> pb.Initializer:
    """All zero."""
    return pb.Initializer(kind=pb.Initializer.ZEROS)


def ones() -> pb.Initializer:
    """All one."""
    return pb.Initializer(kind=pb.Initializer.ONES)


def constant_value(value: float) -> pb.Initializer:
    """All `value`."""
    return pb.Initializer(kind=pb.Initializer.CONSTANT, mean=value)


def normal(stddev: float = 1.0, mean: float = 0.0) -> pb.Initializer:
    """Normal numbers."""
    return pb.Initializer(kind=pb.Initializer.NORMAL, scale=stddev, mean=mean)


def truncated_normal(stddev: float = 1.0, mean: float = 0.0) -> pb.Initializer:
    """Normal numbers, drawn again beyond two standard deviations."""
    return pb.Initializer(kind=pb.Initializer.TRUNCATED_NORMAL, scale=stddev, mean=mean)


def uniform(low: float, high: float) -> pb.Initializer:
    """Uniform numbers between `low` and `high`."""
    return pb.Initializer(kind=pb.Initializer.UNIFORM, scale=(high - low) / 2, mean=(high + low) / 2)


def glorot_uniform() -> pb.Initializer:
    """Uniform numbers of half width sqrt(6 / (fan in + fan out))."""
    return pb.Initializer(kind=pb.Initializer.GLOROT_UNIFORM)


def glorot_normal() -> pb.Initializer:
    """Normal numbers of standard deviation sqrt(2 / (fan in + fan out))."""
    return pb.Initializer(kind=pb.Initializer.GLOROT_NORMAL)


def he_uniform() -> pb.Initializer:
    """Uniform numbers of half width sqrt(6 / fan in)."""
    return pb.Initializer(kind=pb.Initializer.HE_UNIFORM)


def he_normal() -> pb.Initializer:
    """Normal numbers of standard deviation sqrt(2 / fan in)."""
    return pb.Initializer(kind=pb.Initializer.HE_NORMAL)


def orthogonal(gain: float = 1.0) -> pb.Initializer:
    """Orthonormal rows or columns, times `gain`."""
    return pb.Initializer(kind=pb.Initializer.ORTHOGONAL, scale=gain)


def _attribute(value: AttributeValue) -> pb.Attribute:
    if isinstance(value, (bool, np.bool_)):
        return pb.Attribute(b=bool(value))
    if isinstance(value, (int, np.integer)):
        return pb.Attribute(i=int(value))
    if isinstance(value, (float, np.floating)):
        return pb.Attribute(f=float(value))
    if isinstance(value, str):
        return pb.Attribute(s=value)
    items = list(value)
    if all(isinstance(item, (int, np.integer)) and not isinstance(item, bool) for item in items):
        return pb.Attribute(ints=pb.IntList(values=[int(item) for item in items]))
    return pb.Attribute(floats=pb.FloatList(values=[float(item) for item in items]))


def _elements(array: npt.ArrayLike, dtype: Any = None) -> np.ndarray[Any, Any]:
    """`array`, dense and little-endian, of a type that tensors can have."""
    found = np.asarray(array)
    if dtype is None:
        # What Python and NumPy write without saying a type.
        dtype = {"float64": "float32"}.get(found.dtype.name, found.dtype.name)
    name = dtype_name(dtype)
    if name == "bfloat16":
        import ml_dtypes  # NumPy has no bfloat16

        return np.asarray(found.astype(ml_dtypes.bfloat16), order="C")
    # Not ascontiguousarray, which makes arrays of one dimension out of single numbers.
    return np.asarray(found.astype(np.dtype(name).newbyteorder("<")), order="C")


class Graph:
    """A graph under construction. `proto` is the message that the coordinator takes.

    Not thread-safe. Names that are taken get a number: "dense", "dense_1".
    """

    def __init__(self, name: str = "graph"):
        self.proto = pb.Graph(format_version=1, name=name)
        self.sources: dict[str, str] = {}  # node name -> "file.py:line" of the user's program
        self._names: dict[str, int] = {}
        self._constants: dict[tuple[bytes, tuple[int, ...], str], Tensor] = {}

    def _unique(self, name: str) -> str:
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        if count == 0:
            return name
        return self._unique(f"{name}_{count}")

    def _value(self, name: str, kind: int, dtype: str | None, dims: Shape | None) -> Tensor:
        value = self.proto.values.add(name=self._unique(name), kind=kind)
        if dtype is not None and kind != pb.COMPUTED:
            value.type.dtype = _DTYPES[dtype]
            value.type.dims.extend(-1 if d is None else int(d) for d in dims or ())
        shape = None if dims is None else tuple(None if d is None else int(d) for d in dims)
        return Tensor(self, len(self.proto.values) - 1, dtype, shape)

    def input(self, name: str, shape: Shape, dtype: Any = "float32") -> Tensor:
        """A tensor that is fed at every step; None in dimension 0 is the batch size."""
        if any(d is None for d in list(shape)[1:]):
            raise InvalidArgument(f"input {name}: only dimension 0 may be None, the batch size; got {tuple(shape)}")
        if name in self._names:
            raise InvalidArgument(f"two values of the graph would be named {name!r}")
        return self._value(name, pb.INPUT, dtype_name(dtype), shape)

    def parameter(
        self,
        name: str,
        shape: Sequence[int] | None = None,
        dtype: Any = None,
        *,
        data: npt.ArrayLike | None = None,
        initializer: pb.Initializer | None = None,
        trainable: bool = True,
    ) -> Tensor:
        """A tensor that is kept between steps, saved, and trained if `trainable`.

        Its initial elements are `data`, or those of `initializer` (then `shape` is needed).
        """
        if data is not None:
            array = _elements(data, dtype)
            if shape is not None and tuple(shape) != array.shape:
                raise InvalidArgument(f"parameter {name}: shape {tuple(shape)} but data of shape {array.shape}")
            tensor = self._value(name, pb.PARAMETER, array.dtype.name, array.shape)
            self.proto.values[tensor.index].data = array.tobytes()
        else:
            if shape is None:
                raise InvalidArgument(f"parameter {name}: give its shape or its data")
            tensor = self._value(name, pb.PARAMETER, dtype_name(dtype or "float32"), shape)
            self.proto.values[tensor.index].initializer.CopyFrom(initializer or zeros())
        self.proto.values[tensor.index].frozen = not trainable
        return tensor

    def constant(self, array: npt.ArrayLike, name: str = "constant", dtype: Any = None) -> Tensor:
        """A tensor of given elements. Equal constants are one value."""
        elements = _elements(array, dtype)
        key = (elements.tobytes(), elements.shape, elements.dtype.name)
        if key not in self._constants:
            tensor = self._value(name, pb.CONSTANT, elements.dtype.name, elements.shape)
            self.proto.values[tensor.index].data = key[0]
            self._constants[key] = tensor
        return self._constants[key]

    @overload
    def op(
        self,
        op: str,
        inputs: Sequence[Tensor | None],
        attributes: Mapping[str, AttributeValue] | None = None,
        *,
        name: str | None = None,
        source: str | None = None,
        dtype: str | None = None,
        shape: Shape | None = None,
    ) -> Tensor: ...

    @overload
    def op(
        self,
        op: str,
        inputs: Sequence[Tensor | None],
        attributes: Mapping[str, AttributeValue] | None = None,
        *,
        outputs: int,
        name: str | None = None,
        source: str | None = None,
    ) -> tuple[Tensor, ...]: ...

    def op(
        self,
        op: str,
        inputs: Sequence[Tensor | None],
        attributes: Mapping[str, AttributeValue] | None = None,
        *,
        outputs: int | None = None,
        name: str | None = None,
        source: str | None = None,
        dtype: str | None = None,
        shape: Shape | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        """Applies an operator; None stands for an absent optional input.

        Returns its output, or with `outputs` a tuple of that many. `source` is the user's line, "file.py:12"; without
        it the innermost caller outside of the package is taken. `dtype` and `shape` are what the caller knows of the
        output.
        """
        for tensor in inputs:
            if tensor is not None and tensor.graph is not self:
                raise InvalidArgument(f"{op}: input {tensor.name} belongs to another graph")
        node = self.proto.nodes.add(name=self._unique(name or op), op=op)
        for key, value in (attributes or {}).items():
            node.attributes[key].CopyFrom(_attribute(value))
        node.inputs.extend(-1 if tensor is None else tensor.index for tensor in inputs)
        source = source if source is not None else source_line()
        self.sources[node.name] = source
        node.source = source if len(source) <= _SOURCE else f"...{source[3 - _SOURCE :]}"
        made = []
        for i in range(1 if outputs is None else outputs):
            suffix = f".{i}" if outputs is not None and outputs > 1 else ""
            made.append(self._value(f"{node.name}.y{suffix}", pb.COMPUTED, dtype, shape))
            node.outputs.append(made[-1].index)
        return made[0] if outputs is None else tuple(made)

    def output(self, name: str, tensor: Tensor) -> None:
        """Names an output.

        Training minimizes "loss" and reports the other scalars; what has a shape is a result of the trained model.
        """
        if any(output.name == name for output in self.proto.outputs):
            raise InvalidArgument(f"two outputs of the graph would be named {name!r}")
        self.proto.outputs.add(name=name, value=tensor.index)
        # The coordinator has no doubt then whether it should report them.
        self.proto.metadata["model_outputs"] = ",".join(output.name for output in self.proto.outputs)

    def copy(self) -> Graph:
        """A graph of its own with the same values, nodes and outputs."""
        other = Graph(self.proto.name)
        other.proto.CopyFrom(self.proto)
        other.sources, other._names = dict(self.sources), dict(self._names)
        # Constants are shared with nodes that the copy gets later.
        other._constants = {
            key: Tensor(other, tensor.index, tensor.dtype, tensor.shape) for key, tensor in self._constants.items()
        }
        return other

    def set_attributes(self, node: str, **attributes: AttributeValue) -> None:
        """Changes attributes of the node of this name, such as capacity_factor. NotFound if there is none."""
        for found in self.proto.nodes:
            if found.name == node:
                for key, value in attributes.items():
                    found.attributes[key].CopyFrom(_attribute(value))
                return
        raise NotFound(f"graph {self.proto.name} has no node {node!r}")

    def with_sources(self, message: str) -> str:
        """`message` of the coordinator, with the user's line after the first node of this graph that it names."""
        for node, source in self.sources.items():
            if source and f"'{node}'" in message and source not in message:
                return f"{message} ({node} was made at {source})"
        return message

    @property
    def parameters(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the parameters."""
        return {v.name: tuple(v.type.dims) for v in self.proto.values if v.kind == pb.PARAMETER}

    def __repr__(self) -> str:
        return f"<Graph {self.proto.name}: {len(self.proto.nodes)} nodes, {len(self.parameters)} parameters>"
