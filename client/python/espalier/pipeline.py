"""Many calls of one kind, a few of them under way at once."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import grpc

from espalier.errors import DeadlineExceeded
from espalier.held_interrupts import wait_for
from espalier.rpc import AsyncConnection, Connection, Method, Settings, typed
from espalier.steps import Step

_LONGEST_PAUSE = 2.0


def _queue_is_full(error: grpc.RpcError) -> bool:
    """Whether the coordinator refused a call for what waits already. It says when to come again."""
    return error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and any(
        key == "retry-after" for key, _ in error.trailing_metadata() or ()
    )


class _Retries:
    """Decides whether the call that failed is made again, and after which pause."""

    def __init__(self, settings: Settings, end: float | None):
        self._settings = settings
        self._give_up = time.monotonic() + settings.retry_for
        if end is not None:
            self._give_up = min(self._give_up, end)
        self._pause = 0.1

    def pause(self, error: grpc.RpcError) -> float:
        """Seconds until the next try; raises what the error stands for if there is none."""
        pause = self._pause
        again = error.code() == grpc.StatusCode.UNAVAILABLE or _queue_is_full(error)
        if not again or time.monotonic() + pause > self._give_up:
            raise typed(error, self._settings) from None
        self._pause = min(2 * pause, _LONGEST_PAUSE)
        return pause


@dataclass
class Pipeline(Step):
    """Requests with one reply each, at most `under_way` at once; `take` gets the replies in order.

    For calls that may be made twice: one is made again for a while if the coordinator is UNAVAILABLE or its queue is
    full. An error ends all. `end`: of time.monotonic; None: no deadline.
    """

    method: Method
    requests: Iterable[Any]
    take: Callable[[Any], None]
    under_way: int
    end: float | None = None

    def _call(self, channel: Any) -> Any:
        return channel.unary_unary(
            self.method.path,
            request_serializer=self.method.request.SerializeToString,
            response_deserializer=self.method.reply.FromString,
        )

    def _left(self) -> float | None:
        if self.end is None:
            return None
        left = self.end - time.monotonic()
        if left <= 0:
            raise DeadlineExceeded("the time given for this call is over")
        return left

    def run(self, connection: Connection) -> None:
        """Makes the calls."""
        s = connection.settings
        call = self._call(connection.channel())
        waiting: deque[tuple[Any, Any]] = deque()

        def begin(request: Any) -> Any:
            left = self._left()
            return wait_for(lambda: call.future(request, timeout=left, metadata=s.metadata))

        def finish() -> None:
            nonlocal call
            request, future = waiting.popleft()
            retries: _Retries | None = None
            while True:
                try:
                    if future is None:
                        reply = call(request, timeout=self._left(), metadata=s.metadata)
                    else:
                        reply = wait_for(future.result, future.cancel)
                    break
                except grpc.RpcError as error:
                    retries = retries or _Retries(s, self.end)
                    time.sleep(retries.pause(error))
                    call = self._call(connection.channel())  # another coordinator may lead
                future = None
            self.take(reply)

        try:
            requests = iter(self.requests)
            request = next(requests, None)
            while request is not None:
                following = next(requests, None)
                # A call that is alone is made without a future, which would take gRPC's other thread.
                alone = following is None and not waiting
                waiting.append((request, None if alone else begin(request)))
                if len(waiting) == self.under_way:
                    finish()
                request = following
            while waiting:
                finish()
        finally:
            for _, future in waiting:
                if future is not None:
                    wait_for(future.cancel)

    async def arun(self, connection: AsyncConnection) -> None:
        """As run."""
        s = connection.settings
        call = self._call(await connection.channel())
        waiting: deque[tuple[Any, Any]] = deque()

        async def finish() -> None:
            nonlocal call
            request, running = waiting.popleft()
            retries: _Retries | None = None
            while True:
                try:
                    reply = await running
                    break
                except grpc.RpcError as error:
                    retries = retries or _Retries(s, self.end)
                    await asyncio.sleep(retries.pause(error))
                    call = self._call(await connection.channel())
                running = call(request, timeout=self._left(), metadata=s.metadata)
            self.take(reply)

        try:
            for request in self.requests:
                waiting.append((request, call(request, timeout=self._left(), metadata=s.metadata)))
                if len(waiting) == self.under_way:
                    await finish()
            while waiting:
                await finish()
        finally:
            for _, running in waiting:
                running.cancel()


__all__ = ["Pipeline"]
