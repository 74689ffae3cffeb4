from espalier.v1 import graph_pb2 as _graph_pb2
from espalier.v1 import probe_pb2 as _probe_pb2
from espalier.v1 import training_pb2 as _training_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
REPLAY_CANCELLED: ReplayState
REPLAY_DIFFERS: ReplayState
REPLAY_FAILED: ReplayState
REPLAY_RUNNING: ReplayState
REPLAY_STATE_UNSPECIFIED: ReplayState
REPLAY_SUCCEEDED: ReplayState
REPLAY_WAITING: ReplayState

class CancelReplayReply(_message.Message):
    __slots__ = ["replay"]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    replay: ReplayInfo
    def __init__(self, replay: _Optional[_Union[ReplayInfo, _Mapping]] = ...) -> None: ...

class CancelReplayRequest(_message.Message):
    __slots__ = ["replay_id"]
    REPLAY_ID_FIELD_NUMBER: _ClassVar[int]
    replay_id: str
    def __init__(self, replay_id: _Optional[str] = ...) -> None: ...

class DeleteReplayReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class DeleteReplayRequest(_message.Message):
    __slots__ = ["replay_id"]
    REPLAY_ID_FIELD_NUMBER: _ClassVar[int]
    replay_id: str
    def __init__(self, replay_id: _Optional[str] = ...) -> None: ...

class EstimateReplayReply(_message.Message):
    __slots__ = ["estimate"]
    ESTIMATE_FIELD_NUMBER: _ClassVar[int]
    estimate: ReplayEstimate
    def __init__(self, estimate: _Optional[_Union[ReplayEstimate, _Mapping]] = ...) -> None: ...

class EstimateReplayRequest(_message.Message):
    __slots__ = ["spec"]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    spec: ReplaySpec
    def __init__(self, spec: _Optional[_Union[ReplaySpec, _Mapping]] = ...) -> None: ...

class GetReplayReply(_message.Message):
    __slots__ = ["replay"]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    replay: ReplayInfo
    def __init__(self, replay: _Optional[_Union[ReplayInfo, _Mapping]] = ...) -> None: ...

class GetReplayRequest(_message.Message):
    __slots__ = ["replay_id"]
    REPLAY_ID_FIELD_NUMBER: _ClassVar[int]
    replay_id: str
    def __init__(self, replay_id: _Optional[str] = ...) -> None: ...

