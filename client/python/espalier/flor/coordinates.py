"""Where in a program a value was logged: the loops and blocks that are open, and how often something came there."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote


@dataclass
class Scope:
    """One open iteration of a loop, or one open block (index None).

    label: the name, with #2 if the enclosing scope has it for the second time. at: what the journal says of the place.
    """

    label: str
    index: int | None
    key: str
    at: list[Any]
    text: str  # of `at`, as JSON
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)


class Place:
    """The open scopes, outermost first."""

    def __init__(self) -> None:
        self._scopes = [Scope("", None, "", [], "[]")]

    @property
    def depth(self) -> int:
        """Number of open scopes."""
        return len(self._scopes) - 1

    @property
    def key(self) -> str:
        """The place as text, the same in each run."""
        return self._scopes[-1].key

    @property
    def at(self) -> list[Any]:
        """The place for the journal: ["epoch", 3] for a loop, "training_loop" for a block."""
        return self._scopes[-1].at

    @property
    def text(self) -> str:
        """`at` as JSON."""
        return self._scopes[-1].text

    def innermost(self) -> Scope:
        """The innermost open scope."""
        return self._scopes[-1]

    def ordinal(self, kind: str, name: str) -> int:
        """How often this was asked for `name` in the innermost scope before."""
        counts = self._scopes[-1].counts
        number = counts[kind, name]
        counts[kind, name] = number + 1
        return number

    def label(self, kind: str, name: str) -> str:
        """The name of a loop or block that begins here."""
        number = self.ordinal(kind, name)
        return f"{name}#{number + 1}" if number else name

    def enter_iteration(self, label: str, index: int, value: Any) -> None:
        """Opens one iteration of a loop."""
        here = self._scopes[-1]
        plain = isinstance(value, (bool, int, float, str)) and value != index
        entry = [label, index, value] if plain else [label, index]
        at = [*here.at, entry]
        key = f"{here.key}/{quote(label, safe='#')}={index}"
        self._scopes.append(Scope(label, index, key, at, json.dumps(at, separators=(",", ":"))))

    def enter_block(self, label: str) -> None:
        """Opens a block."""
        here = self._scopes[-1]
        at = [*here.at, label]
        key = f"{here.key}/{quote(label, safe='#')}"
        self._scopes.append(Scope(label, None, key, at, json.dumps(at, separators=(",", ":"))))

    def close_to(self, depth: int) -> list[Scope]:
        """Closes scopes until `depth` are open; returns the blocks among them."""
        closed = self._scopes[depth + 1 :]
        del self._scopes[depth + 1 :]
        return [scope for scope in closed if scope.index is None]


__all__ = ["Place", "Scope"]
