from espalier.v1 import cluster_pb2 as _cluster_pb2
from espalier.v1 import graph_pb2 as _graph_pb2
from espalier.v1 import probe_pb2 as _probe_pb2
from espalier.v1 import program_pb2 as _program_pb2
from espalier.v1 import session_pb2 as _session_pb2
from espalier.v1 import training_pb2 as _training_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AdapterMatrix(_message.Message):
    __slots__ = ["rows", "scale", "tensor"]
    class Rows(_message.Message):
        __slots__ = ["begin", "end"]
        BEGIN_FIELD_NUMBER: _ClassVar[int]
        END_FIELD_NUMBER: _ClassVar[int]
        begin: int
        end: int
        def __init__(self, begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[AdapterMatrix.Rows]
    scale: float
    tensor: str
    def __init__(self, tensor: _Optional[str] = ..., rows: _Optional[_Iterable[_Union[AdapterMatrix.Rows, _Mapping]]] = ..., scale: _Optional[float] = ...) -> None: ...

class AdapterParameter(_message.Message):
    __slots__ = ["matrices", "parameter"]
    MATRICES_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    matrices: _containers.RepeatedCompositeFieldContainer[AdapterMatrix]
    parameter: str
    def __init__(self, parameter: _Optional[str] = ..., matrices: _Optional[_Iterable[_Union[AdapterMatrix, _Mapping]]] = ...) -> None: ...

class Attempt(_message.Message):
    __slots__ = ["attempt", "job_id", "worker_epoch"]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    WORKER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    job_id: str
    worker_epoch: int
    def __init__(self, job_id: _Optional[str] = ..., attempt: _Optional[int] = ..., worker_epoch: _Optional[int] = ...) -> None: ...

class BufferPart(_message.Message):
    __slots__ = ["buffer", "data", "evaluation", "offset"]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    data: bytes
    evaluation: bool
    offset: int
    def __init__(self, buffer: _Optional[int] = ..., evaluation: bool = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class CheckpointAtReply(_message.Message):
    __slots__ = ["steps_done"]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    steps_done: int
    def __init__(self, steps_done: _Optional[int] = ...) -> None: ...

class CheckpointAtRequest(_message.Message):
    __slots__ = ["attempt", "steps_done"]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    steps_done: int
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., steps_done: _Optional[int] = ...) -> None: ...

class CheckpointShard(_message.Message):
    __slots__ = ["bytes", "directory", "file", "not_written", "sha256", "stall_seconds", "steps_done", "unchanged", "write_seconds", "writer_cpu_seconds"]
    class Unchanged(_message.Message):
        __slots__ = ["bytes", "file", "sha256"]
        BYTES_FIELD_NUMBER: _ClassVar[int]
        FILE_FIELD_NUMBER: _ClassVar[int]
        SHA256_FIELD_NUMBER: _ClassVar[int]
        bytes: int
        file: str
        sha256: str
        def __init__(self, file: _Optional[str] = ..., sha256: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    NOT_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    STALL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
    UNCHANGED_FIELD_NUMBER: _ClassVar[int]
    WRITER_CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WRITE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    directory: str
    file: str
    not_written: str
    sha256: str
    stall_seconds: float
    steps_done: int
    unchanged: CheckpointShard.Unchanged
    write_seconds: float
    writer_cpu_seconds: float
    def __init__(self, steps_done: _Optional[int] = ..., directory: _Optional[str] = ..., file: _Optional[str] = ..., sha256: _Optional[str] = ..., bytes: _Optional[int] = ..., not_written: _Optional[str] = ..., stall_seconds: _Optional[float] = ..., writer_cpu_seconds: _Optional[float] = ..., write_seconds: _Optional[float] = ..., unchanged: _Optional[_Union[CheckpointShard.Unchanged, _Mapping]] = ...) -> None: ...

class InstructionHashes(_message.Message):
    __slots__ = ["entries", "step"]
    class Entry(_message.Message):
        __slots__ = ["hash", "instruction", "node", "op", "tensor"]
        HASH_FIELD_NUMBER: _ClassVar[int]
        INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
        NODE_FIELD_NUMBER: _ClassVar[int]
        OP_FIELD_NUMBER: _ClassVar[int]
        TENSOR_FIELD_NUMBER: _ClassVar[int]
        hash: int
        instruction: int
        node: str
        op: str
        tensor: str
        def __init__(self, instruction: _Optional[int] = ..., node: _Optional[str] = ..., op: _Optional[str] = ..., tensor: _Optional[str] = ..., hash: _Optional[int] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[InstructionHashes.Entry]
    step: int
    def __init__(self, step: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[InstructionHashes.Entry, _Mapping]]] = ...) -> None: ...

class LoadProgramReply(_message.Message):
    __slots__ = ["examples", "instruction_set", "peak_bytes", "program_version", "shards_read", "tensors", "threads"]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_SET_FIELD_NUMBER: _ClassVar[int]
    PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_VERSION_FIELD_NUMBER: _ClassVar[int]
    SHARDS_READ_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    examples: int
    instruction_set: str
    peak_bytes: int
    program_version: str
    shards_read: ShardSources
    tensors: _containers.RepeatedCompositeFieldContainer[RankTensor]
    threads: int
    def __init__(self, peak_bytes: _Optional[int] = ..., examples: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[RankTensor, _Mapping]]] = ..., shards_read: _Optional[_Union[ShardSources, _Mapping]] = ..., program_version: _Optional[str] = ..., instruction_set: _Optional[str] = ..., threads: _Optional[int] = ...) -> None: ...

