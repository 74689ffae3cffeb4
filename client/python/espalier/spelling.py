"""What a misspelled name was probably meant to be."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def meant(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'batch_size'?", for the end of an error message; empty if none of `known` is similar."""
    plain = {other.lower().replace("_", ""): other for other in known}
    found = difflib.get_close_matches(name.lower().replace("_", ""), plain, n=1)
    return f"; did you mean {plain[found[0]]!r}?" if found else ""


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """The function; of a keyword that it does not have, the TypeError names the one that was meant."""
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "self"]

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        for name in kwargs:
            if name not in known:
                hint = meant(name, known) or f"; it has {', '.join(known)}"
                raise TypeError(f"{call.__name__}() got an unexpected keyword argument {name!r}{hint}")
        return function(*args, **kwargs)

    return call


__all__ = ["checked", "meant"]
