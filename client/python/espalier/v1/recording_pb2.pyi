from espalier.v1 import graph_pb2 as _graph_pb2
from espalier.v1 import plan_pb2 as _plan_pb2
from espalier.v1 import training_pb2 as _training_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DiffRunsReply(_message.Message):
    __slots__ = ["common_steps", "differences", "first_different_step"]
    COMMON_STEPS_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    FIRST_DIFFERENT_STEP_FIELD_NUMBER: _ClassVar[int]
    common_steps: int
    differences: _containers.RepeatedCompositeFieldContainer[RunDifference]
    first_different_step: int
    def __init__(self, differences: _Optional[_Iterable[_Union[RunDifference, _Mapping]]] = ..., first_different_step: _Optional[int] = ..., common_steps: _Optional[int] = ...) -> None: ...

class DiffRunsRequest(_message.Message):
    __slots__ = ["a", "b"]
    A_FIELD_NUMBER: _ClassVar[int]
    B_FIELD_NUMBER: _ClassVar[int]
    a: str
    b: str
    def __init__(self, a: _Optional[str] = ..., b: _Optional[str] = ...) -> None: ...

class GetRunReply(_message.Message):
    __slots__ = ["run"]
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: Recording
    def __init__(self, run: _Optional[_Union[Recording, _Mapping]] = ...) -> None: ...

