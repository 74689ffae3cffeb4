"""The connection to a coordinator: its address, key, TLS, and one gRPC channel for each process.

Everything is found as the command line finds it (docs/reference/cli.md): ESPALIER_COORDINATOR, ESPALIER_HOME,
ESPALIER_TOKEN_FILE, ESPALIER_TOKEN, ESPALIER_CA_FILE, ESPALIER_CERT_FILE and ESPALIER_KEY_FILE.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import importlib
import json
import os
import secrets
import socket
import stat
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import Any

# gRPC reads this when it is imported; without it, a child made by fork hangs in its first call.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "1")

import grpc

from espalier import errors, leader

_OPTIONS = [
    # Graphs carry weights; the coordinator limits what it accepts.
    ("grpc.max_receive_message_length", 256 << 20),
    ("grpc.max_send_message_length", 256 << 20),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.enable_http_proxy", 0),
]

_MODULES = {
    "Training": "training_pb2",
    "Models": "models_pb2",
    "Planner": "plan_pb2",
    "Cluster": "cluster_pb2",
    "Inference": "inference_pb2",
    "Distillation": "distillation_pb2",
    "Sessions": "session_pb2",
    "Recordings": "recording_pb2",
    "Replay": "replay_pb2",
    "Ops": "ops_pb2",
    "GRPCInferenceService": "open_inference_pb2",
}
# On the wire, of the services that are not of espalier.v1.
_PACKAGES = {"GRPCInferenceService": "inference"}


@dataclass(frozen=True)
class Settings:
    """Where a coordinator is, who asks, and how long calls may take, in seconds."""

    address: str
    token: str = field(default="", repr=False)
    tls: bool = False
    ca_pem: bytes | None = None
    certificate_pem: bytes | None = None
    key_pem: bytes | None = field(default=None, repr=False)
    connect_timeout: float = 5.0
    call_timeout: float = 30.0
    plan_timeout: float = 600.0  # Submit, DryRun, MakePlan, Explain
    serve_timeout: float = 600.0  # Serve loads a model
    retry_for: float = 10.0  # while UNAVAILABLE
    watch_retry_for: float = 120.0

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call carries."""
        return (("authorization", f"Bearer {self.token}"),) if self.token else ()


