"""The operators of PyTorch that can be converted: `@handles` beside each function that converts one.

A handler gets the emitter and the operator's arguments, where tensors are `Value`s, and returns a `Value`, or a tuple
of them. `emit.output` describes the result (shape and type as PyTorch infers them).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

Handler: TypeAlias = Callable[..., Any]

_Function = TypeVar("_Function", bound=Handler)

HANDLERS: dict[str, Handler] = {}
# Handlers of operators that work on each element, so that known operands need not be broadcast.
ELEMENTWISE: set[str] = set()


def handles(*names: str, elementwise: bool = False) -> Callable[[_Function], _Function]:
    """Registers a handler of operators "aten.NAME.OVERLOAD", given without "aten."."""

    def register(handler: _Function) -> _Function:
        for name in names:
            if name in HANDLERS:
                raise AssertionError(f"two handlers of aten.{name}")
            HANDLERS[name] = handler
            if elementwise:
                ELEMENTWISE.add(name)
        return handler

    return register
