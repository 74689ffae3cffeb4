"""Merges what kustomize renders of a base alone and with each of several components into one tree with conditions.

A condition is the name of a component ("s3"), or the names of those that exclude something ("not s3 web-identity").
"""
from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

Scalar = str | int | float | bool | None
MISSING = object()


@dataclass(frozen=True)
class Condition:
    names: tuple[str, ...]  # one of these components is there
    wanted: bool = True  # or, if false, none of them is


@dataclass
class Entry:
    """Of a mapping (with a key) or a list; without a condition it is always there."""

    condition: Condition | None
    key: str
    node: Node


@dataclass
class Mapping:
    entries: list[Entry]


@dataclass
class Sequence:
    entries: list[Entry]  # the keys tell items apart


@dataclass
class Leaf:
    value: Scalar | list[Any] | dict[str, Any]


Node = Mapping | Sequence | Leaf


def identity(item: Any) -> str:
    """Tells the items of a list apart."""
    if isinstance(item, dict):
        return str(item["name"]) if "name" in item else json.dumps(item, sort_keys=True)
    return str(item)


def keyed(value: Any) -> dict[str, Any] | None:
    """The parts of a mapping or a list by their keys."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list):
        return {identity(item): item for item in value}
    return None


def merge(base: Any, variants: dict[str, Any]) -> Node:
    """base: as it is without a component; variants: by component, where they have this part."""
    parts = keyed(base)
    if parts is None or all(variant == base for variant in variants.values()) and not parts:
        changed = {name for name, variant in variants.items() if variant != base}
        if changed:
            raise ValueError(f"{base!r} is another value with {', '.join(sorted(changed))}: only what is added or removed can vary")
        return Leaf(base)
    others = {name: keyed(variant) for name, variant in variants.items()}
    entries = []
    for key, value in parts.items():
        having = {name: other[key] for name, other in others.items() if other is not None and key in other}
        without = tuple(name for name in variants if name not in having)
        replaced = tuple(name for name, other in having.items() if keyed(value) is None and other != value)
        condition = Condition(without + replaced, wanted=False) if without or replaced else None
        entries.append(Entry(condition, key, merge(value, {name: other for name, other in having.items() if name not in replaced})))
        entries += [Entry(Condition((name,)), key, merge(having[name], {})) for name in replaced]
    for name, other in others.items():
        entries += [Entry(Condition((name,)), key, merge(value, {})) for key, value in (other or {}).items() if key not in parts]
    return Mapping(entries) if isinstance(base, dict) else Sequence(entries)


def name_of(document: dict[str, Any]) -> str:
    return f"{document['kind']}/{document['metadata']['name']}"


def merge_documents(base: list[dict[str, Any]], variants: dict[str, list[dict[str, Any]]]) -> dict[str, tuple[Condition | None, Node]]:
    """By kind and name, each object and the condition under which it is there."""
    named = {name: {name_of(document): document for document in documents} for name, documents in variants.items()}
    merged: dict[str, tuple[Condition | None, Node]] = {}
    for document in base:
        key = name_of(document)
        for name, documents in named.items():
            if key not in documents:
                raise ValueError(f"{name} removes {key}")
        merged[key] = (None, merge(document, {name: documents[key] for name, documents in named.items()}))
    for name, documents in named.items():
        for key, document in documents.items():
            if key in merged and merged[key][0] is None:
                continue
            if key in merged:
                raise ValueError(f"{key} is of two components")
            merged[key] = (Condition((name,)), merge(document, {}))
    return merged
