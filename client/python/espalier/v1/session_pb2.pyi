from espalier.v1 import graph_pb2 as _graph_pb2
from espalier.v1 import plan_pb2 as _plan_pb2
from espalier.v1 import training_pb2 as _training_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor
SESSION_GRADIENT: SessionTensorKind
SESSION_OPTIMIZER_STATE: SessionTensorKind
SESSION_OUTPUT: SessionTensorKind
SESSION_PARAMETER: SessionTensorKind
SESSION_TENSOR_KIND_UNSPECIFIED: SessionTensorKind

class CloseSessionReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ["session_id"]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class ListSessionsReply(_message.Message):
    __slots__ = ["sessions"]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedCompositeFieldContainer[SessionInfo]
    def __init__(self, sessions: _Optional[_Iterable[_Union[SessionInfo, _Mapping]]] = ...) -> None: ...

class ListSessionsRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class OpenSessionReply(_message.Message):
    __slots__ = ["columns", "examples", "notes", "parameters", "plan", "session_id", "tensors"]
    class ColumnsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _graph_pb2.TensorType
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_graph_pb2.TensorType, _Mapping]] = ...) -> None: ...
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    columns: _containers.MessageMap[str, _graph_pb2.TensorType]
    examples: int
    notes: _containers.RepeatedScalarFieldContainer[str]
    parameters: int
    plan: _plan_pb2.Plan
    session_id: str
    tensors: _containers.RepeatedCompositeFieldContainer[SessionTensor]
    def __init__(self, session_id: _Optional[str] = ..., plan: _Optional[_Union[_plan_pb2.Plan, _Mapping]] = ..., tensors: _Optional[_Iterable[_Union[SessionTensor, _Mapping]]] = ..., columns: _Optional[_Mapping[str, _graph_pb2.TensorType]] = ..., parameters: _Optional[int] = ..., examples: _Optional[int] = ..., notes: _Optional[_Iterable[str]] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ["begin", "columns", "grace_seconds", "keep", "spec", "wait_seconds"]
    class ColumnsEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _graph_pb2.TensorType
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_graph_pb2.TensorType, _Mapping]] = ...) -> None: ...
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    begin: SessionProgress
    columns: _containers.MessageMap[str, _graph_pb2.TensorType]
    grace_seconds: float
    keep: _containers.RepeatedScalarFieldContainer[str]
    spec: _training_pb2.TrainingSpec
    wait_seconds: float
    def __init__(self, spec: _Optional[_Union[_training_pb2.TrainingSpec, _Mapping]] = ..., keep: _Optional[_Iterable[str]] = ..., grace_seconds: _Optional[float] = ..., wait_seconds: _Optional[float] = ..., columns: _Optional[_Mapping[str, _graph_pb2.TensorType]] = ..., begin: _Optional[_Union[SessionProgress, _Mapping]] = ...) -> None: ...

class SessionBatch(_message.Message):
    __slots__ = ["given", "held_out", "next", "rows"]
    GIVEN_FIELD_NUMBER: _ClassVar[int]
    HELD_OUT_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    given: bool
    held_out: bool
    next: bool
    rows: _graph_pb2.IntList
    def __init__(self, given: bool = ..., rows: _Optional[_Union[_graph_pb2.IntList, _Mapping]] = ..., next: bool = ..., held_out: bool = ...) -> None: ...

