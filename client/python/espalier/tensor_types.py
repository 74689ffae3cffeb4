"""Element types of the Open Inference Protocol, and the conversion of arrays to them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from espalier.errors import InvalidArgument
from espalier.npz import Array, as_float32, as_integers

_CODES = {
    "BOOL": "|b1",
    "UINT8": "|u1",
    "INT8": "|i1",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
}


@dataclass(frozen=True)
class Tensor:
    """An input or output of a served graph."""

    name: str
    datatype: str  # as the protocol names it: "FP32"
    shape: tuple[int, ...]  # of one example

    def __str__(self) -> str:
        return f"{self.name} {self.datatype}{[-1, *self.shape]}"

    @property
    def is_float(self) -> bool:
        """Whether its elements are floats."""
        return self.datatype in ("FP16", "FP32", "BF16")

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy type, little-endian; bfloat16 by ml_dtypes."""
        if self.datatype == "BF16":
            try:
                import ml_dtypes
            except ImportError:
                raise InvalidArgument(f"{self} is bfloat16, which NumPy lacks: pip install ml_dtypes") from None
            found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
            return found
        if self.datatype not in _CODES:
            raise InvalidArgument(
                f"{self} has an element type that this package does not know; known are {', '.join(_CODES)}, BF16"
            )
        return np.dtype(_CODES[self.datatype])

    @property
    def example_bytes(self) -> int:
        """Bytes of one example."""
        element = 2 if self.datatype == "BF16" else self.dtype.itemsize
        return math.prod(self.shape) * element


def converted(array: Array, tensor: Tensor) -> Array:
    """The array in the type of an input. InvalidArgument naming input, value and row where something would be lost.

    Floats may lose digits, and only they: 0.1 is another number in each float type.
    """
    dtype = tensor.dtype
    if array.dtype == dtype:
        return array
    if tensor.is_float:
        return _as_floats(array, dtype, tensor)
    says = f"input {tensor.name!r} takes {tensor.datatype}, and has"
    if array.dtype.kind == "f":
        array = as_integers(array, says)
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if array.dtype.kind != "b":
        _refuse(array, (array < low) | (array > high), says, f"; accepted: {low} to {high}")
    return array.astype(dtype)


def _as_floats(array: Array, dtype: np.dtype[Any], tensor: Tensor) -> Array:
    where = f"input {tensor.name!r}"
    if array.dtype.kind == "f":
        array = as_float32(array, where)
        if tensor.datatype == "FP32":
            return array.astype(dtype, copy=False)
        with np.errstate(over="ignore"):
            made = array.astype(dtype)
        too_large = np.isfinite(array) & ~np.isfinite(made)
        _refuse(array, too_large, f"{where} has", f", which no {tensor.datatype} can hold")
        return made
    with np.errstate(over="ignore"):
        made = array.astype(dtype)
    if array.dtype.kind != "b" and array.dtype.itemsize * 8 > _DIGITS[tensor.datatype]:
        # Compared as float64: what no float64 holds exactly, no shorter float does.
        wide = array.astype(np.float64)
        with np.errstate(invalid="ignore"):
            lost = (made.astype(np.float64) != wide) | (wide.astype(array.dtype) != array)
        _refuse(
            array, lost, f"{where} has", f", which no {tensor.datatype} holds exactly; give floats to have them rounded"
        )
    return made


_DIGITS = {"FP32": 24, "FP16": 11, "BF16": 8}  # binary, of the significand


def _refuse(array: Array, wrong: Array, says: str, remedy: str) -> None:
    if not wrong.any():
        return
    found = int(np.argmax(wrong))
    row = found // max(1, array[:1].size)
    raise InvalidArgument(f"{says} {array.reshape(-1)[found].item()!r} in row {row}{remedy}")


__all__ = ["Tensor", "converted"]
