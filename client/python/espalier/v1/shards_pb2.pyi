from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FindShardsReply(_message.Message):
    __slots__ = ["sha256"]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    sha256: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sha256: _Optional[_Iterable[str]] = ...) -> None: ...

class FindShardsRequest(_message.Message):
    __slots__ = ["job_id", "sha256"]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    sha256: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job_id: _Optional[str] = ..., sha256: _Optional[_Iterable[str]] = ...) -> None: ...

class PutShardReply(_message.Message):
    __slots__ = ["kept"]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    kept: bool
    def __init__(self, kept: bool = ...) -> None: ...

class PutShardRequest(_message.Message):
    __slots__ = ["begin", "chunk"]
    class Begin(_message.Message):
        __slots__ = ["bytes", "job_id", "name", "sha256"]
        BYTES_FIELD_NUMBER: _ClassVar[int]
        JOB_ID_FIELD_NUMBER: _ClassVar[int]
        NAME_FIELD_NUMBER: _ClassVar[int]
        SHA256_FIELD_NUMBER: _ClassVar[int]
        bytes: int
        job_id: str
        name: str
        sha256: str
        def __init__(self, job_id: _Optional[str] = ..., name: _Optional[str] = ..., sha256: _Optional[str] = ..., bytes: _Optional[int] = ...) -> None: ...
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    begin: PutShardRequest.Begin
    chunk: bytes
    def __init__(self, begin: _Optional[_Union[PutShardRequest.Begin, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class ReadShardReply(_message.Message):
    __slots__ = ["chunk"]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    def __init__(self, chunk: _Optional[bytes] = ...) -> None: ...

class ReadShardRequest(_message.Message):
    __slots__ = ["bytes", "job_id", "offset", "sha256"]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    job_id: str
    offset: int
    sha256: str
    def __init__(self, job_id: _Optional[str] = ..., sha256: _Optional[str] = ..., offset: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...