class LoadProgramRequest(_message.Message):
    __slots__ = ["attempt", "batch_size", "checkpoint_dir", "dataset", "evaluation", "evaluation_probes", "init_folder", "keep_shards_on", "measure_communication", "pad_evaluation", "peer_timeout_seconds", "probes", "program", "session", "shard_peers", "validation", "values_folder"]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_DIR_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_PROBES_FIELD_NUMBER: _ClassVar[int]
    INIT_FOLDER_FIELD_NUMBER: _ClassVar[int]
    KEEP_SHARDS_ON_FIELD_NUMBER: _ClassVar[int]
    MEASURE_COMMUNICATION_FIELD_NUMBER: _ClassVar[int]
    PAD_EVALUATION_FIELD_NUMBER: _ClassVar[int]
    PEER_TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROBES_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SHARD_PEERS_FIELD_NUMBER: _ClassVar[int]
    VALIDATION_FIELD_NUMBER: _ClassVar[int]
    VALUES_FOLDER_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    batch_size: int
    checkpoint_dir: str
    dataset: _training_pb2.Dataset
    evaluation: _program_pb2.Program
    evaluation_probes: _containers.RepeatedCompositeFieldContainer[_probe_pb2.RankProbe]
    init_folder: str
    keep_shards_on: ShardPeer
    measure_communication: bool
    pad_evaluation: bool
    peer_timeout_seconds: float
    probes: _containers.RepeatedCompositeFieldContainer[_probe_pb2.RankProbe]
    program: _program_pb2.Program
    session: PassBorders
    shard_peers: _containers.RepeatedCompositeFieldContainer[ShardPeer]
    validation: _training_pb2.Dataset
    values_folder: str
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., program: _Optional[_Union[_program_pb2.Program, _Mapping]] = ..., evaluation: _Optional[_Union[_program_pb2.Program, _Mapping]] = ..., dataset: _Optional[_Union[_training_pb2.Dataset, _Mapping]] = ..., batch_size: _Optional[int] = ..., checkpoint_dir: _Optional[str] = ..., peer_timeout_seconds: _Optional[float] = ..., measure_communication: bool = ..., init_folder: _Optional[str] = ..., values_folder: _Optional[str] = ..., pad_evaluation: bool = ..., validation: _Optional[_Union[_training_pb2.Dataset, _Mapping]] = ..., session: _Optional[_Union[PassBorders, _Mapping]] = ..., keep_shards_on: _Optional[_Union[ShardPeer, _Mapping]] = ..., shard_peers: _Optional[_Iterable[_Union[ShardPeer, _Mapping]]] = ..., probes: _Optional[_Iterable[_Union[_probe_pb2.RankProbe, _Mapping]]] = ..., evaluation_probes: _Optional[_Iterable[_Union[_probe_pb2.RankProbe, _Mapping]]] = ...) -> None: ...

