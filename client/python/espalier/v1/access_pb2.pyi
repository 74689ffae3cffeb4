from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AccessToken(_message.Message):
    __slots__ = ["certificates_refused", "certificates_until_unix_ms", "created_unix_ms", "expires_unix_ms", "id", "last_used_unix_ms", "made_by", "owner", "revoked", "roles", "uses", "uses_left"]
    CERTIFICATES_REFUSED_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATES_UNTIL_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    LAST_USED_UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    MADE_BY_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    USES_LEFT_FIELD_NUMBER: _ClassVar[int]
    certificates_refused: bool
    certificates_until_unix_ms: int
    created_unix_ms: int
    expires_unix_ms: int
    id: str
    last_used_unix_ms: int
    made_by: str
    owner: str
    revoked: bool
    roles: _containers.RepeatedScalarFieldContainer[str]
    uses: int
    uses_left: int
    def __init__(self, id: _Optional[str] = ..., roles: _Optional[_Iterable[str]] = ..., owner: _Optional[str] = ..., created_unix_ms: _Optional[int] = ..., expires_unix_ms: _Optional[int] = ..., uses_left: _Optional[int] = ..., uses: _Optional[int] = ..., made_by: _Optional[str] = ..., last_used_unix_ms: _Optional[int] = ..., revoked: bool = ..., certificates_until_unix_ms: _Optional[int] = ..., certificates_refused: bool = ...) -> None: ...

class CreateTokenReply(_message.Message):
    __slots__ = ["ca_pem", "coordinator", "http", "text", "token"]
    CA_PEM_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_FIELD_NUMBER: _ClassVar[int]
    HTTP_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    ca_pem: str
    coordinator: str
    http: str
    text: str
    token: AccessToken
    def __init__(self, token: _Optional[_Union[AccessToken, _Mapping]] = ..., text: _Optional[str] = ..., coordinator: _Optional[str] = ..., http: _Optional[str] = ..., ca_pem: _Optional[str] = ...) -> None: ...

class CreateTokenRequest(_message.Message):
    __slots__ = ["owner", "roles", "ttl_seconds", "uses"]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    ROLES_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    USES_FIELD_NUMBER: _ClassVar[int]
    owner: str
    roles: _containers.RepeatedScalarFieldContainer[str]
    ttl_seconds: float
    uses: int
    def __init__(self, roles: _Optional[_Iterable[str]] = ..., owner: _Optional[str] = ..., ttl_seconds: _Optional[float] = ..., uses: _Optional[int] = ...) -> None: ...

class IssueCertificateRequest(_message.Message):
    __slots__ = ["certificate_request", "idempotency_key", "secret", "token_id"]
    CERTIFICATE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    certificate_request: str
    idempotency_key: str
    secret: str
    token_id: str
    def __init__(self, token_id: _Optional[str] = ..., secret: _Optional[str] = ..., certificate_request: _Optional[str] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class IssuedCertificate(_message.Message):
    __slots__ = ["ca_pem", "certificate_chain"]
    CA_PEM_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_CHAIN_FIELD_NUMBER: _ClassVar[int]
    ca_pem: str
    certificate_chain: str
    def __init__(self, certificate_chain: _Optional[str] = ..., ca_pem: _Optional[str] = ...) -> None: ...

class ListTokensReply(_message.Message):
    __slots__ = ["tokens"]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[AccessToken]
    def __init__(self, tokens: _Optional[_Iterable[_Union[AccessToken, _Mapping]]] = ...) -> None: ...

class ListTokensRequest(_message.Message):
    __slots__ = []
    def __init__(self) -> None: ...

class RenewCertificateRequest(_message.Message):
    __slots__ = ["certificate_request"]
    CERTIFICATE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    certificate_request: str
    def __init__(self, certificate_request: _Optional[str] = ...) -> None: ...

class RevokeTokenReply(_message.Message):
    __slots__ = ["token"]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: AccessToken
    def __init__(self, token: _Optional[_Union[AccessToken, _Mapping]] = ...) -> None: ...

class RevokeTokenRequest(_message.Message):
    __slots__ = ["certificates", "id"]
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    certificates: bool
    id: str
    def __init__(self, id: _Optional[str] = ..., certificates: bool = ...) -> None: ...

class StoredToken(_message.Message):
    __slots__ = ["exchanges", "secret_sha256", "token"]
    class Exchange(_message.Message):
        __slots__ = ["key_sha256", "public_key_sha256"]
        KEY_SHA256_FIELD_NUMBER: _ClassVar[int]
        PUBLIC_KEY_SHA256_FIELD_NUMBER: _ClassVar[int]
        key_sha256: str
        public_key_sha256: str
        def __init__(self, key_sha256: _Optional[str] = ..., public_key_sha256: _Optional[str] = ...) -> None: ...
    EXCHANGES_FIELD_NUMBER: _ClassVar[int]
    SECRET_SHA256_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    exchanges: _containers.RepeatedCompositeFieldContainer[StoredToken.Exchange]
    secret_sha256: str
    token: AccessToken
    def __init__(self, token: _Optional[_Union[AccessToken, _Mapping]] = ..., secret_sha256: _Optional[str] = ..., exchanges: _Optional[_Iterable[_Union[StoredToken.Exchange, _Mapping]]] = ...) -> None: ...