class SessionCommand(_message.Message):
    __slots__ = ["answered", "backward", "evaluate", "following", "forward", "get_tensors", "keep_alive", "more", "number", "predict", "reset_metrics", "save_checkpoint", "session_id", "set_learning_rate", "set_tensors", "step", "tensors", "update", "zero_gradients"]
    class Backward(_message.Message):
        __slots__ = []
        def __init__(self) -> None: ...
    class Evaluate(_message.Message):
        __slots__ = ["batch"]
        BATCH_FIELD_NUMBER: _ClassVar[int]
        batch: SessionBatch
        def __init__(self, batch: _Optional[_Union[SessionBatch, _Mapping]] = ...) -> None: ...
    class Forward(_message.Message):
        __slots__ = ["batch"]
        BATCH_FIELD_NUMBER: _ClassVar[int]
        batch: SessionBatch
        def __init__(self, batch: _Optional[_Union[SessionBatch, _Mapping]] = ...) -> None: ...
    class GetTensors(_message.Message):
        __slots__ = ["tensors"]
        class Choice(_message.Message):
            __slots__ = ["kind", "name"]
            KIND_FIELD_NUMBER: _ClassVar[int]
            NAME_FIELD_NUMBER: _ClassVar[int]
            kind: SessionTensorKind
            name: str
            def __init__(self, kind: _Optional[_Union[SessionTensorKind, str]] = ..., name: _Optional[str] = ...) -> None: ...
        TENSORS_FIELD_NUMBER: _ClassVar[int]
        tensors: _containers.RepeatedCompositeFieldContainer[SessionCommand.GetTensors.Choice]
        def __init__(self, tensors: _Optional[_Iterable[_Union[SessionCommand.GetTensors.Choice, _Mapping]]] = ...) -> None: ...
    class KeepAlive(_message.Message):
        __slots__ = []
        def __init__(self) -> None: ...
    class Predict(_message.Message):
        __slots__ = ["batch", "outputs"]
        BATCH_FIELD_NUMBER: _ClassVar[int]
        OUTPUTS_FIELD_NUMBER: _ClassVar[int]
        batch: SessionBatch
        outputs: _containers.RepeatedScalarFieldContainer[str]
        def __init__(self, batch: _Optional[_Union[SessionBatch, _Mapping]] = ..., outputs: _Optional[_Iterable[str]] = ...) -> None: ...
    class ResetMetrics(_message.Message):
        __slots__ = []
        def __init__(self) -> None: ...
    class SaveCheckpoint(_message.Message):
        __slots__ = ["artifact"]
        ARTIFACT_FIELD_NUMBER: _ClassVar[int]
        artifact: str
        def __init__(self, artifact: _Optional[str] = ...) -> None: ...
    class SetLearningRate(_message.Message):
        __slots__ = ["value"]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        value: float
        def __init__(self, value: _Optional[float] = ...) -> None: ...
    class SetTensors(_message.Message):
        __slots__ = []
        def __init__(self) -> None: ...
    class Step(_message.Message):
        __slots__ = ["batch", "steps"]
        BATCH_FIELD_NUMBER: _ClassVar[int]
        STEPS_FIELD_NUMBER: _ClassVar[int]
        batch: SessionBatch
        steps: int
        def __init__(self, steps: _Optional[int] = ..., batch: _Optional[_Union[SessionBatch, _Mapping]] = ...) -> None: ...
    class Update(_message.Message):
        __slots__ = []
        def __init__(self) -> None: ...
    class ZeroGradients(_message.Message):
        __slots__ = []
        def __init__(self) -> None: ...
    ANSWERED_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    FOLLOWING_FIELD_NUMBER: _ClassVar[int]
    FORWARD_FIELD_NUMBER: _ClassVar[int]
    GET_TENSORS_FIELD_NUMBER: _ClassVar[int]
    KEEP_ALIVE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PREDICT_FIELD_NUMBER: _ClassVar[int]
    RESET_METRICS_FIELD_NUMBER: _ClassVar[int]
    SAVE_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    SET_LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    SET_TENSORS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    ZERO_GRADIENTS_FIELD_NUMBER: _ClassVar[int]
    answered: int
    backward: SessionCommand.Backward
    evaluate: SessionCommand.Evaluate
    following: _containers.RepeatedCompositeFieldContainer[SessionCommand]
    forward: SessionCommand.Forward
    get_tensors: SessionCommand.GetTensors
    keep_alive: SessionCommand.KeepAlive
    more: bool
    number: int
    predict: SessionCommand.Predict
    reset_metrics: SessionCommand.ResetMetrics
    save_checkpoint: SessionCommand.SaveCheckpoint
    session_id: str
    set_learning_rate: SessionCommand.SetLearningRate
    set_tensors: SessionCommand.SetTensors
    step: SessionCommand.Step
    tensors: _containers.RepeatedCompositeFieldContainer[TensorPart]
    update: SessionCommand.Update
    zero_gradients: SessionCommand.ZeroGradients
    def __init__(self, session_id: _Optional[str] = ..., number: _Optional[int] = ..., answered: _Optional[int] = ..., tensors: _Optional[_Iterable[_Union[TensorPart, _Mapping]]] = ..., more: bool = ..., forward: _Optional[_Union[SessionCommand.Forward, _Mapping]] = ..., zero_gradients: _Optional[_Union[SessionCommand.ZeroGradients, _Mapping]] = ..., backward: _Optional[_Union[SessionCommand.Backward, _Mapping]] = ..., update: _Optional[_Union[SessionCommand.Update, _Mapping]] = ..., step: _Optional[_Union[SessionCommand.Step, _Mapping]] = ..., evaluate: _Optional[_Union[SessionCommand.Evaluate, _Mapping]] = ..., predict: _Optional[_Union[SessionCommand.Predict, _Mapping]] = ..., get_tensors: _Optional[_Union[SessionCommand.GetTensors, _Mapping]] = ..., set_tensors: _Optional[_Union[SessionCommand.SetTensors, _Mapping]] = ..., set_learning_rate: _Optional[_Union[SessionCommand.SetLearningRate, _Mapping]] = ..., save_checkpoint: _Optional[_Union[SessionCommand.SaveCheckpoint, _Mapping]] = ..., reset_metrics: _Optional[_Union[SessionCommand.ResetMetrics, _Mapping]] = ..., keep_alive: _Optional[_Union[SessionCommand.KeepAlive, _Mapping]] = ..., following: _Optional[_Iterable[_Union[SessionCommand, _Mapping]]] = ...) -> None: ...

