from espalier.v1 import graph_pb2 as _graph_pb2
from espalier.v1 import training_pb2 as _training_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Histogram(_message.Message):
    __slots__ = ["counts", "high", "low", "outside"]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    LOW_FIELD_NUMBER: _ClassVar[int]
    OUTSIDE_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    high: float
    low: float
    outside: int
    def __init__(self, low: _Optional[float] = ..., high: _Optional[float] = ..., counts: _Optional[_Iterable[int]] = ..., outside: _Optional[int] = ...) -> None: ...

class IndexedValues(_message.Message):
    __slots__ = ["indices", "values"]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    indices: _containers.RepeatedScalarFieldContainer[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, indices: _Optional[_Iterable[int]] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class ProbePart(_message.Message):
    __slots__ = ["boxes", "dims", "dtype", "elements", "histogram", "moments"]
    class Box(_message.Message):
        __slots__ = ["offset", "values"]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        VALUES_FIELD_NUMBER: _ClassVar[int]
        offset: _containers.RepeatedScalarFieldContainer[int]
        values: _training_pb2.TensorValue
        def __init__(self, offset: _Optional[_Iterable[int]] = ..., values: _Optional[_Union[_training_pb2.TensorValue, _Mapping]] = ...) -> None: ...
    class Moments(_message.Message):
        __slots__ = ["count", "max", "mean", "min", "not_a_number", "squared_deviations", "squares"]
        COUNT_FIELD_NUMBER: _ClassVar[int]
        MAX_FIELD_NUMBER: _ClassVar[int]
        MEAN_FIELD_NUMBER: _ClassVar[int]
        MIN_FIELD_NUMBER: _ClassVar[int]
        NOT_A_NUMBER_FIELD_NUMBER: _ClassVar[int]
        SQUARED_DEVIATIONS_FIELD_NUMBER: _ClassVar[int]
        SQUARES_FIELD_NUMBER: _ClassVar[int]
        count: int
        max: float
        mean: float
        min: float
        not_a_number: int
        squared_deviations: float
        squares: float
        def __init__(self, count: _Optional[int] = ..., mean: _Optional[float] = ..., squared_deviations: _Optional[float] = ..., squares: _Optional[float] = ..., min: _Optional[float] = ..., max: _Optional[float] = ..., not_a_number: _Optional[int] = ...) -> None: ...
    BOXES_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    MOMENTS_FIELD_NUMBER: _ClassVar[int]
    boxes: _containers.RepeatedCompositeFieldContainer[ProbePart.Box]
    dims: _containers.RepeatedScalarFieldContainer[int]
    dtype: _graph_pb2.DataType
    elements: IndexedValues
    histogram: Histogram
    moments: ProbePart.Moments
    def __init__(self, moments: _Optional[_Union[ProbePart.Moments, _Mapping]] = ..., histogram: _Optional[_Union[Histogram, _Mapping]] = ..., elements: _Optional[_Union[IndexedValues, _Mapping]] = ..., boxes: _Optional[_Iterable[_Union[ProbePart.Box, _Mapping]]] = ..., dtype: _Optional[_Union[_graph_pb2.DataType, str]] = ..., dims: _Optional[_Iterable[int]] = ...) -> None: ...

class ProbePoint(_message.Message):
    __slots__ = ["buffer", "instructions"]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    instructions: int
    def __init__(self, buffer: _Optional[int] = ..., instructions: _Optional[int] = ...) -> None: ...

class ProbeValue(_message.Message):
    __slots__ = ["elements", "histogram", "scalar", "tensor"]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    HISTOGRAM_FIELD_NUMBER: _ClassVar[int]
    SCALAR_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    elements: IndexedValues
    histogram: Histogram
    scalar: float
    tensor: _training_pb2.TensorValue
    def __init__(self, scalar: _Optional[float] = ..., histogram: _Optional[_Union[Histogram, _Mapping]] = ..., elements: _Optional[_Union[IndexedValues, _Mapping]] = ..., tensor: _Optional[_Union[_training_pb2.TensorValue, _Mapping]] = ...) -> None: ...

class RankProbe(_message.Message):
    __slots__ = ["adds_up", "loss_scale", "minus", "points", "probe", "reduction"]
    ADDS_UP_FIELD_NUMBER: _ClassVar[int]
    LOSS_SCALE_FIELD_NUMBER: _ClassVar[int]
    MINUS_FIELD_NUMBER: _ClassVar[int]
    POINTS_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    REDUCTION_FIELD_NUMBER: _ClassVar[int]
    adds_up: bool
    loss_scale: int
    minus: _containers.RepeatedCompositeFieldContainer[ProbePoint]
    points: _containers.RepeatedCompositeFieldContainer[ProbePoint]
    probe: int
    reduction: str
    def __init__(self, probe: _Optional[int] = ..., reduction: _Optional[str] = ..., points: _Optional[_Iterable[_Union[ProbePoint, _Mapping]]] = ..., minus: _Optional[_Iterable[_Union[ProbePoint, _Mapping]]] = ..., loss_scale: _Optional[int] = ..., adds_up: bool = ...) -> None: ...

class RankProbeResult(_message.Message):
    __slots__ = ["part", "probe"]
    PART_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    part: ProbePart
    probe: int
    def __init__(self, probe: _Optional[int] = ..., part: _Optional[_Union[ProbePart, _Mapping]] = ...) -> None: ...