class MeasureReply(_message.Message):
    __slots__ = ["seconds"]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, seconds: _Optional[_Iterable[float]] = ...) -> None: ...

class MeasureRequest(_message.Message):
    __slots__ = ["programs", "repetitions"]
    PROGRAMS_FIELD_NUMBER: _ClassVar[int]
    REPETITIONS_FIELD_NUMBER: _ClassVar[int]
    programs: _containers.RepeatedCompositeFieldContainer[_program_pb2.Program]
    repetitions: int
    def __init__(self, programs: _Optional[_Iterable[_Union[_program_pb2.Program, _Mapping]]] = ..., repetitions: _Optional[int] = ...) -> None: ...

class OperatorTimes(_message.Message):
    __slots__ = ["entries"]
    class Entry(_message.Message):
        __slots__ = ["count", "node", "op", "seconds"]
        COUNT_FIELD_NUMBER: _ClassVar[int]
        NODE_FIELD_NUMBER: _ClassVar[int]
        OP_FIELD_NUMBER: _ClassVar[int]
        SECONDS_FIELD_NUMBER: _ClassVar[int]
        count: int
        node: str
        op: str
        seconds: float
        def __init__(self, node: _Optional[str] = ..., op: _Optional[str] = ..., seconds: _Optional[float] = ..., count: _Optional[int] = ...) -> None: ...
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[OperatorTimes.Entry]
    def __init__(self, entries: _Optional[_Iterable[_Union[OperatorTimes.Entry, _Mapping]]] = ...) -> None: ...

class PassBorders(_message.Message):
    __slots__ = ["accumulate_end", "backward_end", "forward_end", "store_end"]
    ACCUMULATE_END_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_END_FIELD_NUMBER: _ClassVar[int]
    FORWARD_END_FIELD_NUMBER: _ClassVar[int]
    STORE_END_FIELD_NUMBER: _ClassVar[int]
    accumulate_end: int
    backward_end: int
    forward_end: int
    store_end: int
    def __init__(self, forward_end: _Optional[int] = ..., backward_end: _Optional[int] = ..., store_end: _Optional[int] = ..., accumulate_end: _Optional[int] = ...) -> None: ...

class ProbeReply(_message.Message):
    __slots__ = ["may_write", "sees_data_dir"]
    MAY_WRITE_FIELD_NUMBER: _ClassVar[int]
    SEES_DATA_DIR_FIELD_NUMBER: _ClassVar[int]
    may_write: bool
    sees_data_dir: bool
    def __init__(self, sees_data_dir: bool = ..., may_write: bool = ...) -> None: ...

class ProbeRequest(_message.Message):
    __slots__ = ["data_dir", "data_dir_id", "join_key"]
    DATA_DIR_FIELD_NUMBER: _ClassVar[int]
    DATA_DIR_ID_FIELD_NUMBER: _ClassVar[int]
    JOIN_KEY_FIELD_NUMBER: _ClassVar[int]
    data_dir: str
    data_dir_id: str
    join_key: str
    def __init__(self, join_key: _Optional[str] = ..., data_dir: _Optional[str] = ..., data_dir_id: _Optional[str] = ...) -> None: ...

class ProbeResults(_message.Message):
    __slots__ = ["evaluation", "results", "step"]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    evaluation: bool
    results: _containers.RepeatedCompositeFieldContainer[_probe_pb2.RankProbeResult]
    step: int
    def __init__(self, step: _Optional[int] = ..., evaluation: bool = ..., results: _Optional[_Iterable[_Union[_probe_pb2.RankProbeResult, _Mapping]]] = ...) -> None: ...

class ProbeSteps(_message.Message):
    __slots__ = ["end", "every", "first"]
    END_FIELD_NUMBER: _ClassVar[int]
    EVERY_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    end: int
    every: int
    first: int
    def __init__(self, first: _Optional[int] = ..., end: _Optional[int] = ..., every: _Optional[int] = ...) -> None: ...

