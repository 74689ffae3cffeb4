"""Sessions that a model keeps open between calls: whoever needs their workers closes them first."""

from __future__ import annotations

import weakref
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


_all: weakref.WeakSet[Kept] = weakref.WeakSet()


def keep(kept: Kept) -> None:
    """Lets `release` find it."""
    _all.add(kept)


def release(client: Client, but: Kept | None = None) -> None:
    """Closes what is kept open at the coordinator of `client`."""
    address = client._connection.settings.address
    for kept in list(_all):
        if kept is not but and kept.client._connection.settings.address == address:
            kept.release()


__all__ = ["Kept", "keep", "release"]
