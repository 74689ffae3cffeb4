"""Logged values as JSON, such that equal texts are equal bits."""

from __future__ import annotations

import base64
import json
import math
import sys
from typing import Any

import numpy as np


def encode(value: Any) -> Any:
    """A value as JSON. What is no number, text, array, or list or dict of them becomes {"$text": str(value)}."""
    if value is None or isinstance(value, (bool, str)):
        return value
    kind = type(value)
    if kind is int:
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": str(value)}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: encode(item) for key, item in value.items()}
        return {"$pairs": [[encode(key), encode(item)] for key, item in value.items()]}
    array = _array(value)
    if array is not None:
        little = array.astype(array.dtype.newbyteorder("<"), copy=False)
        data = base64.b64encode(np.ascontiguousarray(little).tobytes()).decode()
        return {"$array": little.dtype.str, "shape": list(array.shape), "data": data}
    return {"$text": str(value)}


def _array(value: Any) -> np.ndarray[Any, Any] | None:
    """The elements of an array of NumPy, torch or JAX; None for anything else."""
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        value = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    elif jax is not None and isinstance(value, jax.Array):
        value = np.asarray(value)
        value = value.astype(np.float32) if value.dtype.name == "bfloat16" else value
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufcSUmM":
        return np.asarray(value)
    return None


def decode(value: Any) -> Any:
    """What encode was given; tuples are lists, and arrays NumPy's."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$float" in value:
        return float(value["$float"])
    if "$pairs" in value:
        return {_hashable(decode(key)): decode(item) for key, item in value["$pairs"]}
    if "$array" in value:
        array = np.frombuffer(base64.b64decode(value["data"]), np.dtype(value["$array"])).reshape(value["shape"])
        return array.copy() if array.ndim else array[()]
    if "$text" in value:
        return value["$text"]
    return {key: decode(item) for key, item in value.items()}


def _hashable(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key


def is_text_of_object(encoded: Any) -> bool:
    """Whether only the text of an object is there, which may name an address."""
    return isinstance(encoded, dict) and "$text" in encoded


def same(one: Any, other: Any) -> bool:
    """Whether two encoded values have the same bits. NaNs are equal; 1, 1.0 and True are not."""
    return one is other or json.dumps(one) == json.dumps(other)


def shown(encoded: Any) -> str:
    """An encoded value for a message."""
    value = decode(encoded)
    text = np.array2string(value, threshold=8) if isinstance(value, np.ndarray) else repr(value)
    if isinstance(value, np.generic):  # 2.5, not np.float32(2.5)
        text = str(value)
    return text if len(text) <= 200 else text[:200] + "..."


__all__ = ["decode", "encode", "is_text_of_object", "same", "shown"]
