"""Streams of events that are taken up again where a connection was lost."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from espalier import errors
from espalier.rpc import ConnectionEnded, Settings
from espalier.steps import Emit, Lost, Open, Read, Sleep, Step

T = TypeVar("T")


@dataclass
class Watched(Generic[T]):
    """A stream of events.

    open: opens it behind what was taken already, for so many seconds (None: no end). take: returns what to emit of an
    event, if anything. over: whether nothing more is to come. lost: gets a text once when a connection is lost, and
    returns what to emit. late, kept: of the errors for a watch that took too long, and a coordinator that stays away.
    """

    open: Callable[[float | None], Open]
    take: Callable[[Any], T | None]
    over: Callable[[], bool]
    lost: Callable[[str], T | None]
    late: str
    kept: str


def keep_watching(
    watched: Watched[T], settings: Settings, end: float | None, retry_for: float
) -> Generator[Step | Emit[T], Any, None]:
    """Emits what the stream brings until it ends. A lost connection is made again for up to retry_for seconds.

    DeadlineExceeded at `end` (of time.monotonic).
    """
    pause, give_up = 0.2, math.inf
    while True:
        replies = None
        try:
            replies = yield watched.open(None if end is None else max(0.001, end - time.monotonic()))
            while (event := (yield Read(replies))) is not None:
                pause, give_up = 0.2, math.inf
                if (taken := watched.take(event)) is not None:
                    yield Emit(taken)
            return
        except ConnectionEnded:
            raise
        except errors.DeadlineExceeded:
            raise errors.DeadlineExceeded(watched.late) from None
        # Cancelled: by the coordinator, because nothing was read for long.
        except (Lost, errors.Unavailable, errors.Cancelled) as lost:
            if watched.over():
                return
            error = lost.error if isinstance(lost, Lost) else lost
        finally:
            if replies is not None:
                replies.cancel()
        if give_up == math.inf:
            give_up = time.monotonic() + retry_for
            text = f"connection to the coordinator at {settings.address} lost, trying for {retry_for:g} s"
            if (warning := watched.lost(text)) is not None:
                yield Emit(warning)
        if time.monotonic() + pause > give_up:
            raise errors.Unavailable(
                f"{error}. {watched.kept}: start the coordinator again with the same data folder, and it goes on"
            )
        yield Sleep(pause)
        pause = min(2 * pause, 2.0)


__all__ = ["Watched", "keep_watching"]
