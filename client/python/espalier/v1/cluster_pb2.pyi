from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BackupReply(_message.Message):
    __slots__ = ["chunk", "sha256"]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    sha256: str
    def __init__(self, chunk: _Optional[bytes] = ..., sha256: _Optional[str] = ...) -> None: ...

class BackupRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class ClusterStatusReply(_message.Message):
    __slots__ = ["grpc_address", "http_address", "jobs_by_state", "served_models", "uptime_seconds", "version", "workers"]
    class JobsByStateEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    GRPC_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HTTP_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    JOBS_BY_STATE_FIELD_NUMBER: _ClassVar[int]
    SERVED_MODELS_FIELD_NUMBER: _ClassVar[int]
    UPTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    grpc_address: str
    http_address: str
    jobs_by_state: _containers.ScalarMap[str, int]
    served_models: _containers.RepeatedScalarFieldContainer[str]
    uptime_seconds: float
    version: str
    workers: _containers.RepeatedCompositeFieldContainer[WorkerInfo]
    def __init__(self, version: _Optional[str] = ..., uptime_seconds: _Optional[float] = ..., workers: _Optional[_Iterable[_Union[WorkerInfo, _Mapping]]] = ..., jobs_by_state: _Optional[_Mapping[str, int]] = ..., served_models: _Optional[_Iterable[str]] = ..., http_address: _Optional[str] = ..., grpc_address: _Optional[str] = ...) -> None: ...

class ClusterStatusRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class CommunicationProfile(_message.Message):
    __slots__ = ["collectives", "messages"]
    class Collective(_message.Message):
        __slots__ = ["bytes", "kind", "ranks", "seconds"]
        BYTES_FIELD_NUMBER: _ClassVar[int]
        KIND_FIELD_NUMBER: _ClassVar[int]
        RANKS_FIELD_NUMBER: _ClassVar[int]
        SECONDS_FIELD_NUMBER: _ClassVar[int]
        bytes: float
        kind: int
        ranks: int
        seconds: float
        def __init__(self, kind: _Optional[int] = ..., ranks: _Optional[int] = ..., bytes: _Optional[float] = ..., seconds: _Optional[float] = ...) -> None: ...
    class Message(_message.Message):
        __slots__ = ["bytes", "receive_seconds", "send_seconds"]
        BYTES_FIELD_NUMBER: _ClassVar[int]
        RECEIVE_SECONDS_FIELD_NUMBER: _ClassVar[int]
        SEND_SECONDS_FIELD_NUMBER: _ClassVar[int]
        bytes: float
        receive_seconds: float
        send_seconds: float
        def __init__(self, bytes: _Optional[float] = ..., send_seconds: _Optional[float] = ..., receive_seconds: _Optional[float] = ...) -> None: ...
    COLLECTIVES_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    collectives: _containers.RepeatedCompositeFieldContainer[CommunicationProfile.Collective]
    messages: _containers.RepeatedCompositeFieldContainer[CommunicationProfile.Message]
    def __init__(self, messages: _Optional[_Iterable[_Union[CommunicationProfile.Message, _Mapping]]] = ..., collectives: _Optional[_Iterable[_Union[CommunicationProfile.Collective, _Mapping]]] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ["host", "host_cores", "kind", "matmul_flops", "memory_bandwidth", "memory_bytes", "model", "op_overhead_seconds", "threads"]
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    CPU: Device.Kind
    CUDA: Device.Kind
    HOST_CORES_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    KIND_UNSPECIFIED: Device.Kind
    MATMUL_FLOPS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    OP_OVERHEAD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    host: str
    host_cores: int
    kind: Device.Kind
    matmul_flops: float
    memory_bandwidth: float
    memory_bytes: int
    model: str
    op_overhead_seconds: float
    threads: int
    def __init__(self, kind: _Optional[_Union[Device.Kind, str]] = ..., model: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., matmul_flops: _Optional[float] = ..., memory_bandwidth: _Optional[float] = ..., op_overhead_seconds: _Optional[float] = ..., threads: _Optional[int] = ..., host: _Optional[str] = ..., host_cores: _Optional[int] = ...) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ["jobs"]
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, jobs: _Optional[_Iterable[str]] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ["lease"]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ["drained"]
    DRAINED_FIELD_NUMBER: _ClassVar[int]
    drained: bool
    def __init__(self, drained: bool = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ["lease", "measured_link", "running_jobs"]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    MEASURED_LINK_FIELD_NUMBER: _ClassVar[int]
    RUNNING_JOBS_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    measured_link: Link
    running_jobs: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., running_jobs: _Optional[_Iterable[str]] = ..., measured_link: _Optional[_Union[Link, _Mapping]] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ["checkpoint_store", "data_dir", "heartbeat_seconds", "lease", "lease_seconds", "shares_data_dir"]
    CHECKPOINT_STORE_FIELD_NUMBER: _ClassVar[int]
    DATA_DIR_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SHARES_DATA_DIR_FIELD_NUMBER: _ClassVar[int]
    checkpoint_store: str
    data_dir: str
    heartbeat_seconds: float
    lease: Lease
    lease_seconds: float
    shares_data_dir: bool
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., heartbeat_seconds: _Optional[float] = ..., lease_seconds: _Optional[float] = ..., data_dir: _Optional[str] = ..., shares_data_dir: bool = ..., checkpoint_store: _Optional[str] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ["address", "call_key", "device", "host", "idempotency_key", "name", "protocol_version", "shards_address", "shards_certificate", "shared_memory_id", "tensors_between_hosts"]
    class TensorsBetweenHosts(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CALL_KEY_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    ENCRYPTED: JoinRequest.TensorsBetweenHosts
    HOST_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    IN_CLEAR: JoinRequest.TensorsBetweenHosts
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SHARDS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SHARDS_CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    SHARED_MEMORY_ID_FIELD_NUMBER: _ClassVar[int]
    TENSORS_BETWEEN_HOSTS_FIELD_NUMBER: _ClassVar[int]
    TENSORS_UNSPECIFIED: JoinRequest.TensorsBetweenHosts
    address: str
    call_key: str
    device: Device
    host: str
    idempotency_key: str
    name: str
    protocol_version: int
    shards_address: str
    shards_certificate: str
    shared_memory_id: str
    tensors_between_hosts: JoinRequest.TensorsBetweenHosts
    def __init__(self, name: _Optional[str] = ..., address: _Optional[str] = ..., device: _Optional[_Union[Device, _Mapping]] = ..., host: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., protocol_version: _Optional[int] = ..., call_key: _Optional[str] = ..., shards_address: _Optional[str] = ..., shards_certificate: _Optional[str] = ..., tensors_between_hosts: _Optional[_Union[JoinRequest.TensorsBetweenHosts, str]] = ..., shared_memory_id: _Optional[str] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ["epoch", "worker_id"]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    worker_id: str
    def __init__(self, worker_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ["lease"]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: Lease
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ...) -> None: ...

class Link(_message.Message):
    __slots__ = ["bandwidth", "latency_seconds"]
    BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    LATENCY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    bandwidth: float
    latency_seconds: float
    def __init__(self, bandwidth: _Optional[float] = ..., latency_seconds: _Optional[float] = ...) -> None: ...

class ListWorkersReply(_message.Message):
    __slots__ = ["workers"]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    workers: _containers.RepeatedCompositeFieldContainer[WorkerInfo]
    def __init__(self, workers: _Optional[_Iterable[_Union[WorkerInfo, _Mapping]]] = ...) -> None: ...

class ListWorkersRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class StoreGetReply(_message.Message):
    __slots__ = ["found", "value"]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    found: bool
    value: bytes
    def __init__(self, found: bool = ..., value: _Optional[bytes] = ...) -> None: ...

class StoreGetRequest(_message.Message):
    __slots__ = ["attempt", "job_id", "key", "lease", "wait_seconds"]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    job_id: str
    key: str
    lease: Lease
    wait_seconds: float
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., job_id: _Optional[str] = ..., attempt: _Optional[int] = ..., key: _Optional[str] = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class StoreSetReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class StoreSetRequest(_message.Message):
    __slots__ = ["attempt", "job_id", "key", "lease", "value"]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    job_id: str
    key: str
    lease: Lease
    value: bytes
    def __init__(self, lease: _Optional[_Union[Lease, _Mapping]] = ..., job_id: _Optional[str] = ..., attempt: _Optional[int] = ..., key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class WorkerInfo(_message.Message):
    __slots__ = ["address", "device", "host", "job_id", "name", "seconds_since_heartbeat", "state", "worker_id"]
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BUSY: WorkerInfo.State
    DEAD: WorkerInfo.State
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    DRAINING: WorkerInfo.State
    HOST_FIELD_NUMBER: _ClassVar[int]
    IDLE: WorkerInfo.State
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    LEFT: WorkerInfo.State
    NAME_FIELD_NUMBER: _ClassVar[int]
    SECONDS_SINCE_HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    STATE_UNSPECIFIED: WorkerInfo.State
    WORKER_ID_FIELD_NUMBER: _ClassVar[int]
    address: str
    device: Device
    host: str
    job_id: str
    name: str
    seconds_since_heartbeat: float
    state: WorkerInfo.State
    worker_id: str
    def __init__(self, worker_id: _Optional[str] = ..., name: _Optional[str] = ..., address: _Optional[str] = ..., host: _Optional[str] = ..., device: _Optional[_Union[Device, _Mapping]] = ..., state: _Optional[_Union[WorkerInfo.State, str]] = ..., seconds_since_heartbeat: _Optional[float] = ..., job_id: _Optional[str] = ...) -> None: ...
