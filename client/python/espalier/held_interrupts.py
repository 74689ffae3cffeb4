"""Ctrl-C while gRPC waits for a reply."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

T = TypeVar("T")


class _Handler:
    """Stands in for a signal handler: what that one raises is kept, and `cancel` ends the call."""

    def __init__(self, handler: Callable[[int, FrameType | None], object], cancel: Callable[[], object]):
        self._handler = handler
        self._cancel = cancel
        self.raised: BaseException | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            self._handler(number, frame)
        except BaseException as raised:
            self.raised = raised
            # By another thread: this one may be about to take the lock that cancelling takes.
            threading.Thread(target=self._cancel, daemon=True).start()


def wait_for(call: Callable[[], T], cancel: Callable[[], object] = lambda: None) -> T:
    """Runs `call`, which uses gRPC and which `cancel` ends. After a Ctrl-C it raises KeyboardInterrupt.

    An exception of a signal handler within threading.Condition.__enter__ leaves the condition locked for ever; gRPC's
    own thread then waits for it, and no call of the channel ends any more. So the exception waits until gRPC returns.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):  # ignored, or not set by Python
        return call()
    held = _Handler(handler, cancel)
    signal.signal(signal.SIGINT, held)
    try:
        return call()
    finally:
        signal.signal(signal.SIGINT, handler)
        if held.raised is not None:
            raise held.raised from None


__all__ = ["wait_for"]
