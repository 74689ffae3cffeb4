"""Several coordinators that stand by for each other: calls go to the one that leads.

An address names them all, with commas between. One that stands by answers every call with UNAVAILABLE; one that no
longer leads has ended, and its connections with it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    from espalier.rpc import Settings

# Longer than the lease of a coordinator that others stand by for, by default.
TAKEOVER = 30.0
PAUSE = 0.2  # between two looks at all of them
_PROBE_TIMEOUT = 2.0

# A coordinator that was stopped, or whose host is gone, does not answer.
KEEPALIVE = [("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 5_000)]

_GOES_ON = (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.CONNECTING)


def addresses(address: str) -> list[str]:
    """The addresses that one names."""
    return [part.strip() for part in address.split(",")]


def has_ended(state: grpc.ChannelConnectivity) -> bool:
    """Whether a channel that was connected no longer is."""
    return state not in _GOES_ON


class Candidates:
    """The coordinators of some settings; the one that led last comes first."""

    def __init__(self, settings: Settings):
        limit = min(settings.connect_timeout, _PROBE_TIMEOUT)
        self._all = [replace(settings, address=one, connect_timeout=limit) for one in addresses(settings.address)]
        self.several = len(self._all) > 1
        self._patience = max(settings.connect_timeout, settings.retry_for)

    def in_order(self) -> Iterator[Settings]:
        """One after the other."""
        return iter(list(self._all))

    def leads(self, found: Settings) -> None:
        """Says which one it was."""
        self._all = [found, *(one for one in self._all if one is not found)]

    def give_up_at(self) -> float:
        """Until when another one may begin to lead; as time.monotonic()."""
        return time.monotonic() + self._patience


class Watch:
    """Tells whether the connection of a channel has ended since."""

    def __init__(self, channel: Any):
        self._ended = threading.Event()
        channel.subscribe(self._see)

    def _see(self, state: grpc.ChannelConnectivity) -> None:
        if has_ended(state):
            self._ended.set()

    def has_ended(self) -> bool:
        """Whether it has."""
        return self._ended.is_set()
