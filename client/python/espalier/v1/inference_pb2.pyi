from espalier.v1 import graph_pb2 as _graph_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
SPECULATION_DEFAULT: Speculation
SPECULATION_OFF: Speculation
SPECULATION_ON: Speculation
TOOL_CHOICE_AUTO: ToolChoice
TOOL_CHOICE_NAMED: ToolChoice
TOOL_CHOICE_NONE: ToolChoice
TOOL_CHOICE_REQUIRED: ToolChoice

class CancelGenerateReply(_message.Message):
    __slots__ = ["found"]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: bool = ...) -> None: ...

class CancelGenerateRequest(_message.Message):
    __slots__ = ["request_id"]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class ChatPrompt(_message.Message):
    __slots__ = ["add_special_tokens", "continue_final_message", "named_tool", "no_generation_prompt", "reasoning_effort", "reasoning_in_text", "single_tool_call", "template_arguments", "thinking_token_budget", "tool_choice", "tools", "turns"]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CONTINUE_FINAL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NAMED_TOOL_FIELD_NUMBER: _ClassVar[int]
    NO_GENERATION_PROMPT_FIELD_NUMBER: _ClassVar[int]
    REASONING_EFFORT_FIELD_NUMBER: _ClassVar[int]
    REASONING_IN_TEXT_FIELD_NUMBER: _ClassVar[int]
    SINGLE_TOOL_CALL_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    THINKING_TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    add_special_tokens: bool
    continue_final_message: bool
    named_tool: str
    no_generation_prompt: bool
    reasoning_effort: str
    reasoning_in_text: bool
    single_tool_call: bool
    template_arguments: str
    thinking_token_budget: int
    tool_choice: ToolChoice
    tools: _containers.RepeatedScalarFieldContainer[str]
    turns: _containers.RepeatedCompositeFieldContainer[ChatTurn]
    def __init__(self, turns: _Optional[_Iterable[_Union[ChatTurn, _Mapping]]] = ..., tools: _Optional[_Iterable[str]] = ..., template_arguments: _Optional[str] = ..., continue_final_message: bool = ..., tool_choice: _Optional[_Union[ToolChoice, str]] = ..., named_tool: _Optional[str] = ..., single_tool_call: bool = ..., reasoning_in_text: bool = ..., reasoning_effort: _Optional[str] = ..., thinking_token_budget: _Optional[int] = ..., no_generation_prompt: bool = ..., add_special_tokens: bool = ...) -> None: ...

class ChatTurn(_message.Message):
    __slots__ = ["content", "name", "reasoning", "role", "tool_call_id", "tool_calls"]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    content: str
    name: str
    reasoning: str
    role: str
    tool_call_id: str
    tool_calls: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., name: _Optional[str] = ..., tool_calls: _Optional[str] = ..., tool_call_id: _Optional[str] = ..., reasoning: _Optional[str] = ...) -> None: ...

class ChoiceList(_message.Message):
    __slots__ = ["texts"]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, texts: _Optional[_Iterable[str]] = ...) -> None: ...

class DetokenizeReply(_message.Message):
    __slots__ = ["text"]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ["model", "tokens"]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model: _Optional[str] = ..., tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class EmbedInput(_message.Message):
    __slots__ = ["text", "tokens"]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    text: str
    tokens: TokenList
    def __init__(self, text: _Optional[str] = ..., tokens: _Optional[_Union[TokenList, _Mapping]] = ...) -> None: ...