class RankCommand(_message.Message):
    __slots__ = ["attempt", "checkpoint", "columns", "evaluate", "given", "held_out", "more", "number", "own_order", "passes", "read", "rows", "write", "writes"]
    class Checkpoint(_message.Message):
        __slots__ = ["directory", "steps_done"]
        DIRECTORY_FIELD_NUMBER: _ClassVar[int]
        STEPS_DONE_FIELD_NUMBER: _ClassVar[int]
        directory: str
        steps_done: int
        def __init__(self, directory: _Optional[str] = ..., steps_done: _Optional[int] = ...) -> None: ...
    class Evaluate(_message.Message):
        __slots__ = ["batches", "first", "reports"]
        BATCHES_FIELD_NUMBER: _ClassVar[int]
        FIRST_FIELD_NUMBER: _ClassVar[int]
        REPORTS_FIELD_NUMBER: _ClassVar[int]
        batches: int
        first: int
        reports: bool
        def __init__(self, reports: bool = ..., batches: _Optional[int] = ..., first: _Optional[int] = ...) -> None: ...
    class Passes(_message.Message):
        __slots__ = ["backward", "first_forward", "first_update", "forward", "learning_rate", "times", "update", "zero_gradients"]
        BACKWARD_FIELD_NUMBER: _ClassVar[int]
        FIRST_FORWARD_FIELD_NUMBER: _ClassVar[int]
        FIRST_UPDATE_FIELD_NUMBER: _ClassVar[int]
        FORWARD_FIELD_NUMBER: _ClassVar[int]
        LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
        TIMES_FIELD_NUMBER: _ClassVar[int]
        UPDATE_FIELD_NUMBER: _ClassVar[int]
        ZERO_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
        backward: bool
        first_forward: int
        first_update: int
        forward: bool
        learning_rate: float
        times: int
        update: bool
        zero_gradients: bool
        def __init__(self, zero_gradients: bool = ..., forward: bool = ..., backward: bool = ..., update: bool = ..., times: _Optional[int] = ..., first_forward: _Optional[int] = ..., first_update: _Optional[int] = ..., learning_rate: _Optional[float] = ...) -> None: ...
    class Read(_message.Message):
        __slots__ = ["buffers", "evaluation_buffers"]
        BUFFERS_FIELD_NUMBER: _ClassVar[int]
        EVALUATION_BUFFERS_FIELD_NUMBER: _ClassVar[int]
        buffers: _containers.RepeatedScalarFieldContainer[int]
        evaluation_buffers: _containers.RepeatedScalarFieldContainer[int]
        def __init__(self, buffers: _Optional[_Iterable[int]] = ..., evaluation_buffers: _Optional[_Iterable[int]] = ...) -> None: ...
    class Write(_message.Message):
        __slots__ = []
        def __init__(self) -> None: ...
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    HELD_OUT_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    OWN_ORDER_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    READ_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    checkpoint: RankCommand.Checkpoint
    columns: _containers.RepeatedCompositeFieldContainer[_session_pb2.TensorPart]
    evaluate: RankCommand.Evaluate
    given: bool
    held_out: bool
    more: bool
    number: int
    own_order: int
    passes: RankCommand.Passes
    read: RankCommand.Read
    rows: _graph_pb2.IntList
    write: RankCommand.Write
    writes: _containers.RepeatedCompositeFieldContainer[BufferPart]
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., number: _Optional[int] = ..., more: bool = ..., columns: _Optional[_Iterable[_Union[_session_pb2.TensorPart, _Mapping]]] = ..., writes: _Optional[_Iterable[_Union[BufferPart, _Mapping]]] = ..., passes: _Optional[_Union[RankCommand.Passes, _Mapping]] = ..., evaluate: _Optional[_Union[RankCommand.Evaluate, _Mapping]] = ..., read: _Optional[_Union[RankCommand.Read, _Mapping]] = ..., write: _Optional[_Union[RankCommand.Write, _Mapping]] = ..., checkpoint: _Optional[_Union[RankCommand.Checkpoint, _Mapping]] = ..., own_order: _Optional[int] = ..., rows: _Optional[_Union[_graph_pb2.IntList, _Mapping]] = ..., held_out: bool = ..., given: bool = ...) -> None: ...

