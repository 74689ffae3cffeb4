from espalier.v1 import cluster_pb2 as _cluster_pb2
from espalier.v1 import graph_pb2 as _graph_pb2
from espalier.v1 import program_pb2 as _program_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Alternative(_message.Message):
    __slots__ = ["name", "prediction", "refused"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    name: str
    prediction: Prediction
    refused: str
    def __init__(self, name: _Optional[str] = ..., prediction: _Optional[_Union[Prediction, _Mapping]] = ..., refused: _Optional[str] = ...) -> None: ...

class DiffReply(_message.Message):
    __slots__ = ["equal", "json", "text"]
    EQUAL_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    equal: bool
    json: str
    text: str
    def __init__(self, equal: bool = ..., text: _Optional[str] = ..., json: _Optional[str] = ...) -> None: ...

class DiffRequest(_message.Message):
    __slots__ = ["a", "b", "name_a", "name_b"]
    A_FIELD_NUMBER: _ClassVar[int]
    B_FIELD_NUMBER: _ClassVar[int]
    NAME_A_FIELD_NUMBER: _ClassVar[int]
    NAME_B_FIELD_NUMBER: _ClassVar[int]
    a: Plan
    b: Plan
    name_a: str
    name_b: str
    def __init__(self, a: _Optional[_Union[Plan, _Mapping]] = ..., b: _Optional[_Union[Plan, _Mapping]] = ..., name_a: _Optional[str] = ..., name_b: _Optional[str] = ...) -> None: ...

class ExplainReply(_message.Message):
    __slots__ = ["computation_graph", "measured_step_seconds", "notes", "page", "plan", "task_graph", "text"]
    COMPUTATION_GRAPH_FIELD_NUMBER: _ClassVar[int]
    MEASURED_STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    TASK_GRAPH_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    computation_graph: str
    measured_step_seconds: float
    notes: _containers.RepeatedScalarFieldContainer[str]
    page: str
    plan: Plan
    task_graph: str
    text: str
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ..., text: _Optional[str] = ..., measured_step_seconds: _Optional[float] = ..., page: _Optional[str] = ..., task_graph: _Optional[str] = ..., computation_graph: _Optional[str] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ["computation_graph", "costs_in_graph", "job_id", "page", "plan", "task_graph"]
    COMPUTATION_GRAPH_FIELD_NUMBER: _ClassVar[int]
    COSTS_IN_GRAPH_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    TASK_GRAPH_FIELD_NUMBER: _ClassVar[int]
    computation_graph: bool
    costs_in_graph: bool
    job_id: str
    page: bool
    plan: PlanRequest
    task_graph: bool
    def __init__(self, job_id: _Optional[str] = ..., plan: _Optional[_Union[PlanRequest, _Mapping]] = ..., page: bool = ..., task_graph: bool = ..., computation_graph: bool = ..., costs_in_graph: bool = ...) -> None: ...

class ExportReply(_message.Message):
    __slots__ = ["json"]
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class ExportRequest(_message.Message):
    __slots__ = ["job_id"]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class ImportReply(_message.Message):
    __slots__ = ["plan"]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: Plan
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ...) -> None: ...

class ImportRequest(_message.Message):
    __slots__ = ["batch_size", "graph", "json", "optimizer", "precision"]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    batch_size: int
    graph: _graph_pb2.Graph
    json: str
    optimizer: _program_pb2.Optimizer
    precision: _graph_pb2.DataType
    def __init__(self, json: _Optional[str] = ..., graph: _Optional[_Union[_graph_pb2.Graph, _Mapping]] = ..., batch_size: _Optional[int] = ..., precision: _Optional[_Union[_graph_pb2.DataType, str]] = ..., optimizer: _Optional[_Union[_program_pb2.Optimizer, _Mapping]] = ...) -> None: ...