class SessionInfo(_message.Message):
    __slots__ = ["attached", "error", "name", "opened_unix_ms", "owner", "progress", "session_id", "workers"]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OPENED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    attached: bool
    error: str
    name: str
    opened_unix_ms: int
    owner: str
    progress: SessionProgress
    session_id: str
    workers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, session_id: _Optional[str] = ..., owner: _Optional[str] = ..., name: _Optional[str] = ..., workers: _Optional[_Iterable[str]] = ..., attached: bool = ..., error: _Optional[str] = ..., progress: _Optional[_Union[SessionProgress, _Mapping]] = ..., opened_unix_ms: _Optional[int] = ...) -> None: ...

class SessionProgress(_message.Message):
    __slots__ = ["commands", "forwards", "next_batch", "updates"]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    FORWARDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_BATCH_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    commands: int
    forwards: int
    next_batch: int
    updates: int
    def __init__(self, commands: _Optional[int] = ..., forwards: _Optional[int] = ..., updates: _Optional[int] = ..., next_batch: _Optional[int] = ...) -> None: ...

class SessionReply(_message.Message):
    __slots__ = ["artifact", "batches", "code", "ended", "error", "following", "means", "more", "number", "progress", "steps", "tensors", "values"]
    class MeansEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class ValuesEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    FOLLOWING_FIELD_NUMBER: _ClassVar[int]
    MEANS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    artifact: str
    batches: int
    code: int
    ended: bool
    error: str
    following: _containers.RepeatedCompositeFieldContainer[SessionReply]
    means: _containers.ScalarMap[str, float]
    more: bool
    number: int
    progress: SessionProgress
    steps: _containers.RepeatedCompositeFieldContainer[_training_pb2.StepReport]
    tensors: _containers.RepeatedCompositeFieldContainer[TensorPart]
    values: _containers.ScalarMap[str, float]
    def __init__(self, number: _Optional[int] = ..., more: bool = ..., code: _Optional[int] = ..., error: _Optional[str] = ..., ended: bool = ..., values: _Optional[_Mapping[str, float]] = ..., means: _Optional[_Mapping[str, float]] = ..., batches: _Optional[int] = ..., steps: _Optional[_Iterable[_Union[_training_pb2.StepReport, _Mapping]]] = ..., tensors: _Optional[_Iterable[_Union[TensorPart, _Mapping]]] = ..., artifact: _Optional[str] = ..., progress: _Optional[_Union[SessionProgress, _Mapping]] = ..., following: _Optional[_Iterable[_Union[SessionReply, _Mapping]]] = ...) -> None: ...

class SessionTensor(_message.Message):
    __slots__ = ["kind", "name", "type"]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    kind: SessionTensorKind
    name: str
    type: _graph_pb2.TensorType
    def __init__(self, kind: _Optional[_Union[SessionTensorKind, str]] = ..., name: _Optional[str] = ..., type: _Optional[_Union[_graph_pb2.TensorType, _Mapping]] = ...) -> None: ...

class TensorPart(_message.Message):
    __slots__ = ["data", "dims", "dtype", "kind", "name", "offset"]
    DATA_FIELD_NUMBER: _ClassVar[int]
    DIMS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    dims: _containers.RepeatedScalarFieldContainer[int]
    dtype: _graph_pb2.DataType
    kind: SessionTensorKind
    name: str
    offset: int
    def __init__(self, kind: _Optional[_Union[SessionTensorKind, str]] = ..., name: _Optional[str] = ..., dtype: _Optional[_Union[_graph_pb2.DataType, str]] = ..., dims: _Optional[_Iterable[int]] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class SessionTensorKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = []
