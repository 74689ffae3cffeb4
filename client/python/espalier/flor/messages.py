"""What flor says to the person who runs a script: lines on standard error."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """One line on standard error. A closed stream is no reason to end a training."""
    try:
        print(f"espalier.flor: {text}", file=sys.stderr, flush=True)
    except (OSError, ValueError, AttributeError):
        return


__all__ = ["say"]