class MachinesReply(_message.Message):
    __slots__ = ["presets", "text"]
    class Preset(_message.Message):
        __slots__ = ["max_devices", "name", "per_host", "summary"]
        MAX_DEVICES_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        PER_HOST_FIELD_NUMBER: _ClassVar[int]
        SUMMARY_FIELD_NUMBER: _ClassVar[int]
        max_devices: int
        name: str
        per_host: int
        summary: str
        def __init__(self, name: _Optional[str] = ..., summary: _Optional[str] = ..., per_host: _Optional[int] = ..., max_devices: _Optional[int] = ...) -> None: ...
    PRESETS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    presets: _containers.RepeatedCompositeFieldContainer[MachinesReply.Preset]
    text: str
    def __init__(self, presets: _Optional[_Iterable[_Union[MachinesReply.Preset, _Mapping]]] = ..., text: _Optional[str] = ...) -> None: ...

class MachinesRequest(_message.Message):
    __slots__ = ["devices", "name"]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    devices: int
    name: str
    def __init__(self, name: _Optional[str] = ..., devices: _Optional[int] = ...) -> None: ...

class MemoryOptions(_message.Message):
    __slots__ = ["disable_recompute", "disable_swap", "host_bandwidth", "host_bytes", "max_batch_tiles", "swapin_ahead", "swapin_groupby", "swapout_threshold", "sync_mode"]
    DISABLE_RECOMPUTE_FIELD_NUMBER: _ClassVar[int]
    DISABLE_SWAP_FIELD_NUMBER: _ClassVar[int]
    HOST_BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_TILES_FIELD_NUMBER: _ClassVar[int]
    SWAPIN_AHEAD_FIELD_NUMBER: _ClassVar[int]
    SWAPIN_GROUPBY_FIELD_NUMBER: _ClassVar[int]
    SWAPOUT_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    SYNC_MODE_FIELD_NUMBER: _ClassVar[int]
    disable_recompute: bool
    disable_swap: bool
    host_bandwidth: float
    host_bytes: int
    max_batch_tiles: int
    swapin_ahead: int
    swapin_groupby: int
    swapout_threshold: int
    sync_mode: int
    def __init__(self, disable_swap: bool = ..., disable_recompute: bool = ..., host_bytes: _Optional[int] = ..., host_bandwidth: _Optional[float] = ..., swapout_threshold: _Optional[int] = ..., swapin_ahead: _Optional[int] = ..., swapin_groupby: _Optional[int] = ..., sync_mode: _Optional[int] = ..., max_batch_tiles: _Optional[int] = ...) -> None: ...

class MemoryPlan(_message.Message):
    __slots__ = ["added_seconds", "bytes_without", "copied_bytes", "evictions", "host_bytes"]
    class Eviction(_message.Message):
        __slots__ = ["after", "before", "bytes", "recompute", "tensor"]
        AFTER_FIELD_NUMBER: _ClassVar[int]
        BEFORE_FIELD_NUMBER: _ClassVar[int]
        BYTES_FIELD_NUMBER: _ClassVar[int]
        RECOMPUTE_FIELD_NUMBER: _ClassVar[int]
        TENSOR_FIELD_NUMBER: _ClassVar[int]
        after: str
        before: str
        bytes: int
        recompute: bool
        tensor: str
        def __init__(self, tensor: _Optional[str] = ..., after: _Optional[str] = ..., before: _Optional[str] = ..., bytes: _Optional[int] = ..., recompute: bool = ...) -> None: ...
    ADDED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTES_WITHOUT_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    HOST_BYTES_FIELD_NUMBER: _ClassVar[int]
    added_seconds: float
    bytes_without: int
    copied_bytes: int
    evictions: _containers.RepeatedCompositeFieldContainer[MemoryPlan.Eviction]
    host_bytes: int
    def __init__(self, bytes_without: _Optional[int] = ..., host_bytes: _Optional[int] = ..., copied_bytes: _Optional[int] = ..., added_seconds: _Optional[float] = ..., evictions: _Optional[_Iterable[_Union[MemoryPlan.Eviction, _Mapping]]] = ...) -> None: ...

