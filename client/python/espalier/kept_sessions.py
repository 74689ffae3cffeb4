"""Sessions that a model keeps open between calls: whoever needs their workers closes them first."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from espalier.client import Client


class Kept(Protocol):
    """Holds a session open while nobody uses it."""

    @property
    def client(self) -> Client:
        """The client whose workers it holds."""

    def release(self) -> None:
        """Closes the session. What is lost with it is said when somebody asks for it."""


_thread = threading.local()
_all: weakref.WeakSet[Kept] = weakref.WeakSet()


def keep(kept: Kept) -> None:
    """Lets `release` find it."""
    _all.add(kept)


def release(client: Client) -> None:
    """Closes what is kept open at the coordinator of `client`."""
    if getattr(_thread, "sparing", False):
        return
    address = client._connection.settings.address
    for kept in list(_all):
        if kept.client._connection.settings.address == address:
            kept.release()


@contextlib.contextmanager
def spared() -> Iterator[None]:
    """Within it, `release` closes nothing in this thread: for sessions that make do with idle workers."""
    _thread.sparing = True
    try:
        yield
    finally:
        _thread.sparing = False


__all__ = ["Kept", "keep", "release", "spared"]
