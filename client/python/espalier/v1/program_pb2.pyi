from espalier.v1 import graph_pb2 as _graph_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

BUFFER_KIND_UNSPECIFIED: BufferKind
DESCRIPTOR: _descriptor.FileDescriptor
HOST_INPUT: BufferKind
LITERAL: BufferKind
OPTIMIZER_STATE: BufferKind
OUTPUT_ROWS: DynamicDimension
PARAMETER_SHARD: BufferKind
PERSISTENT: BufferKind
ROWS: DynamicDimension
SCHEDULE: BufferKind
SCRATCH: BufferKind
STATIC: DynamicDimension

class Buffer(_message.Message):
    __slots__ = ["dynamic", "initializer", "kind", "literal", "name", "offset_bytes", "partial_sum", "saved_elsewhere", "spec"]
    DYNAMIC_FIELD_NUMBER: _ClassVar[int]
    INITIALIZER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LITERAL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_BYTES_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_SUM_FIELD_NUMBER: _ClassVar[int]
    SAVED_ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    dynamic: DynamicDimension
    initializer: _graph_pb2.Initializer
    kind: BufferKind
    literal: bytes
    name: str
    offset_bytes: int
    partial_sum: bool
    saved_elsewhere: bool
    spec: TensorSpec
    def __init__(self, name: _Optional[str] = ..., spec: _Optional[_Union[TensorSpec, _Mapping]] = ..., kind: _Optional[_Union[BufferKind, str]] = ..., offset_bytes: _Optional[int] = ..., initializer: _Optional[_Union[_graph_pb2.Initializer, _Mapping]] = ..., literal: _Optional[bytes] = ..., dynamic: _Optional[_Union[DynamicDimension, str]] = ..., saved_elsewhere: bool = ..., partial_sum: bool = ...) -> None: ...

class CollectiveInstruction(_message.Message):
    __slots__ = ["group", "input", "kind", "output", "tag"]
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    ALL_GATHER: CollectiveInstruction.Kind
    ALL_REDUCE: CollectiveInstruction.Kind
    ALL_TO_ALL: CollectiveInstruction.Kind
    BROADCAST: CollectiveInstruction.Kind
    GROUP_FIELD_NUMBER: _ClassVar[int]
    INPUT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    KIND_UNSPECIFIED: CollectiveInstruction.Kind
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    REDUCE_SCATTER: CollectiveInstruction.Kind
    TAG_FIELD_NUMBER: _ClassVar[int]
    group: int
    input: int
    kind: CollectiveInstruction.Kind
    output: int
    tag: int
    def __init__(self, kind: _Optional[_Union[CollectiveInstruction.Kind, str]] = ..., group: _Optional[int] = ..., input: _Optional[int] = ..., output: _Optional[int] = ..., tag: _Optional[int] = ...) -> None: ...

class ComputeInstruction(_message.Message):
    __slots__ = ["attributes", "inputs", "node_key", "op", "outputs"]
    class AttributesEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _graph_pb2.Attribute
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_graph_pb2.Attribute, _Mapping]] = ...) -> None: ...
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    NODE_KEY_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    attributes: _containers.MessageMap[str, _graph_pb2.Attribute]
    inputs: _containers.RepeatedScalarFieldContainer[int]
    node_key: int
    op: str
    outputs: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, op: _Optional[str] = ..., attributes: _Optional[_Mapping[str, _graph_pb2.Attribute]] = ..., inputs: _Optional[_Iterable[int]] = ..., outputs: _Optional[_Iterable[int]] = ..., node_key: _Optional[int] = ...) -> None: ...

