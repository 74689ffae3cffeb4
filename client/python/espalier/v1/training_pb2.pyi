from espalier.v1 import graph_pb2 as _graph_pb2
from espalier.v1 import plan_pb2 as _plan_pb2
from espalier.v1 import program_pb2 as _program_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

CANCELLED: JobState
DESCRIPTOR: _descriptor.FileDescriptor
FAILED: JobState
JOB_STATE_UNSPECIFIED: JobState
PLANNING: JobState
QUEUED: JobState
RECOVERING: JobState
RUNNING: JobState
SUCCEEDED: JobState

class CancelReply(_message.Message):
    __slots__ = ["job"]
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ["idempotency_key", "job_id"]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    idempotency_key: str
    job_id: str
    def __init__(self, job_id: _Optional[str] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class CheckpointReply(_message.Message):
    __slots__ = ["job"]
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ["job_id"]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class Dataset(_message.Message):
    __slots__ = ["columns", "format", "holdout_fraction", "sequence_length", "shuffle", "stream", "uri"]
    class Format(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    class ColumnsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    FORMAT_UNSPECIFIED: Dataset.Format
    HOLDOUT_FRACTION_FIELD_NUMBER: _ClassVar[int]
    NPZ: Dataset.Format
    SEQUENCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    SHUFFLE_FIELD_NUMBER: _ClassVar[int]
    STREAM: Dataset.Format
    STREAM_FIELD_NUMBER: _ClassVar[int]
    TEXT: Dataset.Format
    URI_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.ScalarMap[str, str]
    format: Dataset.Format
    holdout_fraction: float
    sequence_length: int
    shuffle: bool
    stream: ExampleStream
    uri: str
    def __init__(self, uri: _Optional[str] = ..., format: _Optional[_Union[Dataset.Format, str]] = ..., sequence_length: _Optional[int] = ..., columns: _Optional[_Mapping[str, str]] = ..., holdout_fraction: _Optional[float] = ..., shuffle: bool = ..., stream: _Optional[_Union[ExampleStream, _Mapping]] = ...) -> None: ...

class DeleteJobReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class DeleteJobRequest(_message.Message):
    __slots__ = ["idempotency_key", "job_id"]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    idempotency_key: str
    job_id: str
    def __init__(self, job_id: _Optional[str] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class DryRunReply(_message.Message):
    __slots__ = ["memory", "notes", "parameter_uses", "parameters", "plan", "problems", "step_seconds", "total_seconds", "total_steps", "trained", "unsupported"]
    class DeviceMemory(_message.Message):
        __slots__ = ["memory_bytes", "model", "needed_bytes", "rank"]
        MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
        MODEL_FIELD_NUMBER: _ClassVar[int]
        NEEDED_BYTES_FIELD_NUMBER: _ClassVar[int]
        RANK_FIELD_NUMBER: _ClassVar[int]
        memory_bytes: int
        model: str
        needed_bytes: int
        rank: int
        def __init__(self, rank: _Optional[int] = ..., model: _Optional[str] = ..., needed_bytes: _Optional[int] = ..., memory_bytes: _Optional[int] = ...) -> None: ...
    class Unsupported(_message.Message):
        __slots__ = ["first_node", "nodes", "op", "reason"]
        FIRST_NODE_FIELD_NUMBER: _ClassVar[int]
        NODES_FIELD_NUMBER: _ClassVar[int]
        OP_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        first_node: str
        nodes: int
        op: str
        reason: str
        def __init__(self, op: _Optional[str] = ..., nodes: _Optional[int] = ..., first_node: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_USES_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    UNSUPPORTED_FIELD_NUMBER: _ClassVar[int]
    memory: _containers.RepeatedCompositeFieldContainer[DryRunReply.DeviceMemory]
    notes: _containers.RepeatedScalarFieldContainer[str]
    parameter_uses: _containers.RepeatedCompositeFieldContainer[ParameterUse]
    parameters: int
    plan: _plan_pb2.Plan
    problems: _containers.RepeatedScalarFieldContainer[str]
    step_seconds: float
    total_seconds: float
    total_steps: int
    trained: TrainedParameters
    unsupported: _containers.RepeatedCompositeFieldContainer[DryRunReply.Unsupported]
    def __init__(self, problems: _Optional[_Iterable[str]] = ..., unsupported: _Optional[_Iterable[_Union[DryRunReply.Unsupported, _Mapping]]] = ..., plan: _Optional[_Union[_plan_pb2.Plan, _Mapping]] = ..., memory: _Optional[_Iterable[_Union[DryRunReply.DeviceMemory, _Mapping]]] = ..., total_steps: _Optional[int] = ..., step_seconds: _Optional[float] = ..., total_seconds: _Optional[float] = ..., parameters: _Optional[int] = ..., notes: _Optional[_Iterable[str]] = ..., trained: _Optional[_Union[TrainedParameters, _Mapping]] = ..., parameter_uses: _Optional[_Iterable[_Union[ParameterUse, _Mapping]]] = ...) -> None: ...

class DryRunRequest(_message.Message):
    __slots__ = ["spec"]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    spec: TrainingSpec
    def __init__(self, spec: _Optional[_Union[TrainingSpec, _Mapping]] = ...) -> None: ...

class EarlyStopping(_message.Message):
    __slots__ = ["baseline", "keep_best", "min_delta", "mode", "monitor", "patience"]
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    AUTO: EarlyStopping.Mode
    BASELINE_FIELD_NUMBER: _ClassVar[int]
    KEEP_BEST_FIELD_NUMBER: _ClassVar[int]
    MAX: EarlyStopping.Mode
    MIN: EarlyStopping.Mode
    MIN_DELTA_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MONITOR_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_FIELD_NUMBER: _ClassVar[int]
    baseline: float
    keep_best: bool
    min_delta: float
    mode: EarlyStopping.Mode
    monitor: str
    patience: int
    def __init__(self, monitor: _Optional[str] = ..., mode: _Optional[_Union[EarlyStopping.Mode, str]] = ..., patience: _Optional[int] = ..., min_delta: _Optional[float] = ..., baseline: _Optional[float] = ..., keep_best: bool = ...) -> None: ...

class ExampleStream(_message.Message):
    __slots__ = ["backlog", "columns", "ranges", "timeout_seconds"]
    class ColumnsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _graph_pb2.TensorType
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_graph_pb2.TensorType, _Mapping]] = ...) -> None: ...
    class RangesEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: IntegerRanges
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[IntegerRanges, _Mapping]] = ...) -> None: ...
    BACKLOG_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    backlog: int
    columns: _containers.MessageMap[str, _graph_pb2.TensorType]
    ranges: _containers.MessageMap[str, IntegerRanges]
    timeout_seconds: float
    def __init__(self, backlog: _Optional[int] = ..., timeout_seconds: _Optional[float] = ..., columns: _Optional[_Mapping[str, _graph_pb2.TensorType]] = ..., ranges: _Optional[_Mapping[str, IntegerRanges]] = ...) -> None: ...