class EmbedReply(_message.Message):
    __slots__ = ["embeddings", "usage"]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    embeddings: _containers.RepeatedCompositeFieldContainer[Embedding]
    usage: Usage
    def __init__(self, embeddings: _Optional[_Iterable[_Union[Embedding, _Mapping]]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ["cache_salt", "dimensions", "inputs", "model", "no_normalization", "no_special_tokens", "priority", "request_id", "timeout_seconds", "truncate", "truncate_prompt_tokens"]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NO_NORMALIZATION_FIELD_NUMBER: _ClassVar[int]
    NO_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    cache_salt: str
    dimensions: int
    inputs: _containers.RepeatedCompositeFieldContainer[EmbedInput]
    model: str
    no_normalization: bool
    no_special_tokens: bool
    priority: int
    request_id: str
    timeout_seconds: float
    truncate: bool
    truncate_prompt_tokens: int
    def __init__(self, model: _Optional[str] = ..., inputs: _Optional[_Iterable[_Union[EmbedInput, _Mapping]]] = ..., no_normalization: bool = ..., dimensions: _Optional[int] = ..., truncate: bool = ..., request_id: _Optional[str] = ..., no_special_tokens: bool = ..., truncate_prompt_tokens: _Optional[int] = ..., priority: _Optional[int] = ..., timeout_seconds: _Optional[float] = ..., cache_salt: _Optional[str] = ...) -> None: ...

class Embedding(_message.Message):
    __slots__ = ["values"]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class GenerateReply(_message.Message):
    __slots__ = ["finish_reason", "index", "logprobs", "prompt_logprobs", "prompt_tokens", "reasoning", "request_id", "stop_string", "stop_token", "text", "tokens", "tool_calls", "usage"]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STOP_STRING_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    finish_reason: str
    index: int
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    prompt_tokens: _containers.RepeatedScalarFieldContainer[int]
    reasoning: str
    request_id: str
    stop_string: str
    stop_token: int
    text: str
    tokens: _containers.RepeatedScalarFieldContainer[int]
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    usage: Usage
    def __init__(self, request_id: _Optional[str] = ..., text: _Optional[str] = ..., tokens: _Optional[_Iterable[int]] = ..., finish_reason: _Optional[str] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., index: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., stop_token: _Optional[int] = ..., stop_string: _Optional[str] = ..., reasoning: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., prompt_tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ["adapter", "best_of", "cache_salt", "chat", "echo", "ignore_eos", "include_stop", "logprobs", "max_tokens", "model", "n", "no_special_tokens", "priority", "prompt_logprobs", "prompt_only", "request_id", "return_prompt_tokens", "sampling", "show_special_tokens", "speculation", "stop", "stop_token_ids", "structured_output", "text", "timeout_seconds", "tokens", "truncate_prompt_tokens"]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    BEST_OF_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    ECHO_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NO_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_ONLY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RETURN_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SHOW_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    STRUCTURED_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    adapter: str
    best_of: int
    cache_salt: str
    chat: ChatPrompt
    echo: bool
    ignore_eos: bool
    include_stop: bool
    logprobs: int
    max_tokens: int
    model: str
    n: int
    no_special_tokens: bool
    priority: int
    prompt_logprobs: int
    prompt_only: bool
    request_id: str
    return_prompt_tokens: bool
    sampling: SamplingOptions
    show_special_tokens: bool
    speculation: Speculation
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    structured_output: StructuredOutput
    text: str
    timeout_seconds: float
    tokens: TokenList
    truncate_prompt_tokens: int
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., tokens: _Optional[_Union[TokenList, _Mapping]] = ..., chat: _Optional[_Union[ChatPrompt, _Mapping]] = ..., max_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., sampling: _Optional[_Union[SamplingOptions, _Mapping]] = ..., speculation: _Optional[_Union[Speculation, str]] = ..., ignore_eos: bool = ..., request_id: _Optional[str] = ..., n: _Optional[int] = ..., best_of: _Optional[int] = ..., logprobs: _Optional[int] = ..., prompt_logprobs: _Optional[int] = ..., echo: bool = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., include_stop: bool = ..., structured_output: _Optional[_Union[StructuredOutput, _Mapping]] = ..., priority: _Optional[int] = ..., timeout_seconds: _Optional[float] = ..., truncate_prompt_tokens: _Optional[int] = ..., show_special_tokens: bool = ..., no_special_tokens: bool = ..., prompt_only: bool = ..., adapter: _Optional[str] = ..., return_prompt_tokens: bool = ..., cache_salt: _Optional[str] = ...) -> None: ...

class GraphBatching(_message.Message):
    __slots__ = ["max_batch_size", "max_queue_delay_microseconds"]
    MAX_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_DELAY_MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    max_batch_size: int
    max_queue_delay_microseconds: int
    def __init__(self, max_batch_size: _Optional[int] = ..., max_queue_delay_microseconds: _Optional[int] = ...) -> None: ...

class GraphTensor(_message.Message):
    __slots__ = ["example", "name"]
    EXAMPLE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    example: _graph_pb2.TensorType
    name: str
    def __init__(self, name: _Optional[str] = ..., example: _Optional[_Union[_graph_pb2.TensorType, _Mapping]] = ...) -> None: ...

class ListServedReply(_message.Message):
    __slots__ = ["models"]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ServedModel]
    def __init__(self, models: _Optional[_Iterable[_Union[ServedModel, _Mapping]]] = ...) -> None: ...

class ListServedRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class LoraAdapter(_message.Message):
    __slots__ = ["artifact", "name"]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    artifact: str
    name: str
    def __init__(self, name: _Optional[str] = ..., artifact: _Optional[str] = ...) -> None: ...

class LosslessCheck(_message.Message):
    __slots__ = ["cases", "detail", "name", "passed"]
    CASES_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    cases: int
    detail: str
    name: str
    passed: bool
    def __init__(self, name: _Optional[str] = ..., passed: bool = ..., cases: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...

class LosslessProgress(_message.Message):
    __slots__ = ["done", "stage", "total"]
    DONE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    done: int
    stage: str
    total: int
    def __init__(self, stage: _Optional[str] = ..., done: _Optional[int] = ..., total: _Optional[int] = ...) -> None: ...

class LosslessReport(_message.Message):
    __slots__ = ["accepted_per_step", "checks", "models", "passed", "seconds", "smallest_margin"]
    ACCEPTED_PER_STEP_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    PASSED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SMALLEST_MARGIN_FIELD_NUMBER: _ClassVar[int]
    accepted_per_step: float
    checks: _containers.RepeatedCompositeFieldContainer[LosslessCheck]
    models: ServedModel
    passed: bool
    seconds: float
    smallest_margin: float
    def __init__(self, passed: bool = ..., checks: _Optional[_Iterable[_Union[LosslessCheck, _Mapping]]] = ..., smallest_margin: _Optional[float] = ..., accepted_per_step: _Optional[float] = ..., models: _Optional[_Union[ServedModel, _Mapping]] = ..., seconds: _Optional[float] = ...) -> None: ...

class ModelPlacement(_message.Message):
    __slots__ = ["draft_tokens", "pipeline_parallel", "state", "tensor_parallel", "workers"]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    draft_tokens: int
    pipeline_parallel: int
    state: str
    tensor_parallel: int
    workers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tensor_parallel: _Optional[int] = ..., pipeline_parallel: _Optional[int] = ..., workers: _Optional[_Iterable[str]] = ..., state: _Optional[str] = ..., draft_tokens: _Optional[int] = ...) -> None: ...

class PlacementCandidate(_message.Message):
    __slots__ = ["chosen", "concurrent_steps", "draft_seconds", "llm", "llm_seconds", "peak_device_bytes", "refused", "ssms", "tokens_per_second"]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    CONCURRENT_STEPS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LLM_FIELD_NUMBER: _ClassVar[int]
    LLM_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PEAK_DEVICE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    SSMS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    chosen: bool
    concurrent_steps: int
    draft_seconds: float
    llm: ModelPlacement
    llm_seconds: float
    peak_device_bytes: int
    refused: str
    ssms: _containers.RepeatedCompositeFieldContainer[ModelPlacement]
    tokens_per_second: float
    def __init__(self, llm: _Optional[_Union[ModelPlacement, _Mapping]] = ..., ssms: _Optional[_Iterable[_Union[ModelPlacement, _Mapping]]] = ..., llm_seconds: _Optional[float] = ..., draft_seconds: _Optional[float] = ..., tokens_per_second: _Optional[float] = ..., peak_device_bytes: _Optional[int] = ..., refused: _Optional[str] = ..., chosen: bool = ..., concurrent_steps: _Optional[int] = ...) -> None: ...

class SamplingOptions(_message.Message):
    __slots__ = ["allowed_token_ids", "bad_words", "frequency_penalty", "has_seed", "logit_bias", "min_p", "min_tokens", "presence_penalty", "repetition_penalty", "seed", "temperature", "top_k", "top_p", "typical_p"]
    class LogitBiasEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    HAS_SEED_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TYPICAL_P_FIELD_NUMBER: _ClassVar[int]
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bad_words: _containers.RepeatedScalarFieldContainer[str]
    frequency_penalty: float
    has_seed: bool
    logit_bias: _containers.ScalarMap[int, float]
    min_p: float
    min_tokens: int
    presence_penalty: float
    repetition_penalty: float
    seed: int
    temperature: float
    top_k: int
    top_p: float
    typical_p: float
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., seed: _Optional[int] = ..., has_seed: bool = ..., min_p: _Optional[float] = ..., typical_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., bad_words: _Optional[_Iterable[str]] = ..., min_tokens: _Optional[int] = ...) -> None: ...