class OperatorPlan(_message.Message):
    __slots__ = ["degrees", "devices", "node", "op", "pinned", "predicted_seconds"]
    class DegreesEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    DEGREES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    OP_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_SECONDS_FIELD_NUMBER: _ClassVar[int]
    degrees: _containers.ScalarMap[str, int]
    devices: _containers.RepeatedScalarFieldContainer[int]
    node: str
    op: str
    pinned: bool
    predicted_seconds: float
    def __init__(self, node: _Optional[str] = ..., op: _Optional[str] = ..., degrees: _Optional[_Mapping[str, int]] = ..., devices: _Optional[_Iterable[int]] = ..., predicted_seconds: _Optional[float] = ..., pinned: bool = ...) -> None: ...

class ParallelOperator(_message.Message):
    __slots__ = ["bytes", "consumer", "degree", "dimension", "kind", "tensor"]
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    ALL_TO_ALL: ParallelOperator.Kind
    BYTES_FIELD_NUMBER: _ClassVar[int]
    COMBINE: ParallelOperator.Kind
    CONSUMER_FIELD_NUMBER: _ClassVar[int]
    DEGREE_FIELD_NUMBER: _ClassVar[int]
    DIMENSION_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_HALO: ParallelOperator.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    KIND_UNSPECIFIED: ParallelOperator.Kind
    MOVE: ParallelOperator.Kind
    PARTITION: ParallelOperator.Kind
    REDUCE: ParallelOperator.Kind
    REPLICATE: ParallelOperator.Kind
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    bytes: float
    consumer: str
    degree: int
    dimension: int
    kind: ParallelOperator.Kind
    tensor: str
    def __init__(self, kind: _Optional[_Union[ParallelOperator.Kind, str]] = ..., tensor: _Optional[str] = ..., consumer: _Optional[str] = ..., dimension: _Optional[int] = ..., degree: _Optional[int] = ..., bytes: _Optional[float] = ...) -> None: ...

class ParetoPoint(_message.Message):
    __slots__ = ["chosen", "name", "peak_bytes", "step_seconds"]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    chosen: bool
    name: str
    peak_bytes: int
    step_seconds: float
    def __init__(self, step_seconds: _Optional[float] = ..., peak_bytes: _Optional[int] = ..., name: _Optional[str] = ..., chosen: bool = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ["alternatives", "batch_size", "batch_tiles", "devices", "format_version", "graph_fingerprint", "machine", "memory", "memory_plans", "micro_batches", "operators", "parallel_operators", "pareto_front", "prediction", "rewrites", "search", "substitutions", "zero_stage"]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    BATCH_TILES_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_PLANS_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCHES_FIELD_NUMBER: _ClassVar[int]
    OPERATORS_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_OPERATORS_FIELD_NUMBER: _ClassVar[int]
    PARETO_FRONT_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    REWRITES_FIELD_NUMBER: _ClassVar[int]
    SEARCH_FIELD_NUMBER: _ClassVar[int]
    SUBSTITUTIONS_FIELD_NUMBER: _ClassVar[int]
    ZERO_STAGE_FIELD_NUMBER: _ClassVar[int]
    alternatives: _containers.RepeatedCompositeFieldContainer[Alternative]
    batch_size: int
    batch_tiles: int
    devices: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.Device]
    format_version: int
    graph_fingerprint: str
    machine: str
    memory: MemoryOptions
    memory_plans: _containers.RepeatedCompositeFieldContainer[MemoryPlan]
    micro_batches: int
    operators: _containers.RepeatedCompositeFieldContainer[OperatorPlan]
    parallel_operators: _containers.RepeatedCompositeFieldContainer[ParallelOperator]
    pareto_front: _containers.RepeatedCompositeFieldContainer[ParetoPoint]
    prediction: Prediction
    rewrites: _containers.RepeatedCompositeFieldContainer[Rewrite]
    search: SearchSummary
    substitutions: str
    zero_stage: int
    def __init__(self, format_version: _Optional[int] = ..., graph_fingerprint: _Optional[str] = ..., batch_size: _Optional[int] = ..., devices: _Optional[_Iterable[_Union[_cluster_pb2.Device, _Mapping]]] = ..., operators: _Optional[_Iterable[_Union[OperatorPlan, _Mapping]]] = ..., parallel_operators: _Optional[_Iterable[_Union[ParallelOperator, _Mapping]]] = ..., prediction: _Optional[_Union[Prediction, _Mapping]] = ..., alternatives: _Optional[_Iterable[_Union[Alternative, _Mapping]]] = ..., search: _Optional[_Union[SearchSummary, _Mapping]] = ..., memory: _Optional[_Union[MemoryOptions, _Mapping]] = ..., memory_plans: _Optional[_Iterable[_Union[MemoryPlan, _Mapping]]] = ..., machine: _Optional[str] = ..., zero_stage: _Optional[int] = ..., micro_batches: _Optional[int] = ..., batch_tiles: _Optional[int] = ..., rewrites: _Optional[_Iterable[_Union[Rewrite, _Mapping]]] = ..., substitutions: _Optional[str] = ..., pareto_front: _Optional[_Iterable[_Union[ParetoPoint, _Mapping]]] = ...) -> None: ...