class RankResult(_message.Message):
    __slots__ = ["more", "number", "reads", "shard", "steps"]
    MORE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    READS_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    more: bool
    number: int
    reads: _containers.RepeatedCompositeFieldContainer[BufferPart]
    shard: CheckpointShard
    steps: _containers.RepeatedCompositeFieldContainer[_training_pb2.StepReport]
    def __init__(self, number: _Optional[int] = ..., more: bool = ..., steps: _Optional[_Iterable[_Union[_training_pb2.StepReport, _Mapping]]] = ..., reads: _Optional[_Iterable[_Union[BufferPart, _Mapping]]] = ..., shard: _Optional[_Union[CheckpointShard, _Mapping]] = ...) -> None: ...

class RankTensor(_message.Message):
    __slots__ = ["buffer", "evaluation", "kind", "name", "spec"]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    buffer: int
    evaluation: bool
    kind: _session_pb2.SessionTensorKind
    name: str
    spec: _program_pb2.TensorSpec
    def __init__(self, buffer: _Optional[int] = ..., evaluation: bool = ..., kind: _Optional[_Union[_session_pb2.SessionTensorKind, str]] = ..., name: _Optional[str] = ..., spec: _Optional[_Union[_program_pb2.TensorSpec, _Mapping]] = ...) -> None: ...

class RowLogitEdits(_message.Message):
    __slots__ = ["forbidden", "penalties", "penalty_tokens", "permitted"]
    FORBIDDEN_FIELD_NUMBER: _ClassVar[int]
    PENALTIES_FIELD_NUMBER: _ClassVar[int]
    PENALTY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PERMITTED_FIELD_NUMBER: _ClassVar[int]
    forbidden: _containers.RepeatedScalarFieldContainer[int]
    penalties: _containers.RepeatedScalarFieldContainer[float]
    penalty_tokens: _containers.RepeatedScalarFieldContainer[int]
    permitted: int
    def __init__(self, permitted: _Optional[int] = ..., forbidden: _Optional[_Iterable[int]] = ..., penalty_tokens: _Optional[_Iterable[int]] = ..., penalties: _Optional[_Iterable[float]] = ...) -> None: ...

class RowLogprobs(_message.Message):
    __slots__ = ["logprob", "rank", "token", "top_logprobs", "top_tokens"]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    rank: int
    token: int
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    top_tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token: _Optional[int] = ..., logprob: _Optional[float] = ..., rank: _Optional[int] = ..., top_tokens: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class RunEvent(_message.Message):
    __slots__ = ["attempt", "communication", "evaluation", "hashes", "measured_peak_bytes", "operator_times", "probes", "shard", "step", "unreachable_rank"]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    COMMUNICATION_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    MEASURED_PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_TIMES_FIELD_NUMBER: _ClassVar[int]
    PROBES_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    UNREACHABLE_RANK_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    communication: _cluster_pb2.CommunicationProfile
    evaluation: _training_pb2.StepReport
    hashes: InstructionHashes
    measured_peak_bytes: int
    operator_times: OperatorTimes
    probes: ProbeResults
    shard: CheckpointShard
    step: _training_pb2.StepReport
    unreachable_rank: int
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., step: _Optional[_Union[_training_pb2.StepReport, _Mapping]] = ..., shard: _Optional[_Union[CheckpointShard, _Mapping]] = ..., evaluation: _Optional[_Union[_training_pb2.StepReport, _Mapping]] = ..., measured_peak_bytes: _Optional[int] = ..., communication: _Optional[_Union[_cluster_pb2.CommunicationProfile, _Mapping]] = ..., operator_times: _Optional[_Union[OperatorTimes, _Mapping]] = ..., unreachable_rank: _Optional[int] = ..., probes: _Optional[_Union[ProbeResults, _Mapping]] = ..., hashes: _Optional[_Union[InstructionHashes, _Mapping]] = ...) -> None: ...