class ServeModelReply(_message.Message):
    __slots__ = ["model"]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: ServedModel
    def __init__(self, model: _Optional[_Union[ServedModel, _Mapping]] = ...) -> None: ...

class ServeModelRequest(_message.Message):
    __slots__ = ["adapters", "artifact", "chat_template", "chosen", "concurrent_steps", "expansion", "expected_requests", "fitted_kv_cache_tokens", "generation_config", "graph", "idempotency_key", "kv_cache", "kv_cache_tokens", "max_queue", "max_requests_per_batch", "max_sequence_length", "max_tokens_per_batch", "name", "ngram_depth", "no_prefix_cache", "owner", "pipeline_parallel", "resident_weight_bytes", "short_ssms", "ssm_artifacts", "ssm_pipeline_parallel", "ssm_tensor_parallel", "ssm_weights", "tensor_parallel", "tune_speculation", "versions", "weights", "workers"]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    CONCURRENT_STEPS_FIELD_NUMBER: _ClassVar[int]
    EXPANSION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    FITTED_KV_CACHE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_CONFIG_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_QUEUE_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUESTS_PER_BATCH_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_PER_BATCH_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NGRAM_DEPTH_FIELD_NUMBER: _ClassVar[int]
    NO_PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHORT_SSMS_FIELD_NUMBER: _ClassVar[int]
    SSM_ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    SSM_PIPELINE_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    SSM_TENSOR_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    SSM_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    TUNE_SPECULATION_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    adapters: _containers.RepeatedCompositeFieldContainer[LoraAdapter]
    artifact: str
    chat_template: str
    chosen: _containers.RepeatedCompositeFieldContainer[ModelPlacement]
    concurrent_steps: int
    expansion: _containers.RepeatedScalarFieldContainer[int]
    expected_requests: int
    fitted_kv_cache_tokens: int
    generation_config: str
    graph: GraphBatching
    idempotency_key: str
    kv_cache: str
    kv_cache_tokens: int
    max_queue: int
    max_requests_per_batch: int
    max_sequence_length: int
    max_tokens_per_batch: int
    name: str
    ngram_depth: int
    no_prefix_cache: bool
    owner: str
    pipeline_parallel: int
    resident_weight_bytes: int
    short_ssms: bool
    ssm_artifacts: _containers.RepeatedScalarFieldContainer[str]
    ssm_pipeline_parallel: int
    ssm_tensor_parallel: int
    ssm_weights: str
    tensor_parallel: int
    tune_speculation: bool
    versions: _containers.RepeatedScalarFieldContainer[str]
    weights: str
    workers: str
    def __init__(self, name: _Optional[str] = ..., artifact: _Optional[str] = ..., ssm_artifacts: _Optional[_Iterable[str]] = ..., expansion: _Optional[_Iterable[int]] = ..., max_sequence_length: _Optional[int] = ..., max_requests_per_batch: _Optional[int] = ..., max_tokens_per_batch: _Optional[int] = ..., max_queue: _Optional[int] = ..., idempotency_key: _Optional[str] = ..., weights: _Optional[str] = ..., ssm_weights: _Optional[str] = ..., tune_speculation: bool = ..., ngram_depth: _Optional[int] = ..., no_prefix_cache: bool = ..., kv_cache: _Optional[str] = ..., resident_weight_bytes: _Optional[int] = ..., adapters: _Optional[_Iterable[_Union[LoraAdapter, _Mapping]]] = ..., tensor_parallel: _Optional[int] = ..., pipeline_parallel: _Optional[int] = ..., generation_config: _Optional[str] = ..., ssm_tensor_parallel: _Optional[int] = ..., ssm_pipeline_parallel: _Optional[int] = ..., workers: _Optional[str] = ..., expected_requests: _Optional[int] = ..., chosen: _Optional[_Iterable[_Union[ModelPlacement, _Mapping]]] = ..., concurrent_steps: _Optional[int] = ..., chat_template: _Optional[str] = ..., kv_cache_tokens: _Optional[int] = ..., fitted_kv_cache_tokens: _Optional[int] = ..., short_ssms: bool = ..., graph: _Optional[_Union[GraphBatching, _Mapping]] = ..., owner: _Optional[str] = ..., versions: _Optional[_Iterable[str]] = ...) -> None: ...

class ServedGraph(_message.Message):
    __slots__ = ["batching", "inputs", "notes", "outputs"]
    BATCHING_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    batching: GraphBatching
    inputs: _containers.RepeatedCompositeFieldContainer[GraphTensor]
    notes: _containers.RepeatedScalarFieldContainer[str]
    outputs: _containers.RepeatedCompositeFieldContainer[GraphTensor]
    def __init__(self, inputs: _Optional[_Iterable[_Union[GraphTensor, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[GraphTensor, _Mapping]]] = ..., batching: _Optional[_Union[GraphBatching, _Mapping]] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class ServedModel(_message.Message):
    __slots__ = ["adapters", "artifact", "artifact_version", "candidates", "concurrent_steps", "embeddings", "expansion", "generation_config", "graph", "ignored_generation_fields", "kv_cache", "kv_cache_tokens", "loaded_unix_ms", "max_sequence_length", "name", "ngram_depth", "no_prefix_cache", "owner", "parameters", "pipeline_parallel", "resident_weight_bytes", "sampling_defaults", "ssm_artifacts", "ssm_placements", "ssm_weights", "state", "tensor_parallel", "tune_speculation", "vocabulary", "weights", "workers"]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    CONCURRENT_STEPS_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    EXPANSION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_CONFIG_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    IGNORED_GENERATION_FIELDS_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_FIELD_NUMBER: _ClassVar[int]
    KV_CACHE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LOADED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_SEQUENCE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NGRAM_DEPTH_FIELD_NUMBER: _ClassVar[int]
    NO_PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    PIPELINE_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    RESIDENT_WEIGHT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    SSM_ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    SSM_PLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    SSM_WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_FIELD_NUMBER: _ClassVar[int]
    TUNE_SPECULATION_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    adapters: _containers.RepeatedCompositeFieldContainer[LoraAdapter]
    artifact: str
    artifact_version: str
    candidates: _containers.RepeatedCompositeFieldContainer[PlacementCandidate]
    concurrent_steps: int
    embeddings: bool
    expansion: _containers.RepeatedScalarFieldContainer[int]
    generation_config: str
    graph: ServedGraph
    ignored_generation_fields: _containers.RepeatedScalarFieldContainer[str]
    kv_cache: str
    kv_cache_tokens: int
    loaded_unix_ms: int
    max_sequence_length: int
    name: str
    ngram_depth: int
    no_prefix_cache: bool
    owner: str
    parameters: int
    pipeline_parallel: int
    resident_weight_bytes: int
    sampling_defaults: SamplingOptions
    ssm_artifacts: _containers.RepeatedScalarFieldContainer[str]
    ssm_placements: _containers.RepeatedCompositeFieldContainer[ModelPlacement]
    ssm_weights: str
    state: str
    tensor_parallel: int
    tune_speculation: bool
    vocabulary: int
    weights: str
    workers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., artifact: _Optional[str] = ..., ssm_artifacts: _Optional[_Iterable[str]] = ..., expansion: _Optional[_Iterable[int]] = ..., parameters: _Optional[int] = ..., max_sequence_length: _Optional[int] = ..., vocabulary: _Optional[int] = ..., loaded_unix_ms: _Optional[int] = ..., weights: _Optional[str] = ..., ssm_weights: _Optional[str] = ..., tune_speculation: bool = ..., ngram_depth: _Optional[int] = ..., no_prefix_cache: bool = ..., kv_cache: _Optional[str] = ..., resident_weight_bytes: _Optional[int] = ..., adapters: _Optional[_Iterable[_Union[LoraAdapter, _Mapping]]] = ..., tensor_parallel: _Optional[int] = ..., pipeline_parallel: _Optional[int] = ..., workers: _Optional[_Iterable[str]] = ..., embeddings: bool = ..., state: _Optional[str] = ..., generation_config: _Optional[str] = ..., sampling_defaults: _Optional[_Union[SamplingOptions, _Mapping]] = ..., ssm_placements: _Optional[_Iterable[_Union[ModelPlacement, _Mapping]]] = ..., candidates: _Optional[_Iterable[_Union[PlacementCandidate, _Mapping]]] = ..., concurrent_steps: _Optional[int] = ..., kv_cache_tokens: _Optional[int] = ..., ignored_generation_fields: _Optional[_Iterable[str]] = ..., graph: _Optional[_Union[ServedGraph, _Mapping]] = ..., owner: _Optional[str] = ..., artifact_version: _Optional[str] = ...) -> None: ...

class StructuralTag(_message.Message):
    __slots__ = ["format", "structures", "triggers"]
    class Structure(_message.Message):
        __slots__ = ["begin", "end", "json_schema"]
        BEGIN_FIELD_NUMBER: _ClassVar[int]
        END_FIELD_NUMBER: _ClassVar[int]
        JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
        begin: str
        end: str
        json_schema: str
        def __init__(self, begin: _Optional[str] = ..., json_schema: _Optional[str] = ..., end: _Optional[str] = ...) -> None: ...
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    STRUCTURES_FIELD_NUMBER: _ClassVar[int]
    TRIGGERS_FIELD_NUMBER: _ClassVar[int]
    format: str
    structures: _containers.RepeatedCompositeFieldContainer[StructuralTag.Structure]
    triggers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, structures: _Optional[_Iterable[_Union[StructuralTag.Structure, _Mapping]]] = ..., triggers: _Optional[_Iterable[str]] = ..., format: _Optional[str] = ...) -> None: ...

