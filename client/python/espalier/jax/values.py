"""What the interpreter computes with: views of wires or arrays, sizes of symbolic dimensions, and random keys.

A view maps each dimension of a JAX value to a dimension of a stored tensor, or to none where the value is broadcast.
So transpositions, broadcasts and dimensions of size 1 cost no node until an operator needs the elements in order:
between NHWC convolutions, which the daemon computes as NCHW, transposes never appear.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from espalier.jax.ir import Shape, Wire


class Refused(Exception):
    """Raised by a handler: the primitive cannot be converted here, and why. Users see UnsupportedOperators."""


@dataclass(eq=False)
class Value:
    """A JAX value. Dimension i of it is dimension dims[i] of the wire or array; None: the same for all indices."""

    shape: Shape
    dtype: str
    dims: tuple[int | None, ...]
    wire: Wire | None = None
    array: np.ndarray[Any, Any] | None = None
    sized: bool = False  # a constant that was computed from the batch size

    @property
    def is_constant(self) -> bool:
        """Whether its elements are known."""
        return self.array is not None

    @property
    def order(self) -> list[int]:
        """The held dimensions of the value, in the order in which they are stored."""
        held = [i for i, d in enumerate(self.dims) if d is not None]
        return sorted(held, key=self.at)

    def at(self, dimension: int) -> int:
        """The stored dimension of one that is held."""
        stored = self.dims[dimension]
        assert stored is not None
        return stored

    @property
    def scalar(self) -> Any:
        """The element of a constant that is the same everywhere; None if it is not."""
        if self.array is None or self.array.size == 0:
            return None
        first = self.array.reshape(-1)[0]
        if self.array.size == 1 or bool(np.all(self.array == first)):
            return first
        return None


@dataclass(eq=False)
class Size:
    """A scalar that is computed from sizes of dimensions, such as the batch size."""

    size: Any
    dtype: str


@dataclass(eq=False)
class Opaque:
    """Random keys, the bits drawn from them, and the steps from bits to numbers. Equal `ident`s are equal values."""

    kind: str  # "key", "raw" (a key's uint32s), "bits", "shifted", "mantissa", "one_to_two", "counter"
    ident: Any
    shape: Shape
    dtype: str


Any3 = Value | Size | Opaque


def of_wire(wire: Wire) -> Value:
    """The view of a whole wire."""
    return Value(wire.shape, wire.dtype, tuple(range(len(wire.shape))), wire=wire)


def of_array(array: Any, dtype: str | None = None) -> Value:
    """A constant."""
    data = np.asarray(array)
    return Value(data.shape, dtype or data.dtype.name, tuple(range(data.ndim)), array=data)