class CopyInstruction(_message.Message):
    __slots__ = ["accumulate", "destination", "destination_start", "size", "source", "source_start"]
    ACCUMULATE_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_START_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_START_FIELD_NUMBER: _ClassVar[int]
    accumulate: bool
    destination: int
    destination_start: _containers.RepeatedScalarFieldContainer[int]
    size: _containers.RepeatedScalarFieldContainer[int]
    source: int
    source_start: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, source: _Optional[int] = ..., destination: _Optional[int] = ..., source_start: _Optional[_Iterable[int]] = ..., destination_start: _Optional[_Iterable[int]] = ..., size: _Optional[_Iterable[int]] = ..., accumulate: bool = ...) -> None: ...

class FillInstruction(_message.Message):
    __slots__ = ["buffer", "value"]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    value: float
    def __init__(self, buffer: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ["ranks"]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    ranks: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ranks: _Optional[_Iterable[int]] = ...) -> None: ...

class Instruction(_message.Message):
    __slots__ = ["collective", "compute", "copy", "fill", "load_batch", "node", "receive", "report", "send", "swap_in", "swap_out", "update"]
    COLLECTIVE_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    COPY_FIELD_NUMBER: _ClassVar[int]
    FILL_FIELD_NUMBER: _ClassVar[int]
    LOAD_BATCH_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    RECEIVE_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    SEND_FIELD_NUMBER: _ClassVar[int]
    SWAP_IN_FIELD_NUMBER: _ClassVar[int]
    SWAP_OUT_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    collective: CollectiveInstruction
    compute: ComputeInstruction
    copy: CopyInstruction
    fill: FillInstruction
    load_batch: LoadBatchInstruction
    node: str
    receive: ReceiveInstruction
    report: ReportInstruction
    send: SendInstruction
    swap_in: SwapInstruction
    swap_out: SwapInstruction
    update: UpdateInstruction
    def __init__(self, compute: _Optional[_Union[ComputeInstruction, _Mapping]] = ..., copy: _Optional[_Union[CopyInstruction, _Mapping]] = ..., fill: _Optional[_Union[FillInstruction, _Mapping]] = ..., send: _Optional[_Union[SendInstruction, _Mapping]] = ..., receive: _Optional[_Union[ReceiveInstruction, _Mapping]] = ..., collective: _Optional[_Union[CollectiveInstruction, _Mapping]] = ..., swap_out: _Optional[_Union[SwapInstruction, _Mapping]] = ..., swap_in: _Optional[_Union[SwapInstruction, _Mapping]] = ..., load_batch: _Optional[_Union[LoadBatchInstruction, _Mapping]] = ..., report: _Optional[_Union[ReportInstruction, _Mapping]] = ..., update: _Optional[_Union[UpdateInstruction, _Mapping]] = ..., node: _Optional[str] = ...) -> None: ...

class LearningRateSchedule(_message.Message):
    __slots__ = ["floor", "gamma", "initial", "kind", "peak", "power", "rise", "step_size", "total_steps", "values", "warmup_from", "warmup_steps"]
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    CONSTANT: LearningRateSchedule.Kind
    COSINE: LearningRateSchedule.Kind
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    GAMMA_FIELD_NUMBER: _ClassVar[int]
    INITIAL_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    LINEAR: LearningRateSchedule.Kind
    ONE_CYCLE: LearningRateSchedule.Kind
    PEAK_FIELD_NUMBER: _ClassVar[int]
    POLYNOMIAL: LearningRateSchedule.Kind
    POWER_FIELD_NUMBER: _ClassVar[int]
    RISE_FIELD_NUMBER: _ClassVar[int]
    STEP: LearningRateSchedule.Kind
    STEP_SIZE_FIELD_NUMBER: _ClassVar[int]
    TABLE: LearningRateSchedule.Kind
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    WARMUP_FROM_FIELD_NUMBER: _ClassVar[int]
    WARMUP_STEPS_FIELD_NUMBER: _ClassVar[int]
    floor: float
    gamma: float
    initial: float
    kind: LearningRateSchedule.Kind
    peak: float
    power: float
    rise: float
    step_size: int
    total_steps: int
    values: _containers.RepeatedScalarFieldContainer[float]
    warmup_from: float
    warmup_steps: int
    def __init__(self, kind: _Optional[_Union[LearningRateSchedule.Kind, str]] = ..., peak: _Optional[float] = ..., warmup_steps: _Optional[int] = ..., total_steps: _Optional[int] = ..., floor: _Optional[float] = ..., step_size: _Optional[int] = ..., gamma: _Optional[float] = ..., power: _Optional[float] = ..., initial: _Optional[float] = ..., rise: _Optional[float] = ..., warmup_from: _Optional[float] = ..., values: _Optional[_Iterable[float]] = ...) -> None: ...

