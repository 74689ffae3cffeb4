from espalier.v1 import program_pb2 as _program_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
DISTILLATION_CANCELLED: DistillationState
DISTILLATION_FAILED: DistillationState
DISTILLATION_QUEUED: DistillationState
DISTILLATION_RUNNING: DistillationState
DISTILLATION_STATE_UNSPECIFIED: DistillationState
DISTILLATION_SUCCEEDED: DistillationState

class DistillationJob(_message.Message):
    __slots__ = ["after", "before", "created_unix_ms", "done", "error", "finished_unix_ms", "held_out", "id", "idempotency_key", "owner", "prompts", "request_sha256", "samples", "spec", "ssms", "stage", "state", "total"]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FINISHED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    HELD_OUT_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_SHA256_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    SSMS_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    after: DraftStatistics
    before: DraftStatistics
    created_unix_ms: int
    done: int
    error: str
    finished_unix_ms: int
    held_out: int
    id: str
    idempotency_key: str
    owner: str
    prompts: int
    request_sha256: str
    samples: int
    spec: DistillationSpec
    ssms: _containers.RepeatedCompositeFieldContainer[DistilledSsm]
    stage: str
    state: DistillationState
    total: int
    def __init__(self, id: _Optional[str] = ..., spec: _Optional[_Union[DistillationSpec, _Mapping]] = ..., state: _Optional[_Union[DistillationState, str]] = ..., error: _Optional[str] = ..., stage: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ..., prompts: _Optional[int] = ..., held_out: _Optional[int] = ..., samples: _Optional[int] = ..., ssms: _Optional[_Iterable[_Union[DistilledSsm, _Mapping]]] = ..., before: _Optional[_Union[DraftStatistics, _Mapping]] = ..., after: _Optional[_Union[DraftStatistics, _Mapping]] = ..., created_unix_ms: _Optional[int] = ..., finished_unix_ms: _Optional[int] = ..., idempotency_key: _Optional[str] = ..., request_sha256: _Optional[str] = ..., owner: _Optional[str] = ...) -> None: ...

class DistillationPrompt(_message.Message):
    __slots__ = ["continuation", "continued", "learned_by", "likely", "likely_probability", "prompt"]
    CONTINUATION_FIELD_NUMBER: _ClassVar[int]
    CONTINUED_FIELD_NUMBER: _ClassVar[int]
    LEARNED_BY_FIELD_NUMBER: _ClassVar[int]
    LIKELY_FIELD_NUMBER: _ClassVar[int]
    LIKELY_PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    continuation: _containers.RepeatedScalarFieldContainer[int]
    continued: bool
    learned_by: _containers.RepeatedScalarFieldContainer[int]
    likely: _containers.RepeatedScalarFieldContainer[int]
    likely_probability: _containers.RepeatedScalarFieldContainer[float]
    prompt: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, prompt: _Optional[_Iterable[int]] = ..., continuation: _Optional[_Iterable[int]] = ..., continued: bool = ..., learned_by: _Optional[_Iterable[int]] = ..., likely: _Optional[_Iterable[int]] = ..., likely_probability: _Optional[_Iterable[float]] = ...) -> None: ...

class DistillationPrompts(_message.Message):
    __slots__ = ["held_out", "prompts"]
    HELD_OUT_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    held_out: _containers.RepeatedCompositeFieldContainer[DistillationPrompt]
    prompts: _containers.RepeatedCompositeFieldContainer[DistillationPrompt]
    def __init__(self, prompts: _Optional[_Iterable[_Union[DistillationPrompt, _Mapping]]] = ..., held_out: _Optional[_Iterable[_Union[DistillationPrompt, _Mapping]]] = ...) -> None: ...

class DistillationRecords(_message.Message):
    __slots__ = ["jobs", "next_number"]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    NEXT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[DistillationJob]
    next_number: int
    def __init__(self, jobs: _Optional[_Iterable[_Union[DistillationJob, _Mapping]]] = ..., next_number: _Optional[int] = ...) -> None: ...

class DistillationReply(_message.Message):
    __slots__ = ["job"]
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: DistillationJob
    def __init__(self, job: _Optional[_Union[DistillationJob, _Mapping]] = ...) -> None: ...

