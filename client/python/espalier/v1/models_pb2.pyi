from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Artifact(_message.Message):
    __slots__ = ["bytes", "created_unix_ms", "files", "kind", "metadata", "name", "owner", "sha256"]
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = []
    class MetadataEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    BYTES_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    DATASET: Artifact.Kind
    FILES_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    KIND_UNSPECIFIED: Artifact.Kind
    METADATA_FIELD_NUMBER: _ClassVar[int]
    MODEL: Artifact.Kind
    NAME_FIELD_NUMBER: _ClassVar[int]
    ONNX: Artifact.Kind
    OWNER_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    created_unix_ms: int
    files: _containers.RepeatedScalarFieldContainer[str]
    kind: Artifact.Kind
    metadata: _containers.ScalarMap[str, str]
    name: str
    owner: str
    sha256: str
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[Artifact.Kind, str]] = ..., bytes: _Optional[int] = ..., sha256: _Optional[str] = ..., created_unix_ms: _Optional[int] = ..., files: _Optional[_Iterable[str]] = ..., metadata: _Optional[_Mapping[str, str]] = ..., owner: _Optional[str] = ...) -> None: ...

class DeleteArtifactReply(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class DeleteArtifactRequest(_message.Message):
    __slots__ = ["force", "idempotency_key", "name"]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    force: bool
    idempotency_key: str
    name: str
    def __init__(self, name: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., force: bool = ...) -> None: ...

class DownloadReply(_message.Message):
    __slots__ = ["artifact", "chunk", "file"]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    artifact: Artifact
    chunk: bytes
    file: UploadFile
    def __init__(self, artifact: _Optional[_Union[Artifact, _Mapping]] = ..., file: _Optional[_Union[UploadFile, _Mapping]] = ..., chunk: _Optional[bytes] = ...) -> None: ...

class DownloadRequest(_message.Message):
    __slots__ = ["file", "name"]
    FILE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    file: str
    name: str
    def __init__(self, name: _Optional[str] = ..., file: _Optional[str] = ...) -> None: ...

class ListArtifactsReply(_message.Message):
    __slots__ = ["artifacts", "matching", "next_page_token", "owner", "upload_salt"]
    ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    MATCHING_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_SALT_FIELD_NUMBER: _ClassVar[int]
    artifacts: _containers.RepeatedCompositeFieldContainer[Artifact]
    matching: int
    next_page_token: str
    owner: str
    upload_salt: str
    def __init__(self, artifacts: _Optional[_Iterable[_Union[Artifact, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., matching: _Optional[int] = ..., owner: _Optional[str] = ..., upload_salt: _Optional[str] = ...) -> None: ...

class ListArtifactsRequest(_message.Message):
    __slots__ = ["created_before_unix_ms", "created_from_unix_ms", "kinds", "name", "newest_first", "owner", "page_size", "page_token"]
    CREATED_BEFORE_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_FROM_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIRST_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    created_before_unix_ms: int
    created_from_unix_ms: int
    kinds: _containers.RepeatedScalarFieldContainer[Artifact.Kind]
    name: str
    newest_first: bool
    owner: str
    page_size: int
    page_token: str
    def __init__(self, name: _Optional[str] = ..., kinds: _Optional[_Iterable[_Union[Artifact.Kind, str]]] = ..., owner: _Optional[str] = ..., created_from_unix_ms: _Optional[int] = ..., created_before_unix_ms: _Optional[int] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., newest_first: bool = ...) -> None: ...

class QuantizeProgress(_message.Message):
    __slots__ = ["bytes_done", "bytes_total"]
    BYTES_DONE_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    bytes_done: int
    bytes_total: int
    def __init__(self, bytes_done: _Optional[int] = ..., bytes_total: _Optional[int] = ...) -> None: ...

class QuantizeReply(_message.Message):
    __slots__ = ["artifact", "progress"]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    artifact: Artifact
    progress: QuantizeProgress
    def __init__(self, progress: _Optional[_Union[QuantizeProgress, _Mapping]] = ..., artifact: _Optional[_Union[Artifact, _Mapping]] = ...) -> None: ...

class QuantizeRequest(_message.Message):
    __slots__ = ["force", "idempotency_key", "name", "out", "replace", "weights"]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OUT_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    force: bool
    idempotency_key: str
    name: str
    out: str
    replace: bool
    weights: str
    def __init__(self, name: _Optional[str] = ..., weights: _Optional[str] = ..., out: _Optional[str] = ..., replace: bool = ..., idempotency_key: _Optional[str] = ..., force: bool = ...) -> None: ...

class UploadFile(_message.Message):
    __slots__ = ["name"]
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class UploadHeader(_message.Message):
    __slots__ = ["files", "force", "idempotency_key", "kind", "metadata", "name", "replace"]
    class MetadataEntry(_message.Message):
        __slots__ = ["key", "value"]
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    FILES_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    files: int
    force: bool
    idempotency_key: str
    kind: Artifact.Kind
    metadata: _containers.ScalarMap[str, str]
    name: str
    replace: bool
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[Artifact.Kind, str]] = ..., idempotency_key: _Optional[str] = ..., replace: bool = ..., metadata: _Optional[_Mapping[str, str]] = ..., files: _Optional[int] = ..., force: bool = ...) -> None: ...

class UploadReply(_message.Message):
    __slots__ = ["artifact", "not_servable"]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    NOT_SERVABLE_FIELD_NUMBER: _ClassVar[int]
    artifact: Artifact
    not_servable: str
    def __init__(self, artifact: _Optional[_Union[Artifact, _Mapping]] = ..., not_servable: _Optional[str] = ...) -> None: ...

class UploadRequest(_message.Message):
    __slots__ = ["chunk", "file", "header", "sha256"]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    chunk: bytes
    file: UploadFile
    header: UploadHeader
    sha256: str
    def __init__(self, header: _Optional[_Union[UploadHeader, _Mapping]] = ..., file: _Optional[_Union[UploadFile, _Mapping]] = ..., chunk: _Optional[bytes] = ..., sha256: _Optional[str] = ...) -> None: ...
