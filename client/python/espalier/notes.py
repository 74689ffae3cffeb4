"""Warnings that point to the user's line."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings

from espalier.errors import EspalierWarning

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_BETWEEN = (contextlib.__file__, functools.__file__)  # call the package for the package


def _is_ours(file: str) -> bool:
    return file in _BETWEEN or os.path.abspath(file).startswith(_PACKAGE)


def warn(text: str) -> None:
    """An EspalierWarning at the innermost caller outside of the package."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
        level += 1
    warnings.warn(text, EspalierWarning, stacklevel=level + 1)


__all__ = ["warn"]