class RunRequest(_message.Message):
    __slots__ = ["attempt", "checkpoint_at_begin", "checkpoint_every_steps", "checkpoint_root", "evaluate_at_end", "first_step", "goes_on", "hash_step", "last_step", "probe_steps", "restore_checkpoint", "stream"]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_AT_BEGIN_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_EVERY_STEPS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ROOT_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_AT_END_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    GOES_ON_FIELD_NUMBER: _ClassVar[int]
    HASH_STEP_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    PROBE_STEPS_FIELD_NUMBER: _ClassVar[int]
    RESTORE_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    STREAM_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    checkpoint_at_begin: bool
    checkpoint_every_steps: int
    checkpoint_root: str
    evaluate_at_end: bool
    first_step: int
    goes_on: bool
    hash_step: int
    last_step: int
    probe_steps: ProbeSteps
    restore_checkpoint: str
    stream: _containers.RepeatedCompositeFieldContainer[StreamPart]
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., first_step: _Optional[int] = ..., last_step: _Optional[int] = ..., checkpoint_every_steps: _Optional[int] = ..., checkpoint_root: _Optional[str] = ..., evaluate_at_end: bool = ..., checkpoint_at_begin: bool = ..., goes_on: bool = ..., stream: _Optional[_Iterable[_Union[StreamPart, _Mapping]]] = ..., probe_steps: _Optional[_Union[ProbeSteps, _Mapping]] = ..., hash_step: _Optional[int] = ..., restore_checkpoint: _Optional[str] = ...) -> None: ...

class SamplingMetadata(_message.Message):
    __slots__ = ["coupled", "edits", "logprobs", "min_p", "prompt_logprobs", "seed", "temperature", "top_k", "top_p", "typical_p"]
    COUPLED_FIELD_NUMBER: _ClassVar[int]
    EDITS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    coupled: bool
    edits: SequenceLogitEdits
    logprobs: int
    min_p: float
    prompt_logprobs: int
    seed: int
    temperature: float
    top_k: int
    top_p: float
    typical_p: float
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., seed: _Optional[int] = ..., min_p: _Optional[float] = ..., typical_p: _Optional[float] = ..., coupled: bool = ..., edits: _Optional[_Union[SequenceLogitEdits, _Mapping]] = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ...) -> None: ...

class SequenceLogitEdits(_message.Message):
    __slots__ = ["bias_tokens", "biases", "penalties", "penalty_tokens", "permitted", "repetition_penalty"]
    BIASES_FIELD_NUMBER: _ClassVar[int]
    BIAS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PENALTIES_FIELD_NUMBER: _ClassVar[int]
    PENALTY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PERMITTED_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    bias_tokens: _containers.RepeatedScalarFieldContainer[int]
    biases: _containers.RepeatedScalarFieldContainer[float]
    penalties: _containers.RepeatedScalarFieldContainer[float]
    penalty_tokens: _containers.RepeatedScalarFieldContainer[int]
    permitted: int
    repetition_penalty: float
    def __init__(self, permitted: _Optional[int] = ..., bias_tokens: _Optional[_Iterable[int]] = ..., biases: _Optional[_Iterable[float]] = ..., repetition_penalty: _Optional[float] = ..., penalty_tokens: _Optional[_Iterable[int]] = ..., penalties: _Optional[_Iterable[float]] = ...) -> None: ...

class ServingLimits(_message.Message):
    __slots__ = ["adapters", "hidden", "kv_slots", "max_ancestor_slots", "max_context_slots", "max_output_rows", "max_positions", "max_rows", "max_sequences", "vocabulary"]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    KV_SLOTS_FIELD_NUMBER: _ClassVar[int]
    MAX_ANCESTOR_SLOTS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_SLOTS_FIELD_NUMBER: _ClassVar[int]
    MAX_OUTPUT_ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_ROWS_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    adapters: int
    hidden: int
    kv_slots: int
    max_ancestor_slots: int
    max_context_slots: int
    max_output_rows: int
    max_positions: int
    max_rows: int
    max_sequences: int
    vocabulary: int
    def __init__(self, vocabulary: _Optional[int] = ..., kv_slots: _Optional[int] = ..., max_rows: _Optional[int] = ..., max_output_rows: _Optional[int] = ..., max_sequences: _Optional[int] = ..., max_context_slots: _Optional[int] = ..., max_ancestor_slots: _Optional[int] = ..., max_positions: _Optional[int] = ..., adapters: _Optional[int] = ..., hidden: _Optional[int] = ...) -> None: ...