class StructuredOutput(_message.Message):
    __slots__ = ["choice", "grammar", "json_object", "json_schema", "regex", "structural_tag"]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    STRUCTURAL_TAG_FIELD_NUMBER: _ClassVar[int]
    choice: ChoiceList
    grammar: str
    json_object: bool
    json_schema: str
    regex: str
    structural_tag: StructuralTag
    def __init__(self, regex: _Optional[str] = ..., json_schema: _Optional[str] = ..., json_object: bool = ..., grammar: _Optional[str] = ..., choice: _Optional[_Union[ChoiceList, _Mapping]] = ..., structural_tag: _Optional[_Union[StructuralTag, _Mapping]] = ...) -> None: ...

class TokenList(_message.Message):
    __slots__ = ["ids"]
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ["logprob", "rank", "text", "token", "top"]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    rank: int
    text: bytes
    token: int
    top: _containers.RepeatedCompositeFieldContainer[TopLogprob]
    def __init__(self, token: _Optional[int] = ..., logprob: _Optional[float] = ..., text: _Optional[bytes] = ..., top: _Optional[_Iterable[_Union[TopLogprob, _Mapping]]] = ..., rank: _Optional[int] = ...) -> None: ...

class TokenizeReply(_message.Message):
    __slots__ = ["count", "max_model_len", "token_strings", "tokens"]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_MODEL_LEN_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_STRINGS_FIELD_NUMBER: _ClassVar[int]
    count: int
    max_model_len: int
    token_strings: _containers.RepeatedScalarFieldContainer[bytes]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., count: _Optional[int] = ..., max_model_len: _Optional[int] = ..., token_strings: _Optional[_Iterable[bytes]] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ["chat", "model", "no_special_tokens", "return_token_strings", "text"]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NO_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    RETURN_TOKEN_STRINGS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    chat: ChatPrompt
    model: str
    no_special_tokens: bool
    return_token_strings: bool
    text: str
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., chat: _Optional[_Union[ChatPrompt, _Mapping]] = ..., no_special_tokens: bool = ..., return_token_strings: bool = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ["arguments", "id", "index", "name", "text_before"]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_BEFORE_FIELD_NUMBER: _ClassVar[int]
    arguments: str
    id: str
    index: int
    name: str
    text_before: int
    def __init__(self, index: _Optional[int] = ..., id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ..., text_before: _Optional[int] = ...) -> None: ...

