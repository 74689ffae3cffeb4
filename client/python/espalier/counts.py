"""Integers that a user gives: batch sizes, steps, epochs, seeds."""

from __future__ import annotations

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


__all__ = ["check_count", "check_counts"]
