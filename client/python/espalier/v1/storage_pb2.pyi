from espalier.v1 import cluster_pb2 as _cluster_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListObjectsReply(_message.Message):
    __slots__ = ["block_bytes", "objects"]
    class Object(_message.Message):
        __slots__ = ["block_sha256", "bytes", "name"]
        BLOCK_SHA256_FIELD_NUMBER: _ClassVar[int]
        BYTES_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        block_sha256: _containers.RepeatedScalarFieldContainer[bytes]
        bytes: int
        name: str
        def __init__(self, name: _Optional[str] = ..., bytes: _Optional[int] = ..., block_sha256: _Optional[_Iterable[bytes]] = ...) -> None: ...
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    block_bytes: int
    objects: _containers.RepeatedCompositeFieldContainer[ListObjectsReply.Object]
    def __init__(self, objects: _Optional[_Iterable[_Union[ListObjectsReply.Object, _Mapping]]] = ..., block_bytes: _Optional[int] = ...) -> None: ...

class ListObjectsRequest(_message.Message):
    __slots__ = ["block_hashes", "caller", "folder"]
    BLOCK_HASHES_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    FOLDER_FIELD_NUMBER: _ClassVar[int]
    block_hashes: bool
    caller: StorageCaller
    folder: str
    def __init__(self, caller: _Optional[_Union[StorageCaller, _Mapping]] = ..., folder: _Optional[str] = ..., block_hashes: bool = ...) -> None: ...

class PutObjectReply(_message.Message):
    __slots__ = ["durable", "received"]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    durable: bool
    received: int
    def __init__(self, received: _Optional[int] = ..., durable: bool = ...) -> None: ...

class PutObjectRequest(_message.Message):
    __slots__ = ["begin", "chunk", "commit"]
    class Begin(_message.Message):
        __slots__ = ["caller", "name", "upload"]
        CALLER_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        UPLOAD_FIELD_NUMBER: _ClassVar[int]
        caller: StorageCaller
        name: str
        upload: str
        def __init__(self, caller: _Optional[_Union[StorageCaller, _Mapping]] = ..., name: _Optional[str] = ..., upload: _Optional[str] = ...) -> None: ...
    class Chunk(_message.Message):
        __slots__ = ["data", "offset"]
        DATA_FIELD_NUMBER: _ClassVar[int]
        OFFSET_FIELD_NUMBER: _ClassVar[int]
        data: bytes
        offset: int
        def __init__(self, offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...
    class Commit(_message.Message):
        __slots__ = ["bytes", "sha256"]
        BYTES_FIELD_NUMBER: _ClassVar[int]
        SHA256_FIELD_NUMBER: _ClassVar[int]
        bytes: int
        sha256: str
        def __init__(self, bytes: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    begin: PutObjectRequest.Begin
    chunk: PutObjectRequest.Chunk
    commit: PutObjectRequest.Commit
    def __init__(self, begin: _Optional[_Union[PutObjectRequest.Begin, _Mapping]] = ..., chunk: _Optional[_Union[PutObjectRequest.Chunk, _Mapping]] = ..., commit: _Optional[_Union[PutObjectRequest.Commit, _Mapping]] = ...) -> None: ...

class ReadObjectReply(_message.Message):
    __slots__ = ["chunk"]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    def __init__(self, chunk: _Optional[bytes] = ...) -> None: ...

class ReadObjectRequest(_message.Message):
    __slots__ = ["bytes", "caller", "name", "offset"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CALLER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    caller: StorageCaller
    name: str
    offset: int
    def __init__(self, caller: _Optional[_Union[StorageCaller, _Mapping]] = ..., name: _Optional[str] = ..., offset: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class StorageCaller(_message.Message):
    __slots__ = ["attempt", "job_id", "lease"]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    job_id: str
    lease: _cluster_pb2.Lease
    def __init__(self, lease: _Optional[_Union[_cluster_pb2.Lease, _Mapping]] = ..., job_id: _Optional[str] = ..., attempt: _Optional[int] = ...) -> None: ...
