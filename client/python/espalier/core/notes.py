"""Warnings that point to the user's line."""

from __future__ import annotations

import os
import sys
import warnings

from espalier.errors import EspalierWarning

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def warn(text: str) -> None:
    """An EspalierWarning at the innermost caller outside of the package."""
    level = 1
    frame = sys._getframe(1)
    while frame.f_back is not None and os.path.abspath(frame.f_code.co_filename).startswith(_PACKAGE):
        frame = frame.f_back
        level += 1
    warnings.warn(text, EspalierWarning, stacklevel=level + 1)
