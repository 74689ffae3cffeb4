"""Command-line flags as FlexFlow reads them: flags that nobody knows belong to the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from espalier.errors import InvalidArgument


@dataclass(frozen=True)
class Flag:
    """A flag. `convert` makes its value of the next word; None: it has no value and means True."""

    key: str
    names: tuple[str, ...]
    convert: Callable[[str], Any] | None
    accepted: str = ""  # words for the value

    @property
    def all_names(self) -> set[str]:
        """The names, long ones with one dash too, as the manual prints them."""
        return {*self.names, *(name[1:] for name in self.names if name.startswith("--"))}


def parse(argv: Sequence[str], flags: Sequence[Flag]) -> dict[str, Any]:
    """Values by key of the flags that `argv` has; "--flag=value" is accepted, too. InvalidArgument for bad values."""
    found: dict[str, Any] = {}
    words = list(argv)
    i = 0
    while i < len(words):
        name, equals, inline = words[i].partition("=")
        i += 1
        flag = next((flag for flag in flags if name in flag.all_names), None)
        if flag is None:
            continue
        if flag.convert is None:
            found[flag.key] = True
            continue
        if not equals and i == len(words):
            raise InvalidArgument(f"{name} needs a value: {flag.accepted}")
        value = inline if equals else words[i]
        i += not equals
        try:
            found[flag.key] = flag.convert(value)
        except ValueError:
            raise InvalidArgument(f"{name} {value}: accepted is {flag.accepted}") from None
    return found
