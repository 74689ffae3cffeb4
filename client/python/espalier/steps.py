"""Calls written once for blocking and for asyncio clients.

The body of an operation is a generator. It yields steps (a call, a pause, some blocking work) and is sent their
results; the caller decides how they run:

    @operation
    def cancel(self: Methods, job_id: str) -> Steps[Job]:
        reply = yield Unary(method("Training", "Cancel"), CancelRequest(job_id=job_id))
        return reply.job

In a class that derives from Blocking it is a method that returns the result; in one that derives from Asynchronous it
returns a coroutine. A `stream` also yields Emit steps, whose values are those of an iterator.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import grpc

from espalier.held_interrupts import wait_for
from espalier.rpc import AsyncConnection, Connection, Method, typed

P = ParamSpec("P")
T = TypeVar("T")

_LONGEST_PAUSE = 2.0


class Step:
    """One thing to do for an operation."""

    def run(self, connection: Connection) -> Any:
        """Does it, and returns its result."""
        raise NotImplementedError

    async def arun(self, connection: AsyncConnection) -> Any:
        """As run."""
        raise NotImplementedError


Steps = Generator[Step, Any, T]


def _retries(error: grpc.RpcError, give_up: float, pause: float) -> bool:
    return error.code() == grpc.StatusCode.UNAVAILABLE and time.monotonic() + pause <= give_up


@dataclass
class Unary(Step):
    """One request, one reply. Retried while the coordinator is UNAVAILABLE: for calls that only read or carry a key."""

    method: Method
    request: Any
    timeout: float | None = None  # seconds; None: the settings' call_timeout

    def _call(self, channel: Any) -> Callable[..., Any]:
        call: Callable[..., Any] = channel.unary_unary(
            self.method.path,
            request_serializer=self.method.request.SerializeToString,
            response_deserializer=self.method.reply.FromString,
        )
        return call

    def run(self, connection: Connection) -> Any:
        """The reply."""
        s = connection.settings
        call = self._call(connection.channel())
        give_up, pause = time.monotonic() + s.retry_for, 0.1
        while True:
            try:
                return call(self.request, timeout=self.timeout or s.call_timeout, metadata=s.metadata)
            except grpc.RpcError as error:
                if not _retries(error, give_up, pause):
                    raise typed(error, s) from None
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            call = self._call(connection.channel())  # another coordinator may lead

    async def arun(self, connection: AsyncConnection) -> Any:
        """The reply."""
        s = connection.settings
        call = self._call(await connection.channel())
        give_up, pause = time.monotonic() + s.retry_for, 0.1
        while True:
            try:
                return await call(self.request, timeout=self.timeout or s.call_timeout, metadata=s.metadata)
            except grpc.RpcError as error:
                if not _retries(error, give_up, pause):
                    raise typed(error, s) from None
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            call = self._call(await connection.channel())


@dataclass
class Send(Step):
    """A stream of requests, one reply. Not retried."""

    method: Method
    requests: Callable[[], Iterator[Any]]
    timeout: float

    def _call(self, channel: Any) -> Callable[..., Any]:
        call: Callable[..., Any] = channel.stream_unary(
            self.method.path,
            request_serializer=self.method.request.SerializeToString,
            response_deserializer=self.method.reply.FromString,
        )
        return call

    def run(self, connection: Connection) -> Any:
        """The reply. What `requests` raises is raised, and ends the call."""
        s = connection.settings
        failed: list[BaseException] = []
        known = threading.Event()
        call: Any = None

        def requests() -> Iterator[Any]:  # in a thread of gRPC
            try:
                yield from self.requests()
            except GeneratorExit:
                raise
            except BaseException as error:
                failed.append(error)
                known.wait()
                call.cancel()

        method: Any = self._call(connection.channel())
        call = wait_for(lambda: method.future(requests(), timeout=self.timeout, metadata=s.metadata))
        known.set()
        try:
            return wait_for(call.result, call.cancel)
        except (grpc.RpcError, grpc.FutureCancelledError) as error:
            if failed:
                raise failed[0] from None
            raise typed(error if isinstance(error, grpc.RpcError) else call, s) from None
        except BaseException:
            wait_for(call.cancel)
            raise

    async def arun(self, connection: AsyncConnection) -> Any:
        """As run."""
        s = connection.settings
        failed: list[BaseException] = []

        async def requests() -> AsyncIterator[Any]:
            source = self.requests()
            try:
                while (request := await asyncio.to_thread(next, source, None)) is not None:
                    yield request
            except BaseException as error:
                failed.append(error)
                raise

        try:
            return await self._call(await connection.channel())(requests(), timeout=self.timeout, metadata=s.metadata)
        except (grpc.RpcError, asyncio.CancelledError) as error:
            if failed and not isinstance(failed[0], (asyncio.CancelledError, GeneratorExit)):
                raise failed[0] from None
            if isinstance(error, grpc.RpcError):
                raise typed(error, s) from None
            raise


class Replies:
    """A running call that streams replies."""

    def __init__(self, call: Any):
        self.call = call
        self.iterator: Any = None

    def cancel(self) -> None:
        """Ends the call; no effect if it is over."""
        wait_for(self.call.cancel)


@dataclass
class Open(Step):
    """Begins a call that streams replies; gives Replies. Without a deadline unless `timeout` (seconds) is given."""

    method: Method
    request: Any
    timeout: float | None = None

    def _call(self, channel: Any, metadata: Any) -> Replies:
        call = channel.unary_stream(
            self.method.path,
            request_serializer=self.method.request.SerializeToString,
            response_deserializer=self.method.reply.FromString,
        )
        return Replies(call(self.request, timeout=self.timeout, metadata=metadata))

    def run(self, connection: Connection) -> Replies:
        """The call."""
        return wait_for(lambda: self._call(connection.channel(), connection.settings.metadata))

    async def arun(self, connection: AsyncConnection) -> Replies:
        """The call."""
        return self._call(await connection.channel(), connection.settings.metadata)


class Lost(Exception):
    """The connection broke, or the coordinator is unavailable, in the middle of a call that streams replies."""

    def __init__(self, error: Exception):
        super().__init__(str(error))
        self.error = error


@dataclass
class Read(Step):
    """The next reply of a call; None at its end. Lost if the coordinator is UNAVAILABLE."""

    replies: Replies

    def _raise(self, error: grpc.RpcError, settings: Any) -> None:
        found = typed(error, settings)
        if error.code() == grpc.StatusCode.UNAVAILABLE:
            raise Lost(found) from None
        raise found from None

    def run(self, connection: Connection) -> Any:
        """The reply."""
        if self.replies.iterator is None:
            self.replies.iterator = iter(self.replies.call)
        try:
            return wait_for(lambda: next(self.replies.iterator, None), self.replies.cancel)
        except grpc.RpcError as error:
            self._raise(error, connection.settings)

    async def arun(self, connection: AsyncConnection) -> Any:
        """The reply."""
        from grpc import aio

        try:
            reply = await self.replies.call.read()
            return None if reply is aio.EOF else reply
        except grpc.RpcError as error:
            self._raise(error, connection.settings)


@dataclass
class InitialMetadata(Step):
    """What the coordinator says before the first reply of a call: a dict."""

    replies: Replies

    def run(self, connection: Connection) -> dict[str, str]:
        """The metadata; empty if the call failed, which Read reports."""
        try:
            return dict(wait_for(self.replies.call.initial_metadata, self.replies.cancel) or ())
        except grpc.RpcError:
            return {}

    async def arun(self, connection: AsyncConnection) -> dict[str, str]:
        """As run."""
        try:
            return dict(await self.replies.call.initial_metadata() or ())
        except grpc.RpcError:
            return {}


@dataclass
class Sleep(Step):
    """A pause, in seconds."""

    seconds: float

    def run(self, connection: Connection) -> None:
        """Pauses."""
        time.sleep(self.seconds)

    async def arun(self, connection: AsyncConnection) -> None:
        """Pauses."""
        await asyncio.sleep(self.seconds)


@dataclass
class Work(Step):
    """Work of this machine that takes time: reading, hashing, writing. In asyncio a thread does it."""

    function: Callable[[], Any]

    def run(self, connection: Connection) -> Any:
        """What the function returns."""
        return self.function()

    async def arun(self, connection: AsyncConnection) -> Any:
        """What the function returns."""
        return await asyncio.to_thread(self.function)


@dataclass
class Emit(Generic[T]):
    """The next value of a stream."""

    value: T


Emits = Generator[Any, Any, None]


class Blocking:
    """Base of classes whose operations block."""

    _connection: Connection


class Asynchronous:
    """Base of classes whose operations are coroutines."""

    _connection: AsyncConnection


def drive(connection: Connection, steps: Steps[T]) -> T:
    """Runs an operation."""
    result: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = steps.throw(error) if error is not None else steps.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        result, error = None, None
        try:
            result = step.run(connection)
        except BaseException as raised:
            error = raised


def consume(emits: Emits, take: Callable[[Any], None]) -> Steps[None]:
    """Gives to `take` what a stream emits; the other steps are left to the driver. What `take` raises ends it."""
    result: Any = None
    error: BaseException | None = None
    try:
        while True:
            try:
                step = emits.throw(error) if error is not None else emits.send(result)
            except StopIteration:
                return
            result, error = None, None
            if isinstance(step, Emit):
                take(step.value)
                continue
            try:
                result = yield step
            except BaseException as raised:
                error = raised
    finally:
        emits.close()


async def adrive(connection: AsyncConnection, steps: Steps[T]) -> T:
    """Runs an operation."""
    result: Any = None
    error: BaseException | None = None
    while True:
        try:
            step = steps.throw(error) if error is not None else steps.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        result, error = None, None
        try:
            result = await step.arun(connection)
        except BaseException as raised:
            error = raised


def drive_stream(connection: Connection, steps: Emits) -> Iterator[Any]:
    """The values that a stream emits."""
    result: Any = None
    error: BaseException | None = None
    try:
        while True:
            try:
                step = steps.throw(error) if error is not None else steps.send(result)
            except StopIteration:
                return
            result, error = None, None
            if isinstance(step, Emit):
                yield step.value
                continue
            try:
                result = step.run(connection)
            except BaseException as raised:
                error = raised
    finally:
        steps.close()


async def adrive_stream(connection: AsyncConnection, steps: Emits) -> AsyncIterator[Any]:
    """As drive_stream."""
    result: Any = None
    error: BaseException | None = None
    try:
        while True:
            try:
                step = steps.throw(error) if error is not None else steps.send(result)
            except StopIteration:
                return
            result, error = None, None
            if isinstance(step, Emit):
                yield step.value
                continue
            try:
                result = await step.arun(connection)
            except BaseException as raised:
                error = raised
    finally:
        steps.close()


class _Descriptor:
    def __init__(self, body: Callable[..., Any]):
        self.body = body
        functools.update_wrapper(self, body)  # type: ignore[arg-type]


class operation(_Descriptor, Generic[P, T]):  # noqa: N801 (a decorator)
    """A method made of steps."""

    def __init__(self, body: Callable[Concatenate[Any, P], Steps[T]]):
        super().__init__(body)

    @overload
    def __get__(self, instance: None, owner: Any) -> operation[P, T]: ...
    @overload
    def __get__(self, instance: Blocking, owner: Any) -> Callable[P, T]: ...
    @overload
    def __get__(self, instance: Asynchronous, owner: Any) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return self
        driver = drive if isinstance(instance, Blocking) else adrive

        @functools.wraps(self.body)
        def bound(*args: Any, **kwargs: Any) -> Any:
            return driver(instance._connection, self.body(instance, *args, **kwargs))

        return bound


class value(_Descriptor, Generic[T]):  # noqa: N801 (a decorator)
    """A property made of steps; in asyncio it is awaited."""

    def __init__(self, body: Callable[[Any], Steps[T]]):
        super().__init__(body)

    @overload
    def __get__(self, instance: None, owner: Any) -> value[T]: ...
    @overload
    def __get__(self, instance: Blocking, owner: Any) -> T: ...
    @overload
    def __get__(self, instance: Asynchronous, owner: Any) -> Awaitable[T]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return self
        driver = drive if isinstance(instance, Blocking) else adrive
        return driver(instance._connection, self.body(instance))


class stream(_Descriptor, Generic[P, T]):  # noqa: N801 (a decorator)
    """An iterator made of steps. `T` is what it emits."""

    def __init__(self, body: Callable[Concatenate[Any, P], Generator[Step | Emit[T], Any, None]]):
        super().__init__(body)

    @overload
    def __get__(self, instance: None, owner: Any) -> stream[P, T]: ...
    @overload
    def __get__(self, instance: Blocking, owner: Any) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, instance: Asynchronous, owner: Any) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, instance: Any, owner: Any) -> Any:
        if instance is None:
            return self
        driver = drive_stream if isinstance(instance, Blocking) else adrive_stream

        @functools.wraps(self.body)
        def bound(*args: Any, **kwargs: Any) -> Any:
            return driver(instance._connection, self.body(instance, *args, **kwargs))

        return bound