class GetRunRequest(_message.Message):
    __slots__ = ["run"]
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class ListRunValuesReply(_message.Message):
    __slots__ = ["notes", "run", "values"]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    notes: _containers.RepeatedScalarFieldContainer[str]
    run: str
    values: _containers.RepeatedCompositeFieldContainer[RunValue]
    def __init__(self, run: _Optional[str] = ..., values: _Optional[_Iterable[_Union[RunValue, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class ListRunValuesRequest(_message.Message):
    __slots__ = ["pattern", "run"]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    pattern: str
    run: str
    def __init__(self, run: _Optional[str] = ..., pattern: _Optional[str] = ...) -> None: ...

class ListRunsReply(_message.Message):
    __slots__ = ["next_page_token", "runs"]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    next_page_token: str
    runs: _containers.RepeatedCompositeFieldContainer[Recording]
    def __init__(self, runs: _Optional[_Iterable[_Union[Recording, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListRunsRequest(_message.Message):
    __slots__ = ["page_size", "page_token", "run"]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    run: str
    def __init__(self, run: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class LossSummary(_message.Message):
    __slots__ = ["best", "best_step", "first", "last"]
    BEST_FIELD_NUMBER: _ClassVar[int]
    BEST_STEP_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    best: float
    best_step: int
    first: float
    last: float
    def __init__(self, first: _Optional[float] = ..., last: _Optional[float] = ..., best: _Optional[float] = ..., best_step: _Optional[int] = ...) -> None: ...

class RecordedAttempt(_message.Message):
    __slots__ = ["attempt", "first_step", "plan", "program_version", "ranks", "unix_ms"]
    class Rank(_message.Message):
        __slots__ = ["device_model", "instruction_set", "program_version", "threads"]
        DEVICE_MODEL_FIELD_NUMBER: _ClassVar[int]
        INSTRUCTION_SET_FIELD_NUMBER: _ClassVar[int]
        PROGRAM_VERSION_FIELD_NUMBER: _ClassVar[int]
        THREADS_FIELD_NUMBER: _ClassVar[int]
        device_model: str
        instruction_set: str
        program_version: str
        threads: int
        def __init__(self, device_model: _Optional[str] = ..., instruction_set: _Optional[str] = ..., threads: _Optional[int] = ..., program_version: _Optional[str] = ...) -> None: ...
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_VERSION_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    first_step: int
    plan: _plan_pb2.Plan
    program_version: str
    ranks: _containers.RepeatedCompositeFieldContainer[RecordedAttempt.Rank]
    unix_ms: int
    def __init__(self, attempt: _Optional[int] = ..., first_step: _Optional[int] = ..., plan: _Optional[_Union[_plan_pb2.Plan, _Mapping]] = ..., ranks: _Optional[_Iterable[_Union[RecordedAttempt.Rank, _Mapping]]] = ..., program_version: _Optional[str] = ..., unix_ms: _Optional[int] = ...) -> None: ...

class RecordedCheckpoint(_message.Message):
    __slots__ = ["bytes", "directory", "spool", "spooled", "steps_done", "stored"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    SPOOLED_FIELD_NUMBER: _ClassVar[int]
    SPOOL_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    STORED_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    directory: str
    spool: str
    spooled: bool
    steps_done: int
    stored: bool
    def __init__(self, steps_done: _Optional[int] = ..., directory: _Optional[str] = ..., bytes: _Optional[int] = ..., stored: bool = ..., spooled: bool = ..., spool: _Optional[str] = ...) -> None: ...

class Recording(_message.Message):
    __slots__ = ["all_checkpoints", "attempts", "checkpoints", "copied_bytes", "copied_checkpoints", "dataset_sha256", "experiment", "graph_sha256", "job", "losses", "validation_sha256", "version"]
    ALL_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    COPIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    COPIED_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    DATASET_SHA256_FIELD_NUMBER: _ClassVar[int]
    EXPERIMENT_FIELD_NUMBER: _ClassVar[int]
    GRAPH_SHA256_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_SHA256_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    all_checkpoints: int
    attempts: _containers.RepeatedCompositeFieldContainer[RecordedAttempt]
    checkpoints: _containers.RepeatedCompositeFieldContainer[RecordedCheckpoint]
    copied_bytes: int
    copied_checkpoints: int
    dataset_sha256: str
    experiment: str
    graph_sha256: str
    job: _training_pb2.Job
    losses: LossSummary
    validation_sha256: str
    version: int
    def __init__(self, experiment: _Optional[str] = ..., version: _Optional[int] = ..., job: _Optional[_Union[_training_pb2.Job, _Mapping]] = ..., graph_sha256: _Optional[str] = ..., dataset_sha256: _Optional[str] = ..., validation_sha256: _Optional[str] = ..., attempts: _Optional[_Iterable[_Union[RecordedAttempt, _Mapping]]] = ..., checkpoints: _Optional[_Iterable[_Union[RecordedCheckpoint, _Mapping]]] = ..., losses: _Optional[_Union[LossSummary, _Mapping]] = ..., all_checkpoints: _Optional[int] = ..., copied_checkpoints: _Optional[int] = ..., copied_bytes: _Optional[int] = ...) -> None: ...

class RunDifference(_message.Message):
    __slots__ = ["a", "b", "field"]
    A_FIELD_NUMBER: _ClassVar[int]
    B_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    a: str
    b: str
    field: str
    def __init__(self, field: _Optional[str] = ..., a: _Optional[str] = ..., b: _Optional[str] = ...) -> None: ...

class RunValue(_message.Message):
    __slots__ = ["gradient", "gradient_recomputed", "kind", "log", "name", "output_of", "recomputed", "slot", "type", "update"]
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    BATCH_INPUT: RunValue.Kind
    GRADIENT_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    KIND_UNSPECIFIED: RunValue.Kind
    LOG_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_STATE: RunValue.Kind
    OUTPUT_OF_FIELD_NUMBER: _ClassVar[int]
    PARAMETER: RunValue.Kind
    RECOMPUTED_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    VALUE: RunValue.Kind
    gradient: bool
    gradient_recomputed: bool
    kind: RunValue.Kind
    log: str
    name: str
    output_of: str
    recomputed: bool
    slot: str
    type: _graph_pb2.TensorType
    update: bool
    def __init__(self, kind: _Optional[_Union[RunValue.Kind, str]] = ..., name: _Optional[str] = ..., slot: _Optional[str] = ..., log: _Optional[str] = ..., type: _Optional[_Union[_graph_pb2.TensorType, _Mapping]] = ..., gradient: bool = ..., update: bool = ..., recomputed: bool = ..., gradient_recomputed: bool = ..., output_of: _Optional[str] = ...) -> None: ...

class SpoolDeletions(_message.Message):
    __slots__ = ["entries"]
    class Entry(_message.Message):
        __slots__ = ["job_id", "spool"]
        JOB_ID_FIELD_NUMBER: _ClassVar[int]
        SPOOL_FIELD_NUMBER: _ClassVar[int]
        job_id: str
        spool: str
        def __init__(self, job_id: _Optional[str] = ..., spool: _Optional[str] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[SpoolDeletions.Entry]
    def __init__(self, entries: _Optional[_Iterable[_Union[SpoolDeletions.Entry, _Mapping]]] = ...) -> None: ...