def _read(path: str, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise errors.InvalidArgument(f"{what}: cannot read {path}: {error.strerror}") from error


def _check_private(what: str, path: str) -> None:
    """Refuses a file of keys that other users can read, as the programs do."""
    info = os.stat(path)
    if info.st_uid not in (os.geteuid(), 0):
        raise errors.InvalidArgument(
            f"{what} {path} belongs to user {info.st_uid}, who can read and change the keys: give it to this user "
            f"(chown {os.geteuid()}) or to root"
        )
    if info.st_mode & (0o037 if info.st_uid == 0 else 0o077):
        raise errors.InvalidArgument(
            f"{what} {path} is open to other users (mode {stat.S_IMODE(info.st_mode):04o}): chmod 600 {path}; then "
            "make new keys if others may have read these"
        )


def _kept() -> dict[str, str]:
    """What the command line knows of a coordinator: that of `espalier up`, or of `espalier login`."""
    home = os.environ.get("ESPALIER_HOME") or os.path.join(os.environ.get("HOME") or ".", ".espalier")
    for name in ("espalierd.ready", "connection.json"):
        try:
            with open(os.path.join(home, name), encoding="utf-8") as file:
                kept = json.load(file)
        except (OSError, ValueError):
            continue
        if isinstance(kept, dict):
            return {key: value for key, value in kept.items() if isinstance(value, str) and value}
    return {}


def _check_address(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if "/" in address:
        raise errors.InvalidArgument(
            f'coordinator address "{address}": accepted: HOST:PORT, as 127.0.0.1:7070, where it answers gRPC'
        )
    if not colon or not host or not port:
        raise errors.InvalidArgument(f'coordinator address "{address}": accepted: HOST:PORT, as 127.0.0.1:7070')
    if not port.isdigit() or not 1 <= int(port) <= 65535:
        raise errors.InvalidArgument(f'coordinator address "{address}": the port must be 1 to 65535')


def _find_token(token: str | None, kept: dict[str, str]) -> str:
    if token is not None:
        return token
    file, what = os.environ.get("ESPALIER_TOKEN_FILE"), "ESPALIER_TOKEN_FILE"
    if not file and os.environ.get("ESPALIER_TOKEN"):
        return os.environ["ESPALIER_TOKEN"]
    if not file:
        file, what = kept.get("token_file"), "the token of `espalier login`,"
    if not file:
        return ""
    text = _read(file, what)
    _check_private(what, file)
    return text.decode().strip()


def make_settings(
    address: str | None = None,
    *,
    token: str | None = None,
    tls: bool | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    cert_file: str | os.PathLike[str] | None = None,
    key_file: str | os.PathLike[str] | None = None,
) -> Settings:
    """Completes what is given by the environment. InvalidArgument for a bad address or an unreadable file."""
    address = address or os.environ.get("ESPALIER_COORDINATOR")
    # Its key is for that coordinator, and for no other.
    kept = {} if address or os.environ.get("ESPALIER_HTTP") else _kept()
    address = address or kept.get("grpc") or "127.0.0.1:7070"
    for one in leader.addresses(address):
        _check_address(one)
    ca = os.fspath(ca_file) if ca_file else os.environ.get("ESPALIER_CA_FILE") or kept.get("ca_file", "")
    certificate = os.fspath(cert_file) if cert_file else os.environ.get("ESPALIER_CERT_FILE", "")
    key = os.fspath(key_file) if key_file else os.environ.get("ESPALIER_KEY_FILE", "")
    if bool(certificate) != bool(key):
        raise errors.InvalidArgument("cert_file and key_file go together: one of them is given")
    key_pem = _read(key, "key_file") if key else None
    if key:
        _check_private("key_file", key)
    return Settings(
        address=address,
        token=_find_token(token, kept),
        tls=bool(ca) if tls is None else tls,
        ca_pem=_read(ca, "ca_file") if ca else None,
        certificate_pem=_read(certificate, "cert_file") if certificate else None,
        key_pem=key_pem,
        retry_for=leader.TAKEOVER if "," in address else Settings.retry_for,
    )


@dataclass(frozen=True)
class Method:
    """A method of a service of the coordinator: its path and message classes."""

    path: str
    request: Any
    reply: Any


@functools.cache
def method(service: str, name: str) -> Method:
    """The method of this name, from the service's descriptor. NotFound if there is none."""
    from google.protobuf import message_factory, symbol_database

    if service not in _MODULES:
        raise errors.NotFound(f"there is no service {service}; known are {', '.join(_MODULES)}")
    module = importlib.import_module(f"espalier.v1.{_MODULES[service]}")
    methods = module.DESCRIPTOR.services_by_name[service].methods_by_name
    if name not in methods:
        raise errors.NotFound(f"service {service} has no call {name}; it has {', '.join(methods)}")
    found = methods[name]
    make = getattr(message_factory, "GetMessageClass", None)
    if make is None:  # protobuf 4.21
        database: Any = symbol_database.Default()
        make = database.GetPrototype
    package = _PACKAGES.get(service, "espalier.v1")
    return Method(f"/{package}.{service}/{name}", make(found.input_type), make(found.output_type))


def idempotency_key() -> str:
    """128 random bits: the coordinator does the calls that carry the same key once."""
    return secrets.token_hex(16)


def _unreachable(settings: Settings, detail: str) -> errors.Unavailable:
    remedy = (
        "" if settings.tls else "; if it uses TLS: `espalier login TOKEN`, ca_file=FILE, tls=True or ESPALIER_CA_FILE"
    )
    return errors.Unavailable(
        f"no coordinator answers at {settings.address} ({detail}). Start one with `espalier up` or "
        f"espalier.local(), or name another: espalier.Client('HOST:PORT') or ESPALIER_COORDINATOR{remedy}"
    )


_ERRORS: dict[grpc.StatusCode, type[errors.EspalierError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidArgument,
    grpc.StatusCode.OUT_OF_RANGE: errors.InvalidArgument,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.ALREADY_EXISTS: errors.AlreadyExists,
    grpc.StatusCode.FAILED_PRECONDITION: errors.FailedPrecondition,
    grpc.StatusCode.ABORTED: errors.FailedPrecondition,
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDenied,
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
    grpc.StatusCode.UNAVAILABLE: errors.Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceeded,
    grpc.StatusCode.CANCELLED: errors.Cancelled,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.ResourceExhausted,
    grpc.StatusCode.DATA_LOSS: errors.DataLoss,
    grpc.StatusCode.UNIMPLEMENTED: errors.InvalidArgument,  # such as an operator; typed knows missing calls
}


def error_of_code(code: int, text: str) -> errors.EspalierError:
    """The exception for a gRPC status that came within a message, by its number."""
    status = next((s for s in grpc.StatusCode if s.value[0] == code), grpc.StatusCode.UNKNOWN)
    return _ERRORS.get(status, errors.InternalError)(text)


def answered(error: grpc.RpcError) -> bool:
    """Whether the coordinator itself returned this status, not the connection."""
    return any(key == "grpc-status-details-bin" for key, _ in error.trailing_metadata() or ())


def typed(error: grpc.RpcError, settings: Settings) -> errors.EspalierError:
    """The exception of the package that stands for a gRPC status: the coordinator's words, and what to do."""
    code, text = error.code(), error.details() or ""
    if code == grpc.StatusCode.UNAVAILABLE and not answered(error):
        return _unreachable(settings, text)
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        text = f"the coordinator at {settings.address} did not answer in time: {text}"
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED and "message larger than max" in text.lower():
        text = f"one message would be too large: {text}; a graph's values travel with it: give large ones as `init`"
    if code == grpc.StatusCode.UNAUTHENTICATED:
        text += "; give a key: espalier.Client(token=...), ESPALIER_TOKEN_FILE or ESPALIER_TOKEN"
    if code == grpc.StatusCode.UNIMPLEMENTED and text in ("", "Method not found!"):  # gRPC's own, of C++ and of Python
        return errors.InternalError(
            f"the coordinator at {settings.address} lacks this call; is it older than this package?"
        )
    return _ERRORS.get(code, errors.InternalError)(text)


def _is_known(address: str) -> bool:
    try:
        socket.getaddrinfo(address.rpartition(":")[0].strip("[]"), None)
    except OSError:
        return False
    return True


def _options(candidates: leader.Candidates) -> list[tuple[str, int]]:
    return _OPTIONS + leader.KEEPALIVE if candidates.several else _OPTIONS


def _credentials(settings: Settings) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(settings.ca_pem, settings.key_pem, settings.certificate_pem)


# The first call of a channel: whatever the answer, somebody who speaks gRPC is there.
_PROBE = "/grpc.health.v1.Health/Check"


def _refusal(error: grpc.RpcError, settings: Settings, *, may_stand_by: bool) -> errors.Unavailable | None:
    """The exception for a first call that reached nobody, or one that stands by; None if it was answered."""
    if may_stand_by and error.code() == grpc.StatusCode.UNAVAILABLE and answered(error):
        return errors.Unavailable(f"{settings.address}: {error.details()}")
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
        return _unreachable(settings, f"nothing within {settings.connect_timeout:g} s")
    if error.code() == grpc.StatusCode.UNAVAILABLE and not answered(error):
        what = "no connection, or its TLS certificate is not trusted" if settings.tls else "no connection"
        if not _is_known(settings.address):
            what = "no host of this name is known"
        return _unreachable(settings, what)
    return None


_first_process = 0  # that opened a channel
_left_behind: list[Any] = []  # channels of parents, never to be closed
_open: weakref.WeakSet[Connection] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Ends calls and channels while threads still run; gRPC may hang later."""
    for connection in list(_open):
        connection.close()


def _check_fork() -> None:
    """Refuses what would hang: gRPC in a child made by fork, of a parent that used it without support for that."""
    global _first_process
    _first_process = _first_process or os.getpid()
    from grpc._cython import cygrpc

    if _first_process != os.getpid() and not getattr(cygrpc, "_GRPC_ENABLE_FORK_SUPPORT", True):
        raise errors.FailedPrecondition(
            "this process was made by fork from one that had called a coordinator, and grpc was imported without "
            "support for that: import espalier before grpc, set GRPC_ENABLE_FORK_SUPPORT=1, or start processes by "
            "multiprocessing.get_context('spawn')"
        )


class ConnectionEnded(errors.Unavailable):
    """The coordinator has ended for good: trying again is of no use."""


class Connection:
    """A channel to the coordinator for blocking calls, made at the first call in each process. Thread-safe.

    A child made by fork gets a channel of its own: gRPC's does not survive a fork. Fork between calls, not while
    another thread is in one.
    """

    def __init__(self, settings: Settings):
        self.settings = settings
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._candidates = leader.Candidates(settings)
        self._watch: leader.Watch | None = None  # with several candidates
        self._process = 0
        self._ended = ""

    def channel(self) -> grpc.Channel:
        """The channel, connected. Unavailable if nothing answers within the connection's time."""
        if self._process != os.getpid():
            # In a child the parent's lock may be held for ever, and the end of its channel may hang.
            _left_behind.append(self._channel)
            self._lock, self._channel, self._process = threading.Lock(), None, os.getpid()
            self._watch = None
        with self._lock:
            if self._ended:
                raise ConnectionEnded(self._ended)
            if self._watch is not None and self._watch.has_ended() and self._channel is not None:
                _left_behind.append(self._channel)  # calls of other threads may still read from it
                self._channel = self._watch = None
            if self._channel is None:
                self._channel = self._connect()
            return self._channel

    def _connect(self) -> grpc.Channel:
        """A channel to the coordinator, or to the one of several that leads."""
        if not self._candidates.several:
            return self._open(self.settings)
        give_up = self._candidates.give_up_at()
        while True:
            for one in self._candidates.in_order():
                try:
                    channel = self._open(one)
                except errors.Unavailable:
                    if time.monotonic() > give_up:
                        raise
                else:
                    self._candidates.leads(one)
                    self._watch = leader.Watch(channel)
                    return channel
            time.sleep(leader.PAUSE)

    def _open(self, s: Settings) -> grpc.Channel:
        _check_fork()
        options = _options(self._candidates)
        channel = (
            grpc.secure_channel(s.address, _credentials(s), options)
            if s.tls
            else grpc.insecure_channel(s.address, options)
        )
        try:
            channel.unary_unary(_PROBE)(b"", timeout=s.connect_timeout)
        except grpc.RpcError as error:
            if (refusal := _refusal(error, s, may_stand_by=self._candidates.several)) is not None:
                channel.close()
                raise refusal from None
        except BaseException:
            channel.close()
            raise
        _open.add(self)
        return channel

    def end(self, reason: str) -> None:
        """Closes the channel; later calls are refused as Unavailable, with this reason."""
        self._ended = reason
        self.close()

    def close(self) -> None:
        """Closes the channel; the next call opens another."""
        if self._process == os.getpid() and self._channel is not None:
            self._channel.close()
        self._channel = None


class AsyncConnection:
    """As Connection, for asyncio: one channel for each event loop. Used by the loop's thread."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self._channel: Any = None
        self._candidates = leader.Candidates(settings)
        self._key: tuple[int, int] = (0, 0)

    async def channel(self) -> Any:
        """The channel, connected. Unavailable if nothing answers within the connection's time."""
        key = (os.getpid(), id(asyncio.get_running_loop()))
        watched = self._channel is not None and self._key == key and self._candidates.several
        if watched and leader.has_ended(self._channel.get_state()):
            _left_behind.append(self._channel)  # other calls may still read from it
            self._channel = None
        if self._channel is None or self._key != key:
            self._channel = await self._connect()
            self._key = key
        return self._channel

    async def _connect(self) -> Any:
        """As Connection._connect."""
        if not self._candidates.several:
            return await self._open(self.settings)
        give_up = self._candidates.give_up_at()
        while True:
            for one in self._candidates.in_order():
                try:
                    channel = await self._open(one)
                except errors.Unavailable:
                    if time.monotonic() > give_up:
                        raise
                else:
                    self._candidates.leads(one)
                    return channel
            await asyncio.sleep(leader.PAUSE)

    async def _open(self, s: Settings) -> Any:
        from grpc import aio

        _check_fork()
        options = _options(self._candidates)
        channel = (
            aio.secure_channel(s.address, _credentials(s), options)
            if s.tls
            else aio.insecure_channel(s.address, options)
        )
        try:
            await channel.unary_unary(_PROBE)(b"", timeout=s.connect_timeout)
        except grpc.RpcError as error:
            if (refusal := _refusal(error, s, may_stand_by=self._candidates.several)) is not None:
                await channel.close()
                raise refusal from None
        except BaseException:
            await channel.close()
            raise
        return channel

    async def close(self) -> None:
        """Closes the channel; the next call opens another."""
        if self._channel is not None:
            await self._channel.close()
        self._channel = None
