from espalier.v1 import graph_pb2 as _graph_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class InferReply(_message.Message):
    __slots__ = ["types"]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    types: _containers.RepeatedCompositeFieldContainer[_graph_pb2.TensorType]
    def __init__(self, types: _Optional[_Iterable[_Union[_graph_pb2.TensorType, _Mapping]]] = ...) -> None: ...

class InferRequest(_message.Message):
    __slots__ = ["batch_size", "graph"]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    batch_size: int
    graph: _graph_pb2.Graph
    def __init__(self, graph: _Optional[_Union[_graph_pb2.Graph, _Mapping]] = ..., batch_size: _Optional[int] = ...) -> None: ...

class ListOperatorsReply(_message.Message):
    __slots__ = ["operators"]
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    operators: _containers.RepeatedCompositeFieldContainer[Operator]
    def __init__(self, operators: _Optional[_Iterable[_Union[Operator, _Mapping]]] = ...) -> None: ...

class ListOperatorsRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class Operator(_message.Message):
    __slots__ = ["attributes", "differentiable", "doc", "inputs", "is_loss", "is_metric", "larger_is_better", "name", "optimizers", "outputs", "random", "types"]
    class AttributeSpec(_message.Message):
        __slots__ = ["default_value", "doc", "kind", "name", "required"]
        class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
            __slots__ = []
        BOOL: Operator.AttributeSpec.Kind
        DEFAULT_VALUE_FIELD_NUMBER: _ClassVar[int]
        DOC_FIELD_NUMBER: _ClassVar[int]
        FLOAT: Operator.AttributeSpec.Kind
        FLOATS: Operator.AttributeSpec.Kind
        INT: Operator.AttributeSpec.Kind
        INTS: Operator.AttributeSpec.Kind
        KIND_FIELD_NUMBER: _ClassVar[int]
        KIND_UNSPECIFIED: Operator.AttributeSpec.Kind
        NAME_FIELD_NUMBER: _ClassVar[int]
        REQUIRED_FIELD_NUMBER: _ClassVar[int]
        STRING: Operator.AttributeSpec.Kind
        default_value: _graph_pb2.Attribute
        doc: str
        kind: Operator.AttributeSpec.Kind
        name: str
        required: bool
        def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[Operator.AttributeSpec.Kind, str]] = ..., default_value: _Optional[_Union[_graph_pb2.Attribute, _Mapping]] = ..., required: bool = ..., doc: _Optional[str] = ...) -> None: ...
    class Input(_message.Message):
        __slots__ = ["differentiable", "name", "optional", "variadic"]
        DIFFERENTIABLE_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        OPTIONAL_FIELD_NUMBER: _ClassVar[int]
        VARIADIC_FIELD_NUMBER: _ClassVar[int]
        differentiable: bool
        name: str
        optional: bool
        variadic: bool
        def __init__(self, name: _Optional[str] = ..., optional: bool = ..., variadic: bool = ..., differentiable: bool = ...) -> None: ...
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    DIFFERENTIABLE_FIELD_NUMBER: _ClassVar[int]
    DOC_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    IS_LOSS_FIELD_NUMBER: _ClassVar[int]
    IS_METRIC_FIELD_NUMBER: _ClassVar[int]
    LARGER_IS_BETTER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZERS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    RANDOM_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    attributes: _containers.RepeatedCompositeFieldContainer[Operator.AttributeSpec]
    differentiable: bool
    doc: str
    inputs: _containers.RepeatedCompositeFieldContainer[Operator.Input]
    is_loss: bool
    is_metric: bool
    larger_is_better: bool
    name: str
    optimizers: _containers.RepeatedScalarFieldContainer[str]
    outputs: int
    random: bool
    types: _containers.RepeatedScalarFieldContainer[_graph_pb2.DataType]
    def __init__(self, name: _Optional[str] = ..., doc: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[Operator.Input, _Mapping]]] = ..., outputs: _Optional[int] = ..., attributes: _Optional[_Iterable[_Union[Operator.AttributeSpec, _Mapping]]] = ..., types: _Optional[_Iterable[_Union[_graph_pb2.DataType, str]]] = ..., is_loss: bool = ..., is_metric: bool = ..., differentiable: bool = ..., random: bool = ..., larger_is_better: bool = ..., optimizers: _Optional[_Iterable[str]] = ...) -> None: ...
