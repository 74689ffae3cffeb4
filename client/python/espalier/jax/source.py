"""Lines of the user's program."""

from __future__ import annotations

import os
import sysconfig
from typing import Any

_LIBRARIES = tuple(
    os.sep + os.path.join(name, "")
    for name in ("jax", "jaxlib", "flax", "haiku", "optax", "chex", "equinox", "espalier")
)
_STANDARD = os.path.join(sysconfig.get_paths()["stdlib"], "")


def line_of(source_info: Any) -> str:
    """`model.py:12`: the innermost line outside of JAX and the libraries upon it; empty if it is not known."""
    traceback = getattr(source_info, "traceback", None)
    if traceback is None:
        return ""
    for frame in traceback.frames:
        path = frame.file_name
        library = any(name in path for name in _LIBRARIES) and "site-packages" in path
        if library or os.path.join("espalier", "jax", "") in path or "<" in path:
            continue
        if path.startswith(_STANDARD) and "site-packages" not in path:
            continue
        return f"{os.path.basename(path)}:{frame.line_num}"
    return ""