class LoadBatchInstruction(_message.Message):
    __slots__ = ["buffer", "column"]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    COLUMN_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    column: str
    def __init__(self, buffer: _Optional[int] = ..., column: _Optional[str] = ...) -> None: ...

class LossScale(_message.Message):
    __slots__ = ["growth_interval", "initial"]
    GROWTH_INTERVAL_FIELD_NUMBER: _ClassVar[int]
    INITIAL_FIELD_NUMBER: _ClassVar[int]
    growth_interval: int
    initial: float
    def __init__(self, initial: _Optional[float] = ..., growth_interval: _Optional[int] = ...) -> None: ...

class Optimizer(_message.Message):
    __slots__ = ["attributes", "clip_norm", "groups", "learning_rate", "loss_scale", "name", "regularizers", "report_penalties"]
    class AttributesEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _graph_pb2.Attribute
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_graph_pb2.Attribute, _Mapping]] = ...) -> None: ...
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    CLIP_NORM_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    LOSS_SCALE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REGULARIZERS_FIELD_NUMBER: _ClassVar[int]
    REPORT_PENALTIES_FIELD_NUMBER: _ClassVar[int]
    attributes: _containers.MessageMap[str, _graph_pb2.Attribute]
    clip_norm: float
    groups: _containers.RepeatedCompositeFieldContainer[ParameterGroup]
    learning_rate: LearningRateSchedule
    loss_scale: LossScale
    name: str
    regularizers: _containers.RepeatedCompositeFieldContainer[Regularizer]
    report_penalties: bool
    def __init__(self, learning_rate: _Optional[_Union[LearningRateSchedule, _Mapping]] = ..., clip_norm: _Optional[float] = ..., name: _Optional[str] = ..., attributes: _Optional[_Mapping[str, _graph_pb2.Attribute]] = ..., regularizers: _Optional[_Iterable[_Union[Regularizer, _Mapping]]] = ..., report_penalties: bool = ..., loss_scale: _Optional[_Union[LossScale, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[ParameterGroup, _Mapping]]] = ...) -> None: ...

class ParameterGroup(_message.Message):
    __slots__ = ["learning_rate_scale", "parameters", "weight_decay"]
    LEARNING_RATE_SCALE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    learning_rate_scale: float
    parameters: _containers.RepeatedScalarFieldContainer[str]
    weight_decay: float
    def __init__(self, parameters: _Optional[_Iterable[str]] = ..., learning_rate_scale: _Optional[float] = ..., weight_decay: _Optional[float] = ...) -> None: ...