class DistillationRequest(_message.Message):
    __slots__ = ["id"]
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class DistillationSpec(_message.Message):
    __slots__ = ["batch_size", "checkpoint_every_steps", "continuation_tokens", "epochs", "expansion", "holdout_fraction", "llm", "max_prompts", "name", "optimizer", "prompt_format", "prompt_tokens", "prompts", "sample_tokens", "seed", "soft_labels", "ssms", "steps", "temperature", "weights"]
    class PromptFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_EVERY_STEPS_FIELD_NUMBER: _ClassVar[int]
    CONTINUATION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    EXPANSION_FIELD_NUMBER: _ClassVar[int]
    HOLDOUT_FRACTION_FIELD_NUMBER: _ClassVar[int]
    LIST: DistillationSpec.PromptFormat
    LLM_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPTS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FORMAT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SOFT_LABELS_FIELD_NUMBER: _ClassVar[int]
    SSMS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TEXT: DistillationSpec.PromptFormat
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    batch_size: int
    checkpoint_every_steps: int
    continuation_tokens: int
    epochs: int
    expansion: _containers.RepeatedScalarFieldContainer[int]
    holdout_fraction: float
    llm: str
    max_prompts: int
    name: str
    optimizer: _program_pb2.Optimizer
    prompt_format: DistillationSpec.PromptFormat
    prompt_tokens: int
    prompts: str
    sample_tokens: int
    seed: int
    soft_labels: int
    ssms: _containers.RepeatedCompositeFieldContainer[DistillationStart]
    steps: int
    temperature: float
    weights: str
    def __init__(self, name: _Optional[str] = ..., llm: _Optional[str] = ..., weights: _Optional[str] = ..., ssms: _Optional[_Iterable[_Union[DistillationStart, _Mapping]]] = ..., prompts: _Optional[str] = ..., prompt_format: _Optional[_Union[DistillationSpec.PromptFormat, str]] = ..., prompt_tokens: _Optional[int] = ..., max_prompts: _Optional[int] = ..., holdout_fraction: _Optional[float] = ..., continuation_tokens: _Optional[int] = ..., sample_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., seed: _Optional[int] = ..., epochs: _Optional[int] = ..., steps: _Optional[int] = ..., batch_size: _Optional[int] = ..., optimizer: _Optional[_Union[_program_pb2.Optimizer, _Mapping]] = ..., checkpoint_every_steps: _Optional[int] = ..., expansion: _Optional[_Iterable[int]] = ..., soft_labels: _Optional[int] = ...) -> None: ...

class DistillationStart(_message.Message):
    __slots__ = ["artifact", "config"]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    artifact: str
    config: str
    def __init__(self, artifact: _Optional[str] = ..., config: _Optional[str] = ...) -> None: ...

class DistilledSsm(_message.Message):
    __slots__ = ["after", "before", "job_id", "learned", "output", "rows", "samples", "scored", "skipped", "trained"]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    LEARNED_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SCORED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    TRAINED_FIELD_NUMBER: _ClassVar[int]
    after: DraftStatistics
    before: DraftStatistics
    job_id: str
    learned: int
    output: str
    rows: int
    samples: int
    scored: bool
    skipped: bool
    trained: bool
    def __init__(self, output: _Optional[str] = ..., job_id: _Optional[str] = ..., samples: _Optional[int] = ..., rows: _Optional[int] = ..., learned: _Optional[int] = ..., trained: bool = ..., scored: bool = ..., skipped: bool = ..., before: _Optional[_Union[DraftStatistics, _Mapping]] = ..., after: _Optional[_Union[DraftStatistics, _Mapping]] = ...) -> None: ...

class DraftStatistics(_message.Message):
    __slots__ = ["accepted", "drafted", "tokens", "tokens_per_verification", "verifications"]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_VERIFICATION_FIELD_NUMBER: _ClassVar[int]
    VERIFICATIONS_FIELD_NUMBER: _ClassVar[int]
    accepted: int
    drafted: int
    tokens: int
    tokens_per_verification: float
    verifications: int
    def __init__(self, tokens: _Optional[int] = ..., verifications: _Optional[int] = ..., drafted: _Optional[int] = ..., accepted: _Optional[int] = ..., tokens_per_verification: _Optional[float] = ...) -> None: ...

class ListDistillationsReply(_message.Message):
    __slots__ = ["jobs"]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[DistillationJob]
    def __init__(self, jobs: _Optional[_Iterable[_Union[DistillationJob, _Mapping]]] = ...) -> None: ...

class ListDistillationsRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class SubmitDistillationRequest(_message.Message):
    __slots__ = ["idempotency_key", "spec"]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    idempotency_key: str
    spec: DistillationSpec
    def __init__(self, spec: _Optional[_Union[DistillationSpec, _Mapping]] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class DistillationState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