class ServingResult(_message.Message):
    __slots__ = ["choice_counts", "choice_probabilities", "choice_tokens", "hidden", "logits", "logprobs", "more", "number", "refused"]
    CHOICE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    CHOICE_PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    CHOICE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    choice_counts: _containers.RepeatedScalarFieldContainer[int]
    choice_probabilities: _containers.RepeatedScalarFieldContainer[float]
    choice_tokens: _containers.RepeatedScalarFieldContainer[int]
    hidden: bytes
    logits: bytes
    logprobs: _containers.RepeatedCompositeFieldContainer[RowLogprobs]
    more: bool
    number: int
    refused: str
    def __init__(self, number: _Optional[int] = ..., logits: _Optional[bytes] = ..., more: bool = ..., refused: _Optional[str] = ..., hidden: _Optional[bytes] = ..., choice_counts: _Optional[_Iterable[int]] = ..., choice_tokens: _Optional[_Iterable[int]] = ..., choice_probabilities: _Optional[_Iterable[float]] = ..., logprobs: _Optional[_Iterable[_Union[RowLogprobs, _Mapping]]] = ...) -> None: ...

class ServingStep(_message.Message):
    __slots__ = ["ancestor_slots", "ancestor_start", "attempt", "logit_rows", "next_prompt_tokens", "number", "positions", "row_adapter", "row_edits", "row_outputs", "row_prefix", "row_sequence", "sequence_sampling", "sequence_slots", "sequence_start", "slots", "token_sets", "tokens", "wants_hidden"]
    ANCESTOR_SLOTS_FIELD_NUMBER: _ClassVar[int]
    ANCESTOR_START_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LOGIT_ROWS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    ROW_ADAPTER_FIELD_NUMBER: _ClassVar[int]
    ROW_EDITS_FIELD_NUMBER: _ClassVar[int]
    ROW_OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    ROW_PREFIX_FIELD_NUMBER: _ClassVar[int]
    ROW_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_START_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_SETS_FIELD_NUMBER: _ClassVar[int]
    WANTS_HIDDEN_FIELD_NUMBER: _ClassVar[int]
    ancestor_slots: _containers.RepeatedScalarFieldContainer[int]
    ancestor_start: _containers.RepeatedScalarFieldContainer[int]
    attempt: Attempt
    logit_rows: _containers.RepeatedScalarFieldContainer[int]
    next_prompt_tokens: _containers.RepeatedScalarFieldContainer[int]
    number: int
    positions: _containers.RepeatedScalarFieldContainer[int]
    row_adapter: _containers.RepeatedScalarFieldContainer[int]
    row_edits: _containers.RepeatedCompositeFieldContainer[RowLogitEdits]
    row_outputs: _containers.RepeatedScalarFieldContainer[int]
    row_prefix: _containers.RepeatedScalarFieldContainer[int]
    row_sequence: _containers.RepeatedScalarFieldContainer[int]
    sequence_sampling: _containers.RepeatedCompositeFieldContainer[SamplingMetadata]
    sequence_slots: _containers.RepeatedScalarFieldContainer[int]
    sequence_start: _containers.RepeatedScalarFieldContainer[int]
    slots: _containers.RepeatedScalarFieldContainer[int]
    token_sets: _containers.RepeatedScalarFieldContainer[bytes]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    wants_hidden: bool
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., number: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ..., positions: _Optional[_Iterable[int]] = ..., slots: _Optional[_Iterable[int]] = ..., row_sequence: _Optional[_Iterable[int]] = ..., row_prefix: _Optional[_Iterable[int]] = ..., ancestor_start: _Optional[_Iterable[int]] = ..., ancestor_slots: _Optional[_Iterable[int]] = ..., sequence_start: _Optional[_Iterable[int]] = ..., sequence_slots: _Optional[_Iterable[int]] = ..., logit_rows: _Optional[_Iterable[int]] = ..., row_adapter: _Optional[_Iterable[int]] = ..., wants_hidden: bool = ..., row_outputs: _Optional[_Iterable[int]] = ..., sequence_sampling: _Optional[_Iterable[_Union[SamplingMetadata, _Mapping]]] = ..., next_prompt_tokens: _Optional[_Iterable[int]] = ..., row_edits: _Optional[_Iterable[_Union[RowLogitEdits, _Mapping]]] = ..., token_sets: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ShardPeer(_message.Message):
    __slots__ = ["address", "certificate", "key"]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    address: str
    certificate: str
    key: str
    def __init__(self, address: _Optional[str] = ..., key: _Optional[str] = ..., certificate: _Optional[str] = ...) -> None: ...