class GetJobReply(_message.Message):
    __slots__ = ["job", "messages", "reports", "validations"]
    JOB_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    VALIDATIONS_FIELD_NUMBER: _ClassVar[int]
    job: Job
    messages: _containers.RepeatedCompositeFieldContainer[JobMessage]
    reports: _containers.RepeatedCompositeFieldContainer[StepReport]
    validations: _containers.RepeatedCompositeFieldContainer[StepReport]
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., reports: _Optional[_Iterable[_Union[StepReport, _Mapping]]] = ..., messages: _Optional[_Iterable[_Union[JobMessage, _Mapping]]] = ..., validations: _Optional[_Iterable[_Union[StepReport, _Mapping]]] = ...) -> None: ...

class GetJobRequest(_message.Message):
    __slots__ = ["job_id", "with_reports"]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WITH_REPORTS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    with_reports: bool
    def __init__(self, job_id: _Optional[str] = ..., with_reports: bool = ...) -> None: ...

class IntegerRanges(_message.Message):
    __slots__ = ["ranges"]
    class Range(_message.Message):
        __slots__ = ["high", "ignored", "low", "reader"]
        HIGH_FIELD_NUMBER: _ClassVar[int]
        IGNORED_FIELD_NUMBER: _ClassVar[int]
        LOW_FIELD_NUMBER: _ClassVar[int]
        READER_FIELD_NUMBER: _ClassVar[int]
        high: int
        ignored: int
        low: int
        reader: str
        def __init__(self, low: _Optional[int] = ..., high: _Optional[int] = ..., ignored: _Optional[int] = ..., reader: _Optional[str] = ...) -> None: ...
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[IntegerRanges.Range]
    def __init__(self, ranges: _Optional[_Iterable[_Union[IntegerRanges.Range, _Mapping]]] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ["attempts", "best_step", "best_validation", "checkpoint_step", "checkpoints_paused", "created_unix_ms", "device_seconds", "error", "evaluation", "evaluation_examples", "experiment", "finished_unix_ms", "id", "measured_peak_bytes", "median_step_seconds", "most_workers", "notes", "output_model", "owner", "parameters", "plan", "priority", "priority_among_owners", "queue_position", "recorded_bytes", "recorded_checkpoints", "running_seconds", "spec", "started_unix_ms", "state", "steps_done", "steps_pushed", "stopped_early", "time_limit_seconds", "tokens_per_step", "total_steps", "version"]
    class BestValidationEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class EvaluationEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    BEST_STEP_FIELD_NUMBER: _ClassVar[int]
    BEST_VALIDATION_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_PAUSED_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    MEASURED_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEDIAN_STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MOST_WORKERS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_MODEL_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_AMONG_OWNERS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    RECORDED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECORDED_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STARTED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    STEPS_PUSHED_FIELD_NUMBER: _ClassVar[int]
    STOPPED_EARLY_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    TOTAL_STEPS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    attempts: int
    best_step: int
    best_validation: _containers.ScalarMap[str, float]
    checkpoint_step: int
    checkpoints_paused: str
    created_unix_ms: int
    device_seconds: float
    error: str
    evaluation: _containers.ScalarMap[str, float]
    evaluation_examples: int
    experiment: str
    finished_unix_ms: int
    id: str
    measured_peak_bytes: _containers.RepeatedScalarFieldContainer[int]
    median_step_seconds: float
    most_workers: int
    notes: _containers.RepeatedScalarFieldContainer[str]
    output_model: str
    owner: str
    parameters: int
    plan: _plan_pb2.Plan
    priority: int
    priority_among_owners: int
    queue_position: int
    recorded_bytes: int
    recorded_checkpoints: int
    running_seconds: float
    spec: TrainingSpec
    started_unix_ms: int
    state: JobState
    steps_done: int
    steps_pushed: int
    stopped_early: bool
    time_limit_seconds: float
    tokens_per_step: float
    total_steps: int
    version: int
    def __init__(self, id: _Optional[str] = ..., spec: _Optional[_Union[TrainingSpec, _Mapping]] = ..., state: _Optional[_Union[JobState, str]] = ..., error: _Optional[str] = ..., steps_done: _Optional[int] = ..., total_steps: _Optional[int] = ..., checkpoint_step: _Optional[int] = ..., created_unix_ms: _Optional[int] = ..., started_unix_ms: _Optional[int] = ..., finished_unix_ms: _Optional[int] = ..., attempts: _Optional[int] = ..., plan: _Optional[_Union[_plan_pb2.Plan, _Mapping]] = ..., median_step_seconds: _Optional[float] = ..., evaluation: _Optional[_Mapping[str, float]] = ..., output_model: _Optional[str] = ..., tokens_per_step: _Optional[float] = ..., parameters: _Optional[int] = ..., measured_peak_bytes: _Optional[_Iterable[int]] = ..., checkpoints_paused: _Optional[str] = ..., evaluation_examples: _Optional[int] = ..., notes: _Optional[_Iterable[str]] = ..., owner: _Optional[str] = ..., most_workers: _Optional[int] = ..., best_step: _Optional[int] = ..., best_validation: _Optional[_Mapping[str, float]] = ..., stopped_early: bool = ..., steps_pushed: _Optional[int] = ..., priority: _Optional[int] = ..., priority_among_owners: _Optional[int] = ..., time_limit_seconds: _Optional[float] = ..., running_seconds: _Optional[float] = ..., device_seconds: _Optional[float] = ..., queue_position: _Optional[int] = ..., experiment: _Optional[str] = ..., version: _Optional[int] = ..., recorded_checkpoints: _Optional[int] = ..., recorded_bytes: _Optional[int] = ...) -> None: ...

class JobEvent(_message.Message):
    __slots__ = ["job", "message", "step", "validation"]
    JOB_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_FIELD_NUMBER: _ClassVar[int]
    job: Job
    message: JobMessage
    step: StepReport
    validation: StepReport
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., step: _Optional[_Union[StepReport, _Mapping]] = ..., message: _Optional[_Union[JobMessage, _Mapping]] = ..., validation: _Optional[_Union[StepReport, _Mapping]] = ...) -> None: ...

class JobMessage(_message.Message):
    __slots__ = ["level", "text", "unix_ms"]
    class Level(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    DETAIL: JobMessage.Level
    INFO: JobMessage.Level
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    WARNING: JobMessage.Level
    level: JobMessage.Level
    text: str
    unix_ms: int
    def __init__(self, text: _Optional[str] = ..., level: _Optional[_Union[JobMessage.Level, str]] = ..., unix_ms: _Optional[int] = ...) -> None: ...

class ListJobsReply(_message.Message):
    __slots__ = ["jobs", "matching", "next_page_token"]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    MATCHING_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    matching: int
    next_page_token: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., matching: _Optional[int] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ["model", "name", "newest_first", "owner", "page_size", "page_token", "states", "submitted_before_unix_ms", "submitted_from_unix_ms"]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIRST_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_BEFORE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_FROM_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    model: str
    name: str
    newest_first: bool
    owner: str
    page_size: int
    page_token: str
    states: _containers.RepeatedScalarFieldContainer[JobState]
    submitted_before_unix_ms: int
    submitted_from_unix_ms: int
    def __init__(self, states: _Optional[_Iterable[_Union[JobState, str]]] = ..., owner: _Optional[str] = ..., name: _Optional[str] = ..., model: _Optional[str] = ..., submitted_from_unix_ms: _Optional[int] = ..., submitted_before_unix_ms: _Optional[int] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., newest_first: bool = ...) -> None: ...

class ParameterUse(_message.Message):
    __slots__ = ["name", "reason", "trained", "type"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    reason: str
    trained: bool
    type: _graph_pb2.TensorType
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[_graph_pb2.TensorType, _Mapping]] = ..., trained: bool = ..., reason: _Optional[str] = ...) -> None: ...

class PushExamplesReply(_message.Message):
    __slots__ = ["ended", "full", "steps_done", "steps_pushed"]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    STEPS_PUSHED_FIELD_NUMBER: _ClassVar[int]
    ended: bool
    full: bool
    steps_done: int
    steps_pushed: int
    def __init__(self, steps_pushed: _Optional[int] = ..., steps_done: _Optional[int] = ..., full: bool = ..., ended: bool = ...) -> None: ...

class PushExamplesRequest(_message.Message):
    __slots__ = ["columns", "end", "first_step", "job_id"]
    class ColumnsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: TensorValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[TensorValue, _Mapping]] = ...) -> None: ...
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.MessageMap[str, TensorValue]
    end: bool
    first_step: int
    job_id: str
    def __init__(self, job_id: _Optional[str] = ..., first_step: _Optional[int] = ..., columns: _Optional[_Mapping[str, TensorValue]] = ..., end: bool = ...) -> None: ...

class RecordOptions(_message.Message):
    __slots__ = ["every_steps", "keep", "max_bytes", "mode", "overhead"]
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    ADAPTIVE: RecordOptions.Mode
    EVERY: RecordOptions.Mode
    EVERY_STEPS_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    OFF: RecordOptions.Mode
    OVERHEAD_FIELD_NUMBER: _ClassVar[int]
    every_steps: int
    keep: int
    max_bytes: int
    mode: RecordOptions.Mode
    overhead: float
    def __init__(self, mode: _Optional[_Union[RecordOptions.Mode, str]] = ..., every_steps: _Optional[int] = ..., overhead: _Optional[float] = ..., max_bytes: _Optional[int] = ..., keep: _Optional[int] = ...) -> None: ...