class Program(_message.Message):
    __slots__ = ["arena_bytes", "batch_invariant", "buffers", "format_version", "graph_fingerprint", "groups", "host_bytes", "instructions", "name", "optimizer", "outputs", "peak_bytes", "rank", "seed", "sources", "world_size"]
    class OutputsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class SourcesEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ARENA_BYTES_FIELD_NUMBER: _ClassVar[int]
    BATCH_INVARIANT_FIELD_NUMBER: _ClassVar[int]
    BUFFERS_FIELD_NUMBER: _ClassVar[int]
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTIONS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    arena_bytes: int
    batch_invariant: bool
    buffers: _containers.RepeatedCompositeFieldContainer[Buffer]
    format_version: int
    graph_fingerprint: str
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    host_bytes: int
    instructions: _containers.RepeatedCompositeFieldContainer[Instruction]
    name: str
    optimizer: Optimizer
    outputs: _containers.ScalarMap[str, int]
    peak_bytes: int
    rank: int
    seed: int
    sources: _containers.ScalarMap[str, str]
    world_size: int
    def __init__(self, format_version: _Optional[int] = ..., name: _Optional[str] = ..., rank: _Optional[int] = ..., world_size: _Optional[int] = ..., buffers: _Optional[_Iterable[_Union[Buffer, _Mapping]]] = ..., instructions: _Optional[_Iterable[_Union[Instruction, _Mapping]]] = ..., groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ..., arena_bytes: _Optional[int] = ..., peak_bytes: _Optional[int] = ..., host_bytes: _Optional[int] = ..., optimizer: _Optional[_Union[Optimizer, _Mapping]] = ..., seed: _Optional[int] = ..., batch_invariant: bool = ..., graph_fingerprint: _Optional[str] = ..., outputs: _Optional[_Mapping[str, int]] = ..., sources: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ReceiveInstruction(_message.Message):
    __slots__ = ["buffer", "peer", "tag"]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    peer: int
    tag: int
    def __init__(self, buffer: _Optional[int] = ..., peer: _Optional[int] = ..., tag: _Optional[int] = ...) -> None: ...

class Regularizer(_message.Message):
    __slots__ = ["l1", "l2", "parameter"]
    L1_FIELD_NUMBER: _ClassVar[int]
    L2_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    l1: float
    l2: float
    parameter: str
    def __init__(self, parameter: _Optional[str] = ..., l1: _Optional[float] = ..., l2: _Optional[float] = ...) -> None: ...

class ReportInstruction(_message.Message):
    __slots__ = ["buffer", "name"]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    name: str
    def __init__(self, buffer: _Optional[int] = ..., name: _Optional[str] = ...) -> None: ...

class SendInstruction(_message.Message):
    __slots__ = ["buffer", "peer", "tag"]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    peer: int
    tag: int
    def __init__(self, buffer: _Optional[int] = ..., peer: _Optional[int] = ..., tag: _Optional[int] = ...) -> None: ...

class SwapInstruction(_message.Message):
    __slots__ = ["buffer", "host_slot", "wait"]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    HOST_SLOT_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    host_slot: int
    wait: bool
    def __init__(self, buffer: _Optional[int] = ..., host_slot: _Optional[int] = ..., wait: bool = ...) -> None: ...

class TensorSpec(_message.Message):
    __slots__ = ["dims", "dtype", "offset"]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    dims: _containers.RepeatedScalarFieldContainer[int]
    dtype: _graph_pb2.DataType
    offset: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dtype: _Optional[_Union[_graph_pb2.DataType, str]] = ..., dims: _Optional[_Iterable[int]] = ..., offset: _Optional[_Iterable[int]] = ..., **kwargs) -> None: ...

class UpdateInstruction(_message.Message):
    __slots__ = ["attributes", "gradient", "hyper", "op", "parameter", "result", "scale", "state", "sums"]
    class AttributesEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _graph_pb2.Attribute
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_graph_pb2.Attribute, _Mapping]] = ...) -> None: ...
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    HYPER_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SUMS_FIELD_NUMBER: _ClassVar[int]
    attributes: _containers.MessageMap[str, _graph_pb2.Attribute]
    gradient: int
    hyper: int
    op: str
    parameter: int
    result: int
    scale: int
    state: _containers.RepeatedScalarFieldContainer[int]
    sums: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, parameter: _Optional[int] = ..., gradient: _Optional[int] = ..., state: _Optional[_Iterable[int]] = ..., scale: _Optional[int] = ..., op: _Optional[str] = ..., attributes: _Optional[_Mapping[str, _graph_pb2.Attribute]] = ..., sums: _Optional[_Iterable[int]] = ..., result: _Optional[int] = ..., hyper: _Optional[int] = ...) -> None: ...

class BufferKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class DynamicDimension(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
