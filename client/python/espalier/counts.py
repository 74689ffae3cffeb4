"""Numbers that a user gives: batch sizes, steps, epochs, seeds, durations, times."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from espalier.errors import InvalidArgument


def check_count(name: str, given: Any, least: int = 1, most: int = (1 << 63) - 1) -> int:
    """The integer. InvalidArgument for anything else, also for True and 64.0, and beyond `least` and `most`."""
    if isinstance(given, (bool, np.bool_)) or not isinstance(given, (int, np.integer)) or given < least:
        accepted = "an integer above 0" if least == 1 else f"an integer of {least} or more"
        raise InvalidArgument(f"{name} is {given!r}; accepted: {accepted}")
    if given > most:
        raise InvalidArgument(f"{name} is {given}; accepted: an integer up to {most}")
    return int(given)


def check_counts(least: int = 1, **given: Any) -> None:
    """check_count of each argument, by its name, that is not None."""
    for name, count in given.items():
        if count is not None:
            check_count(name, count, least)


def seconds_of(name: str, given: Any) -> float:
    """The seconds of a number or a timedelta, 0 or more. InvalidArgument for anything else."""
    seconds = given.total_seconds() if isinstance(given, timedelta) else given
    is_number = isinstance(seconds, (int, float, np.integer, np.floating)) and not isinstance(seconds, (bool, np.bool_))
    if not is_number or not math.isfinite(seconds) or seconds < 0:
        raise InvalidArgument(f"{name} is {given!r}; accepted: seconds, 0 or more, or a timedelta")
    return float(seconds)


def unix_ms_of(name: str, given: Any) -> int:
    """The milliseconds since 1970 of a datetime (of this machine's zone if it has none) or a timedelta before now."""
    if isinstance(given, timedelta):
        given = datetime.now().astimezone() - given
    if not isinstance(given, datetime):
        raise InvalidArgument(f"{name} is {given!r}; accepted: a datetime, or a timedelta before now")
    return int(given.timestamp() * 1000)


__all__ = ["check_count", "check_counts", "seconds_of", "unix_ms_of"]