class HistoryRow(_message.Message):
    __slots__ = ["experiment", "job_id", "name", "reduction", "replay_id", "source", "step", "unix_ms", "value", "version"]
    class Source(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    EXPERIMENT_FIELD_NUMBER: _ClassVar[int]
    FORWARD: HistoryRow.Source
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REDUCTION_FIELD_NUMBER: _ClassVar[int]
    REPLAY: HistoryRow.Source
    REPLAY_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    experiment: str
    job_id: str
    name: str
    reduction: str
    replay_id: str
    source: HistoryRow.Source
    step: int
    unix_ms: int
    value: _probe_pb2.ProbeValue
    version: int
    def __init__(self, experiment: _Optional[str] = ..., version: _Optional[int] = ..., job_id: _Optional[str] = ..., step: _Optional[int] = ..., name: _Optional[str] = ..., reduction: _Optional[str] = ..., value: _Optional[_Union[_probe_pb2.ProbeValue, _Mapping]] = ..., source: _Optional[_Union[HistoryRow.Source, str]] = ..., replay_id: _Optional[str] = ..., unix_ms: _Optional[int] = ...) -> None: ...

class ListReplaysReply(_message.Message):
    __slots__ = ["replays"]
    REPLAYS_FIELD_NUMBER: _ClassVar[int]
    replays: _containers.RepeatedCompositeFieldContainer[ReplayInfo]
    def __init__(self, replays: _Optional[_Iterable[_Union[ReplayInfo, _Mapping]]] = ...) -> None: ...

class ListReplaysRequest(_message.Message):
    __slots__ = ["run"]
    RUN_FIELD_NUMBER: _ClassVar[int]
    run: str
    def __init__(self, run: _Optional[str] = ...) -> None: ...

class QueryHistoryReply(_message.Message):
    __slots__ = ["rows"]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[HistoryRow]
    def __init__(self, rows: _Optional[_Iterable[_Union[HistoryRow, _Mapping]]] = ...) -> None: ...

class QueryHistoryRequest(_message.Message):
    __slots__ = ["end_step", "first_step", "log", "run", "source"]
    END_STEP_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    end_step: int
    first_step: int
    log: _containers.RepeatedScalarFieldContainer[str]
    run: str
    source: HistoryRow.Source
    def __init__(self, run: _Optional[str] = ..., log: _Optional[_Iterable[str]] = ..., first_step: _Optional[int] = ..., end_step: _Optional[int] = ..., source: _Optional[_Union[HistoryRow.Source, str]] = ...) -> None: ...

class ReplayComparison(_message.Message):
    __slots__ = ["bits", "compared", "largest", "reason", "tolerance"]
    BITS_FIELD_NUMBER: _ClassVar[int]
    COMPARED_FIELD_NUMBER: _ClassVar[int]
    LARGEST_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TOLERANCE_FIELD_NUMBER: _ClassVar[int]
    bits: bool
    compared: int
    largest: float
    reason: str
    tolerance: float
    def __init__(self, bits: bool = ..., tolerance: _Optional[float] = ..., reason: _Optional[str] = ..., compared: _Optional[int] = ..., largest: _Optional[float] = ...) -> None: ...

class ReplayDifference(_message.Message):
    __slots__ = ["cause", "job_id", "node", "node_step", "recorded", "replayed", "step"]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    NODE_STEP_FIELD_NUMBER: _ClassVar[int]
    RECORDED_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    cause: str
    job_id: str
    node: str
    node_step: int
    recorded: float
    replayed: float
    step: int
    def __init__(self, step: _Optional[int] = ..., recorded: _Optional[float] = ..., replayed: _Optional[float] = ..., node: _Optional[str] = ..., cause: _Optional[str] = ..., job_id: _Optional[str] = ..., node_step: _Optional[int] = ...) -> None: ...

class ReplayEstimate(_message.Message):
    __slots__ = ["bytes", "fetched", "lacking", "loading_seconds", "logged_steps", "notes", "rows", "seconds", "segments", "steps"]
    class Fetched(_message.Message):
        __slots__ = ["bytes", "checkpoints", "spool"]
        BYTES_FIELD_NUMBER: _ClassVar[int]
        CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
        SPOOL_FIELD_NUMBER: _ClassVar[int]
        bytes: int
        checkpoints: int
        spool: str
        def __init__(self, spool: _Optional[str] = ..., checkpoints: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...
    class Lacking(_message.Message):
        __slots__ = ["log", "reasons", "run"]
        LOG_FIELD_NUMBER: _ClassVar[int]
        REASONS_FIELD_NUMBER: _ClassVar[int]
        RUN_FIELD_NUMBER: _ClassVar[int]
        log: _containers.RepeatedScalarFieldContainer[str]
        reasons: _containers.RepeatedScalarFieldContainer[str]
        run: str
        def __init__(self, run: _Optional[str] = ..., log: _Optional[_Iterable[str]] = ..., reasons: _Optional[_Iterable[str]] = ...) -> None: ...
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FETCHED_FIELD_NUMBER: _ClassVar[int]
    LACKING_FIELD_NUMBER: _ClassVar[int]
    LOADING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOGGED_STEPS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    fetched: _containers.RepeatedCompositeFieldContainer[ReplayEstimate.Fetched]
    lacking: _containers.RepeatedCompositeFieldContainer[ReplayEstimate.Lacking]
    loading_seconds: float
    logged_steps: int
    notes: _containers.RepeatedScalarFieldContainer[str]
    rows: int
    seconds: float
    segments: _containers.RepeatedCompositeFieldContainer[ReplaySegment]
    steps: int
    def __init__(self, steps: _Optional[int] = ..., logged_steps: _Optional[int] = ..., seconds: _Optional[float] = ..., loading_seconds: _Optional[float] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., segments: _Optional[_Iterable[_Union[ReplaySegment, _Mapping]]] = ..., lacking: _Optional[_Iterable[_Union[ReplayEstimate.Lacking, _Mapping]]] = ..., notes: _Optional[_Iterable[str]] = ..., fetched: _Optional[_Iterable[_Union[ReplayEstimate.Fetched, _Mapping]]] = ...) -> None: ...

class ReplayEvent(_message.Message):
    __slots__ = ["replay", "row"]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    replay: ReplayInfo
    row: HistoryRow
    def __init__(self, replay: _Optional[_Union[ReplayInfo, _Mapping]] = ..., row: _Optional[_Union[HistoryRow, _Mapping]] = ...) -> None: ...

class ReplayGraph(_message.Message):
    __slots__ = ["graph", "name", "onnx"]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ONNX_FIELD_NUMBER: _ClassVar[int]
    graph: _graph_pb2.Graph
    name: str
    onnx: bytes
    def __init__(self, name: _Optional[str] = ..., graph: _Optional[_Union[_graph_pb2.Graph, _Mapping]] = ..., onnx: _Optional[bytes] = ...) -> None: ...

class ReplayInfo(_message.Message):
    __slots__ = ["created_unix_ms", "difference", "error", "finished_unix_ms", "id", "job_ids", "notes", "owner", "rows", "runs", "segments", "spec", "state"]
    CREATED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FINISHED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    created_unix_ms: int
    difference: ReplayDifference
    error: str
    finished_unix_ms: int
    id: str
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    notes: _containers.RepeatedScalarFieldContainer[str]
    owner: str
    rows: int
    runs: _containers.RepeatedScalarFieldContainer[str]
    segments: _containers.RepeatedCompositeFieldContainer[ReplaySegment]
    spec: ReplaySpec
    state: ReplayState
    def __init__(self, id: _Optional[str] = ..., spec: _Optional[_Union[ReplaySpec, _Mapping]] = ..., state: _Optional[_Union[ReplayState, str]] = ..., error: _Optional[str] = ..., owner: _Optional[str] = ..., segments: _Optional[_Iterable[_Union[ReplaySegment, _Mapping]]] = ..., difference: _Optional[_Union[ReplayDifference, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ..., rows: _Optional[int] = ..., created_unix_ms: _Optional[int] = ..., finished_unix_ms: _Optional[int] = ..., runs: _Optional[_Iterable[str]] = ..., job_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ReplaySegment(_message.Message):
    __slots__ = ["checkpoint_step", "checkpoints", "comparison", "end_step", "first_step", "job_id", "kind", "state", "steps_done", "workers"]
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_STEP_FIELD_NUMBER: _ClassVar[int]
    COMPARISON_FIELD_NUMBER: _ClassVar[int]
    END_STEP_FIELD_NUMBER: _ClassVar[int]
    EVALUATION: ReplaySegment.Kind
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STATE: ReplaySegment.Kind
    STATE_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    TRAINING: ReplaySegment.Kind
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    checkpoint_step: int
    checkpoints: int
    comparison: ReplayComparison
    end_step: int
    first_step: int
    job_id: str
    kind: ReplaySegment.Kind
    state: ReplayState
    steps_done: int
    workers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job_id: _Optional[str] = ..., checkpoint_step: _Optional[int] = ..., first_step: _Optional[int] = ..., end_step: _Optional[int] = ..., state: _Optional[_Union[ReplayState, str]] = ..., steps_done: _Optional[int] = ..., workers: _Optional[_Iterable[str]] = ..., comparison: _Optional[_Union[ReplayComparison, _Mapping]] = ..., kind: _Optional[_Union[ReplaySegment.Kind, str]] = ..., checkpoints: _Optional[int] = ...) -> None: ...

class ReplaySpec(_message.Message):
    __slots__ = ["any_plan", "at_checkpoints", "end_step", "evaluate", "evaluate_holdout", "every", "first_step", "graphs", "log", "max_workers", "run", "segment", "segments"]
    ANY_PLAN_FIELD_NUMBER: _ClassVar[int]
    AT_CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    END_STEP_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_HOLDOUT_FIELD_NUMBER: _ClassVar[int]
    EVERY_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    MAX_WORKERS_FIELD_NUMBER: _ClassVar[int]
    RUN_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    any_plan: bool
    at_checkpoints: bool
    end_step: int
    evaluate: _training_pb2.Dataset
    evaluate_holdout: bool
    every: int
    first_step: int
    graphs: _containers.RepeatedCompositeFieldContainer[ReplayGraph]
    log: _containers.RepeatedScalarFieldContainer[str]
    max_workers: int
    run: str
    segment: int
    segments: int
    def __init__(self, run: _Optional[str] = ..., log: _Optional[_Iterable[str]] = ..., first_step: _Optional[int] = ..., end_step: _Optional[int] = ..., every: _Optional[int] = ..., segment: _Optional[int] = ..., segments: _Optional[int] = ..., max_workers: _Optional[int] = ..., at_checkpoints: bool = ..., evaluate: _Optional[_Union[_training_pb2.Dataset, _Mapping]] = ..., evaluate_holdout: bool = ..., any_plan: bool = ..., graphs: _Optional[_Iterable[_Union[ReplayGraph, _Mapping]]] = ...) -> None: ...

class StartReplayReply(_message.Message):
    __slots__ = ["replay"]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    replay: ReplayInfo
    def __init__(self, replay: _Optional[_Union[ReplayInfo, _Mapping]] = ...) -> None: ...

class StartReplayRequest(_message.Message):
    __slots__ = ["idempotency_key", "spec"]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    idempotency_key: str
    spec: ReplaySpec
    def __init__(self, spec: _Optional[_Union[ReplaySpec, _Mapping]] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class StoredReplay(_message.Message):
    __slots__ = ["deleted", "graphs", "info", "job_ids", "request_sha256"]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    INFO_FIELD_NUMBER: _ClassVar[int]
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_SHA256_FIELD_NUMBER: _ClassVar[int]
    deleted: bool
    graphs: _containers.RepeatedCompositeFieldContainer[ReplayGraph]
    info: ReplayInfo
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    request_sha256: str
    def __init__(self, info: _Optional[_Union[ReplayInfo, _Mapping]] = ..., request_sha256: _Optional[str] = ..., job_ids: _Optional[_Iterable[str]] = ..., graphs: _Optional[_Iterable[_Union[ReplayGraph, _Mapping]]] = ..., deleted: bool = ...) -> None: ...

class WatchReplayRequest(_message.Message):
    __slots__ = ["replay_id", "with_rows"]
    REPLAY_ID_FIELD_NUMBER: _ClassVar[int]
    WITH_ROWS_FIELD_NUMBER: _ClassVar[int]
    replay_id: str
    with_rows: bool
    def __init__(self, replay_id: _Optional[str] = ..., with_rows: bool = ...) -> None: ...

class ReplayState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