class ResumeReply(_message.Message):
    __slots__ = ["job"]
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ["idempotency_key", "job_id"]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    idempotency_key: str
    job_id: str
    def __init__(self, job_id: _Optional[str] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class StepReport(_message.Message):
    __slots__ = ["seconds", "step", "tensors", "unix_ms", "values"]
    class TensorsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: TensorValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[TensorValue, _Mapping]] = ...) -> None: ...
    class ValuesEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    step: int
    tensors: _containers.MessageMap[str, TensorValue]
    unix_ms: int
    values: _containers.ScalarMap[str, float]
    def __init__(self, step: _Optional[int] = ..., values: _Optional[_Mapping[str, float]] = ..., seconds: _Optional[float] = ..., tensors: _Optional[_Mapping[str, TensorValue]] = ..., unix_ms: _Optional[int] = ...) -> None: ...

class SubmitReply(_message.Message):
    __slots__ = ["job_id", "notes", "trained"]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    notes: _containers.RepeatedScalarFieldContainer[str]
    trained: TrainedParameters
    def __init__(self, job_id: _Optional[str] = ..., trained: _Optional[_Union[TrainedParameters, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class SubmitRequest(_message.Message):
    __slots__ = ["idempotency_key", "spec"]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    idempotency_key: str
    spec: TrainingSpec
    def __init__(self, spec: _Optional[_Union[TrainingSpec, _Mapping]] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class TensorValue(_message.Message):
    __slots__ = ["data", "dims", "dtype"]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    dims: _containers.RepeatedScalarFieldContainer[int]
    dtype: _graph_pb2.DataType
    def __init__(self, dtype: _Optional[_Union[_graph_pb2.DataType, str]] = ..., dims: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class TrainedParameters(_message.Message):
    __slots__ = ["elements", "other_elements", "other_tensors", "tensors"]
    ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    OTHER_ELEMENTS_FIELD_NUMBER: _ClassVar[int]
    OTHER_TENSORS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    elements: int
    other_elements: int
    other_tensors: int
    tensors: int
    def __init__(self, tensors: _Optional[int] = ..., elements: _Optional[int] = ..., other_tensors: _Optional[int] = ..., other_elements: _Optional[int] = ...) -> None: ...

class TrainingSpec(_message.Message):
    __slots__ = ["batch_size", "checkpoint_every_steps", "dataset", "early_stopping", "epochs", "freeze", "graph", "init_artifact", "loss", "metrics", "min_devices", "name", "objective", "onnx_artifact", "optimizer", "output_model", "precision", "priority", "record", "search", "seed", "steps", "time_limit_seconds", "tokenizer_artifact", "train_only", "validation"]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_EVERY_STEPS_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    EARLY_STOPPING_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    FREEZE_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    INIT_ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    MIN_DEVICES_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    ONNX_ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_MODEL_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    SEARCH_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    TRAIN_ONLY_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_FIELD_NUMBER: _ClassVar[int]
    batch_size: int
    checkpoint_every_steps: int
    dataset: Dataset
    early_stopping: EarlyStopping
    epochs: int
    freeze: _containers.RepeatedScalarFieldContainer[str]
    graph: _graph_pb2.Graph
    init_artifact: str
    loss: str
    metrics: _containers.RepeatedScalarFieldContainer[str]
    min_devices: int
    name: str
    objective: _graph_pb2.Objective
    onnx_artifact: str
    optimizer: _program_pb2.Optimizer
    output_model: str
    precision: _graph_pb2.DataType
    priority: int
    record: RecordOptions
    search: _plan_pb2.SearchOptions
    seed: int
    steps: int
    time_limit_seconds: float
    tokenizer_artifact: str
    train_only: _containers.RepeatedScalarFieldContainer[str]
    validation: Validation
    def __init__(self, name: _Optional[str] = ..., graph: _Optional[_Union[_graph_pb2.Graph, _Mapping]] = ..., onnx_artifact: _Optional[str] = ..., loss: _Optional[str] = ..., metrics: _Optional[_Iterable[str]] = ..., dataset: _Optional[_Union[Dataset, _Mapping]] = ..., batch_size: _Optional[int] = ..., epochs: _Optional[int] = ..., steps: _Optional[int] = ..., optimizer: _Optional[_Union[_program_pb2.Optimizer, _Mapping]] = ..., search: _Optional[_Union[_plan_pb2.SearchOptions, _Mapping]] = ..., seed: _Optional[int] = ..., checkpoint_every_steps: _Optional[int] = ..., output_model: _Optional[str] = ..., precision: _Optional[_Union[_graph_pb2.DataType, str]] = ..., init_artifact: _Optional[str] = ..., tokenizer_artifact: _Optional[str] = ..., freeze: _Optional[_Iterable[str]] = ..., train_only: _Optional[_Iterable[str]] = ..., objective: _Optional[_Union[_graph_pb2.Objective, _Mapping]] = ..., min_devices: _Optional[int] = ..., validation: _Optional[_Union[Validation, _Mapping]] = ..., early_stopping: _Optional[_Union[EarlyStopping, _Mapping]] = ..., priority: _Optional[int] = ..., time_limit_seconds: _Optional[float] = ..., record: _Optional[_Union[RecordOptions, _Mapping]] = ...) -> None: ...

class UpdateJobReply(_message.Message):
    __slots__ = ["job"]
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: Job
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class UpdateJobRequest(_message.Message):
    __slots__ = ["idempotency_key", "job_id", "priority", "time_limit_seconds"]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    idempotency_key: str
    job_id: str
    priority: int
    time_limit_seconds: float
    def __init__(self, job_id: _Optional[str] = ..., priority: _Optional[int] = ..., time_limit_seconds: _Optional[float] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class Validation(_message.Message):
    __slots__ = ["dataset", "every_epochs", "every_steps"]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    EVERY_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    EVERY_STEPS_FIELD_NUMBER: _ClassVar[int]
    dataset: Dataset
    every_epochs: int
    every_steps: int
    def __init__(self, dataset: _Optional[_Union[Dataset, _Mapping]] = ..., every_steps: _Optional[int] = ..., every_epochs: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ["from_step", "job_id", "no_follow"]
    FROM_STEP_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NO_FOLLOW_FIELD_NUMBER: _ClassVar[int]
    from_step: int
    job_id: str
    no_follow: bool
    def __init__(self, job_id: _Optional[str] = ..., from_step: _Optional[int] = ..., no_follow: bool = ...) -> None: ...

class JobState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