class TopLogprob(_message.Message):
    __slots__ = ["logprob", "text", "token"]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    text: bytes
    token: int
    def __init__(self, token: _Optional[int] = ..., logprob: _Optional[float] = ..., text: _Optional[bytes] = ...) -> None: ...

class UnserveModelReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class UnserveModelRequest(_message.Message):
    __slots__ = ["idempotency_key", "name"]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    idempotency_key: str
    name: str
    def __init__(self, name: _Optional[str] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ["accepted_tokens", "cached_tokens", "completion_tokens", "drafted_tokens", "prompt_tokens", "reasoning_tokens", "seconds", "seconds_queued", "seconds_to_first_token", "verification_steps"]
    ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_QUEUED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    VERIFICATION_STEPS_FIELD_NUMBER: _ClassVar[int]
    accepted_tokens: int
    cached_tokens: int
    completion_tokens: int
    drafted_tokens: int
    prompt_tokens: int
    reasoning_tokens: int
    seconds: float
    seconds_queued: float
    seconds_to_first_token: float
    verification_steps: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., drafted_tokens: _Optional[int] = ..., accepted_tokens: _Optional[int] = ..., verification_steps: _Optional[int] = ..., seconds_to_first_token: _Optional[float] = ..., seconds: _Optional[float] = ..., seconds_queued: _Optional[float] = ..., cached_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ...) -> None: ...

