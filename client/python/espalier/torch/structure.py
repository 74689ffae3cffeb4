"""The structure of what a module returns: its tensors by name, and back again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Leaf:
    """A tensor, by its name: "output", "output.0", "logits"."""

    name: str


@dataclass(frozen=True)
class Branch:
    """A dict, tuple or list, or a class of these."""

    kind: Any  # the class
    items: dict[Any, Any]  # by key, or by place


def _children(outputs: Any, name: str) -> list[tuple[Any, str, Any]]:
    if isinstance(outputs, Mapping):
        return [(key, f"{name}.{key}" if name else str(key), value) for key, value in outputs.items()]
    return [(place, f"{name or 'output'}.{place}", value) for place, value in enumerate(outputs)]


def structure_of(outputs: Any, name: str = "") -> Any:
    """`outputs` with a Leaf in place of each tensor. What is neither tensor nor container stays."""
    if isinstance(outputs, torch.Tensor):
        return Leaf(name or "output")
    if isinstance(outputs, (Mapping, list, tuple)):
        items = {key: structure_of(value, named) for key, named, value in _children(outputs, name)}
        return Branch(type(outputs), items)
    return outputs


def leaves(outputs: Any, name: str = "") -> list[tuple[str, torch.Tensor]]:
    """The tensors of a module's result, by name."""
    if isinstance(outputs, torch.Tensor):
        return [(name or "output", outputs)]
    if not isinstance(outputs, (Mapping, list, tuple)):
        return []
    return [leaf for _, named, value in _children(outputs, name) for leaf in leaves(value, named)]


def rebuilt(structure: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """What `structure_of` was made of, with these tensors. KeyError for one that is missing."""
    if isinstance(structure, Leaf):
        return tensors[structure.name]
    if not isinstance(structure, Branch):
        return structure
    items = {key: rebuilt(value, tensors) for key, value in structure.items.items()}
    if issubclass(structure.kind, Mapping):
        # Classes of transformers take their fields as arguments.
        return dict(items) if structure.kind is dict else structure.kind(**items)
    made = list(items.values())
    return structure.kind(*made) if hasattr(structure.kind, "_fields") else structure.kind(made)


__all__ = ["Branch", "Leaf", "leaves", "rebuilt", "structure_of"]
