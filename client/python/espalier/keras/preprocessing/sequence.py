"""Sequences of unequal lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from espalier.errors import InvalidArgument


def pad_sequences(
    sequences: Sequence[Sequence[Any]],
    maxlen: int | None = None,
    dtype: str = "int32",
    padding: str = "pre",
    truncating: str = "pre",
    value: float = 0.0,
) -> np.ndarray[Any, Any]:
    """Sequences as rows of one array, [N, maxlen, ...], with `value` before or behind those that are shorter.

    maxlen: None is the longest one. Longer ones lose their beginning (truncating="pre") or their end ("post").
    """
    for name, given in (("padding", padding), ("truncating", truncating)):
        if given not in ("pre", "post"):
            raise InvalidArgument(f"pad_sequences: {name}={given!r}; accepted are pre, post")
    rows = [np.asarray(sequence) for sequence in sequences]
    if any(row.ndim == 0 for row in rows):
        raise InvalidArgument("pad_sequences: sequences is a list of sequences, got a number in it")
    length = max((len(row) for row in rows), default=0) if maxlen is None else int(maxlen)
    rest = next((row.shape[1:] for row in rows if len(row)), ())
    made = np.full((len(rows), length, *rest), value, dtype=dtype)
    for target, row in zip(made, rows, strict=True):
        if len(row) == 0 or length == 0:
            continue
        if row.shape[1:] != rest:
            raise InvalidArgument(f"pad_sequences: elements of shapes {rest} and {row.shape[1:]}")
        kept = row[-length:] if truncating == "pre" else row[:length]
        if padding == "post":
            target[: len(kept)] = kept
        else:
            target[len(target) - len(kept) :] = kept
    return made