class PlanReply(_message.Message):
    __slots__ = ["notes", "plan"]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    notes: _containers.RepeatedScalarFieldContainer[str]
    plan: Plan
    def __init__(self, plan: _Optional[_Union[Plan, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ["batch_size", "devices", "graph", "link", "loss", "machine_devices", "machine_file", "machine_preset", "metrics", "objective", "onnx_artifact", "optimizer", "precision", "profile", "search"]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    MACHINE_DEVICES_FIELD_NUMBER: _ClassVar[int]
    MACHINE_FILE_FIELD_NUMBER: _ClassVar[int]
    MACHINE_PRESET_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    ONNX_ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    SEARCH_FIELD_NUMBER: _ClassVar[int]
    batch_size: int
    devices: _containers.RepeatedCompositeFieldContainer[_cluster_pb2.Device]
    graph: _graph_pb2.Graph
    link: _cluster_pb2.Link
    loss: str
    machine_devices: int
    machine_file: str
    machine_preset: str
    metrics: _containers.RepeatedScalarFieldContainer[str]
    objective: _graph_pb2.Objective
    onnx_artifact: str
    optimizer: _program_pb2.Optimizer
    precision: _graph_pb2.DataType
    profile: str
    search: SearchOptions
    def __init__(self, graph: _Optional[_Union[_graph_pb2.Graph, _Mapping]] = ..., batch_size: _Optional[int] = ..., search: _Optional[_Union[SearchOptions, _Mapping]] = ..., devices: _Optional[_Iterable[_Union[_cluster_pb2.Device, _Mapping]]] = ..., link: _Optional[_Union[_cluster_pb2.Link, _Mapping]] = ..., machine_file: _Optional[str] = ..., machine_preset: _Optional[str] = ..., machine_devices: _Optional[int] = ..., onnx_artifact: _Optional[str] = ..., loss: _Optional[str] = ..., metrics: _Optional[_Iterable[str]] = ..., objective: _Optional[_Union[_graph_pb2.Objective, _Mapping]] = ..., precision: _Optional[_Union[_graph_pb2.DataType, str]] = ..., optimizer: _Optional[_Union[_program_pb2.Optimizer, _Mapping]] = ..., profile: _Optional[str] = ...) -> None: ...

class Prediction(_message.Message):
    __slots__ = ["bytes_moved", "communication_seconds", "compute_seconds", "peak_bytes", "step_seconds"]
    BYTES_MOVED_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    bytes_moved: float
    communication_seconds: float
    compute_seconds: float
    peak_bytes: _containers.RepeatedScalarFieldContainer[int]
    step_seconds: float
    def __init__(self, step_seconds: _Optional[float] = ..., compute_seconds: _Optional[float] = ..., communication_seconds: _Optional[float] = ..., bytes_moved: _Optional[float] = ..., peak_bytes: _Optional[_Iterable[int]] = ...) -> None: ...

class ProfileReply(_message.Message):
    __slots__ = ["json"]
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class ProfileRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class Rewrite(_message.Message):
    __slots__ = ["at", "others", "rule"]
    AT_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    at: str
    others: _containers.RepeatedScalarFieldContainer[str]
    rule: str
    def __init__(self, rule: _Optional[str] = ..., at: _Optional[str] = ..., others: _Optional[_Iterable[str]] = ...) -> None: ...

class SearchOptions(_message.Message):
    __slots__ = ["alpha", "budget", "disable_attribute_parallel", "disable_parameter_parallel", "imported", "max_devices", "memory", "memory_search", "micro_batches", "only_full_simulation", "pipeline_stages", "rewrite_alpha", "rewrite_budget", "seed", "strategy", "substitutions", "zero_stage"]
    class Strategy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    DATA_PARALLEL: SearchOptions.Strategy
    DISABLE_ATTRIBUTE_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    DISABLE_PARAMETER_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    IMPORTED: SearchOptions.Strategy
    IMPORTED_FIELD_NUMBER: _ClassVar[int]
    MAX_DEVICES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_SEARCH_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCHES_FIELD_NUMBER: _ClassVar[int]
    ONLY_FULL_SIMULATION_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_STAGES_FIELD_NUMBER: _ClassVar[int]
    REWRITE_ALPHA_FIELD_NUMBER: _ClassVar[int]
    REWRITE_BUDGET_FIELD_NUMBER: _ClassVar[int]
    SEARCH: SearchOptions.Strategy
    SEED_FIELD_NUMBER: _ClassVar[int]
    SINGLE_DEVICE: SearchOptions.Strategy
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    SUBSTITUTIONS_FIELD_NUMBER: _ClassVar[int]
    ZERO_STAGE_FIELD_NUMBER: _ClassVar[int]
    alpha: float
    budget: int
    disable_attribute_parallel: bool
    disable_parameter_parallel: bool
    imported: Plan
    max_devices: int
    memory: MemoryOptions
    memory_search: bool
    micro_batches: int
    only_full_simulation: bool
    pipeline_stages: int
    rewrite_alpha: float
    rewrite_budget: int
    seed: int
    strategy: SearchOptions.Strategy
    substitutions: str
    zero_stage: int
    def __init__(self, strategy: _Optional[_Union[SearchOptions.Strategy, str]] = ..., budget: _Optional[int] = ..., alpha: _Optional[float] = ..., seed: _Optional[int] = ..., disable_parameter_parallel: bool = ..., disable_attribute_parallel: bool = ..., only_full_simulation: bool = ..., imported: _Optional[_Union[Plan, _Mapping]] = ..., max_devices: _Optional[int] = ..., memory: _Optional[_Union[MemoryOptions, _Mapping]] = ..., zero_stage: _Optional[int] = ..., micro_batches: _Optional[int] = ..., pipeline_stages: _Optional[int] = ..., rewrite_budget: _Optional[int] = ..., rewrite_alpha: _Optional[float] = ..., substitutions: _Optional[str] = ..., memory_search: bool = ...) -> None: ...

class SearchSummary(_message.Message):
    __slots__ = ["accepted", "alpha", "budget", "graphs", "proposals", "seconds", "seed"]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    ALPHA_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    alpha: float
    budget: int
    graphs: int
    proposals: int
    seconds: float
    seed: int
    def __init__(self, proposals: _Optional[int] = ..., accepted: _Optional[int] = ..., seconds: _Optional[float] = ..., seed: _Optional[int] = ..., alpha: _Optional[float] = ..., budget: _Optional[int] = ..., graphs: _Optional[int] = ...) -> None: ...
