"""What a part of the package needs that is not installed with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def extra(name: str, *modules: str) -> Iterator[None]:
    """For imports of a front end: a ModuleNotFoundError of one of `modules` says which extra of the package has it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in modules:
            raise
        text = f"espalier.{name} needs the package {error.name}: pip install 'espalier[{name}]'"
        raise ModuleNotFoundError(text, name=error.name) from None


__all__ = ["extra"]
