from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

BF16: DataType
BOOL: DataType
COMPUTED: ValueKind
CONSTANT: ValueKind
DATA_TYPE_UNSPECIFIED: DataType
DESCRIPTOR: _descriptor.FileDescriptor
F16: DataType
F32: DataType
I32: DataType
I64: DataType
I8: DataType
INPUT: ValueKind
PARAMETER: ValueKind
STATE: ValueKind
U8: DataType
VALUE_KIND_UNSPECIFIED: ValueKind

class Attribute(_message.Message):
    __slots__ = ["b", "f", "floats", "i", "ints", "s"]
    B_FIELD_NUMBER: _ClassVar[int]
    FLOATS_FIELD_NUMBER: _ClassVar[int]
    F_FIELD_NUMBER: _ClassVar[int]
    INTS_FIELD_NUMBER: _ClassVar[int]
    I_FIELD_NUMBER: _ClassVar[int]
    S_FIELD_NUMBER: _ClassVar[int]
    b: bool
    f: float
    floats: FloatList
    i: int
    ints: IntList
    s: str
    def __init__(self, i: _Optional[int] = ..., f: _Optional[float] = ..., b: bool = ..., s: _Optional[str] = ..., ints: _Optional[_Union[IntList, _Mapping]] = ..., floats: _Optional[_Union[FloatList, _Mapping]] = ...) -> None: ...

class FloatList(_message.Message):
    __slots__ = ["values"]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class Graph(_message.Message):
    __slots__ = ["format_version", "metadata", "name", "nodes", "outputs", "values"]
    class MetadataEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    metadata: _containers.ScalarMap[str, str]
    name: str
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    outputs: _containers.RepeatedCompositeFieldContainer[GraphOutput]
    values: _containers.RepeatedCompositeFieldContainer[Value]
    def __init__(self, format_version: _Optional[int] = ..., name: _Optional[str] = ..., values: _Optional[_Iterable[_Union[Value, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[GraphOutput, _Mapping]]] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class GraphOutput(_message.Message):
    __slots__ = ["name", "value"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: int
    def __init__(self, name: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...

class Head(_message.Message):
    __slots__ = ["attributes", "class_weights", "op", "output", "weight"]
    class AttributesEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Attribute
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Attribute, _Mapping]] = ...) -> None: ...
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    CLASS_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    attributes: _containers.MessageMap[str, Attribute]
    class_weights: _containers.RepeatedScalarFieldContainer[float]
    op: str
    output: str
    weight: float
    def __init__(self, op: _Optional[str] = ..., output: _Optional[str] = ..., weight: _Optional[float] = ..., attributes: _Optional[_Mapping[str, Attribute]] = ..., class_weights: _Optional[_Iterable[float]] = ...) -> None: ...

class Initializer(_message.Message):
    __slots__ = ["kind", "mean", "scale"]
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    CONSTANT: Initializer.Kind
    GLOROT_NORMAL: Initializer.Kind
    GLOROT_UNIFORM: Initializer.Kind
    HE_NORMAL: Initializer.Kind
    HE_UNIFORM: Initializer.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    MEAN_FIELD_NUMBER: _ClassVar[int]
    NORMAL: Initializer.Kind
    ONES: Initializer.Kind
    ORTHOGONAL: Initializer.Kind
    SCALE_FIELD_NUMBER: _ClassVar[int]
    STORED: Initializer.Kind
    TRUNCATED_NORMAL: Initializer.Kind
    UNIFORM: Initializer.Kind
    ZEROS: Initializer.Kind
    kind: Initializer.Kind
    mean: float
    scale: float
    def __init__(self, kind: _Optional[_Union[Initializer.Kind, str]] = ..., scale: _Optional[float] = ..., mean: _Optional[float] = ...) -> None: ...

class IntList(_message.Message):
    __slots__ = ["values"]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, values: _Optional[_Iterable[int]] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ["attributes", "inputs", "name", "op", "outputs", "source"]
    class AttributesEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Attribute
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Attribute, _Mapping]] = ...) -> None: ...
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    attributes: _containers.MessageMap[str, Attribute]
    inputs: _containers.RepeatedScalarFieldContainer[int]
    name: str
    op: str
    outputs: _containers.RepeatedScalarFieldContainer[int]
    source: str
    def __init__(self, name: _Optional[str] = ..., op: _Optional[str] = ..., attributes: _Optional[_Mapping[str, Attribute]] = ..., inputs: _Optional[_Iterable[int]] = ..., outputs: _Optional[_Iterable[int]] = ..., source: _Optional[str] = ...) -> None: ...

class Objective(_message.Message):
    __slots__ = ["losses", "metrics"]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    losses: _containers.RepeatedCompositeFieldContainer[Head]
    metrics: _containers.RepeatedCompositeFieldContainer[Head]
    def __init__(self, losses: _Optional[_Iterable[_Union[Head, _Mapping]]] = ..., metrics: _Optional[_Iterable[_Union[Head, _Mapping]]] = ...) -> None: ...

class TensorType(_message.Message):
    __slots__ = ["dims", "dtype"]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    dims: _containers.RepeatedScalarFieldContainer[int]
    dtype: DataType
    def __init__(self, dtype: _Optional[_Union[DataType, str]] = ..., dims: _Optional[_Iterable[int]] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ["data", "frozen", "initializer", "kind", "name", "type"]
    DATA_FIELD_NUMBER: _ClassVar[int]
    FROZEN_FIELD_NUMBER: _ClassVar[int]
    INITIALIZER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    frozen: bool
    initializer: Initializer
    kind: ValueKind
    name: str
    type: TensorType
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[TensorType, _Mapping]] = ..., kind: _Optional[_Union[ValueKind, str]] = ..., frozen: bool = ..., initializer: _Optional[_Union[Initializer, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class ValueKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
