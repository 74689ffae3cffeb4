"""The handlers of JAX primitives, by name. Modules convert_*.py fill it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Handler = Callable[..., Any]

HANDLERS: dict[str, Handler] = {}  # (interpreter, equation, *values) -> value or list of values
OPAQUE: dict[str, Handler] = {}  # the same, where an operand is an Opaque
REFUSED: dict[str, str] = {}  # primitives that are known and cannot be converted: why


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Registers a handler of primitives."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


def handles_opaque(*names: str) -> Callable[[Handler], Handler]:
    """Registers a handler of primitives that get random keys or what is made from them."""

    def register(handler: Handler) -> Handler:
        for name in names:
            OPAQUE[name] = handler
        return handler

    return register