class VerifyLosslessReply(_message.Message):
    __slots__ = ["progress", "report"]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    progress: LosslessProgress
    report: LosslessReport
    def __init__(self, progress: _Optional[_Union[LosslessProgress, _Mapping]] = ..., report: _Optional[_Union[LosslessReport, _Mapping]] = ...) -> None: ...

class VerifyLosslessRequest(_message.Message):
    __slots__ = ["answer_tokens", "distribution_tokens", "distribution_top_k", "draws", "models", "prompts", "temperature"]
    ANSWER_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DISTRIBUTION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DISTRIBUTION_TOP_K_FIELD_NUMBER: _ClassVar[int]
    DRAWS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    answer_tokens: int
    distribution_tokens: int
    distribution_top_k: int
    draws: int
    models: ServeModelRequest
    prompts: _containers.RepeatedScalarFieldContainer[str]
    temperature: float
    def __init__(self, models: _Optional[_Union[ServeModelRequest, _Mapping]] = ..., prompts: _Optional[_Iterable[str]] = ..., answer_tokens: _Optional[int] = ..., draws: _Optional[int] = ..., distribution_tokens: _Optional[int] = ..., distribution_top_k: _Optional[int] = ..., temperature: _Optional[float] = ...) -> None: ...

class Speculation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []

class ToolChoice(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