class ShardSources(_message.Message):
    __slots__ = ["own_disk", "peers", "store"]
    OWN_DISK_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    own_disk: int
    peers: int
    store: int
    def __init__(self, own_disk: _Optional[int] = ..., peers: _Optional[int] = ..., store: _Optional[int] = ...) -> None: ...

class StartServingReply(_message.Message):
    __slots__ = ["peak_bytes"]
    PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    peak_bytes: int
    def __init__(self, peak_bytes: _Optional[int] = ...) -> None: ...

class StartServingRequest(_message.Message):
    __slots__ = ["adapter_folders", "adapters", "attempt", "folder", "ignored_tensors", "limits", "peer_timeout_seconds", "program", "rendezvous_timeout_seconds", "weights"]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FOLDERS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    IGNORED_TENSORS_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    PEER_TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PROGRAM_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    adapter_folders: _containers.RepeatedScalarFieldContainer[str]
    adapters: _containers.RepeatedCompositeFieldContainer[AdapterParameter]
    attempt: Attempt
    folder: str
    ignored_tensors: _containers.RepeatedScalarFieldContainer[str]
    limits: ServingLimits
    peer_timeout_seconds: float
    program: _program_pb2.Program
    rendezvous_timeout_seconds: float
    weights: _containers.RepeatedCompositeFieldContainer[Weight]
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ..., program: _Optional[_Union[_program_pb2.Program, _Mapping]] = ..., folder: _Optional[str] = ..., weights: _Optional[_Iterable[_Union[Weight, _Mapping]]] = ..., ignored_tensors: _Optional[_Iterable[str]] = ..., limits: _Optional[_Union[ServingLimits, _Mapping]] = ..., peer_timeout_seconds: _Optional[float] = ..., adapter_folders: _Optional[_Iterable[str]] = ..., adapters: _Optional[_Iterable[_Union[AdapterParameter, _Mapping]]] = ..., rendezvous_timeout_seconds: _Optional[float] = ...) -> None: ...

class StopReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class StopRequest(_message.Message):
    __slots__ = ["attempt"]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    attempt: Attempt
    def __init__(self, attempt: _Optional[_Union[Attempt, _Mapping]] = ...) -> None: ...

class StreamPart(_message.Message):
    __slots__ = ["end_step", "first_step", "path"]
    END_STEP_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    end_step: int
    first_step: int
    path: str
    def __init__(self, first_step: _Optional[int] = ..., end_step: _Optional[int] = ..., path: _Optional[str] = ...) -> None: ...

class Weight(_message.Message):
    __slots__ = ["add", "bits", "out", "packed", "parameter", "pieces"]
    ADD_FIELD_NUMBER: _ClassVar[int]
    BITS_FIELD_NUMBER: _ClassVar[int]
    IN_FIELD_NUMBER: _ClassVar[int]
    OUT_FIELD_NUMBER: _ClassVar[int]
    PACKED_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    add: float
    bits: int
    out: int
    packed: bool
    parameter: str
    pieces: _containers.RepeatedCompositeFieldContainer[WeightSlice]
    def __init__(self, parameter: _Optional[str] = ..., pieces: _Optional[_Iterable[_Union[WeightSlice, _Mapping]]] = ..., add: _Optional[float] = ..., bits: _Optional[int] = ..., out: _Optional[int] = ..., packed: bool = ..., **kwargs) -> None: ...

class WeightSlice(_message.Message):
    __slots__ = ["begin", "dims", "end", "tensor", "transposed"]
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    TRANSPOSED_FIELD_NUMBER: _ClassVar[int]
    begin: int
    dims: _containers.RepeatedScalarFieldContainer[int]
    end: int
    tensor: str
    transposed: bool
    def __init__(self, tensor: _Optional[str] = ..., dims: _Optional[_Iterable[int]] = ..., transposed: bool = ..., begin: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...
