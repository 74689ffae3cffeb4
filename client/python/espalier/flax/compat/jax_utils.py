"""flax.jax_utils: there is one device, so that nothing is replicated."""

from __future__ import annotations

from typing import Any


def replicate(tree: Any, devices: Any = None) -> Any:
    """The tree itself."""
    return tree


def unreplicate(tree: Any) -> Any:
    """The tree itself."""
    return tree
