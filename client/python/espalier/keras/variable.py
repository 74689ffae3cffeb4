"""Weights of layers: elements in Keras' layout here, in the coordinator's in graphs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from espalier.errors import InvalidArgument
from espalier.keras.initializers import Initializer
from espalier.keras.regularizers import Regularizer
from espalier.v1 import graph_pb2 as pb

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Layout:
    """How a weight of Keras' layout lies in a graph: gates reordered, dimensions permuted, then reshaped."""

    shape: tuple[int, ...]  # in the graph
    perm: tuple[int, ...] | None = None
    gates: tuple[int, ...] | None = None  # the graph's gate i, of equal parts of Keras' last dimension

    def to_graph(self, array: Array) -> Array:
        """The elements of a weight for the graph."""
        if self.gates is not None:
            parts = np.split(array, len(self.gates), axis=-1)
            array = np.concatenate([parts[i] for i in self.gates], axis=-1)
        if self.perm is not None:
            array = array.transpose(self.perm)
        return np.ascontiguousarray(array).reshape(self.shape)

    def from_graph(self, array: Array, shape: Sequence[int]) -> Array:
        """The elements of a weight of Keras' `shape`, from those of the graph."""
        if self.perm is not None:
            array = array.reshape([shape[d] for d in self.perm]).transpose(np.argsort(self.perm))
        array = array.reshape(tuple(shape))
        if self.gates is not None:
            parts = np.split(array, len(self.gates), axis=-1)
            array = np.concatenate([parts[self.gates.index(i)] for i in range(len(parts))], axis=-1)
        return np.ascontiguousarray(array)


class Variable:
    """A weight of a layer.

    `numpy()` and `assign` read and set its elements. What nobody has read or set is made when training begins.
    """

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        initializer: Initializer,
        *,
        trainable: bool = True,
        regularizer: Regularizer | None = None,
        layout: Layout | None = None,
    ):
        self.name = name
        self.path = name  # "dense/kernel", once its layer has a name
        self.shape = tuple(int(d) for d in shape)
        self.dtype = "float32"
        self.initializer = initializer
        self.regularizer = regularizer
        self.layout = layout or Layout(self.shape)
        self.can_train = trainable  # False for running statistics, whatever the layer's `trainable` says
        self.trainable = trainable
        self.version = 0  # changes with the elements
        self.locked: Exception | None = None  # why the elements cannot be read or set now
        self._value: Array | None = None
        self._fetch: Callable[[], Array] | None = None

    def __repr__(self) -> str:
        return f"<Variable {self.path}, shape={self.shape}>"

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def known(self) -> bool:
        """Whether it has elements already."""
        return self._value is not None or self._fetch is not None

    @property
    def fetched(self) -> bool:
        """Whether its elements are here."""
        return self._value is not None

    def numpy(self) -> Array:
        """The elements; of a trained weight they are downloaded now. FailedPrecondition while a job trains it."""
        if self.locked is not None:
            raise self.locked
        if self._value is None:
            if self._fetch is not None:
                self._value, self._fetch = self._fetch(), None
            else:
                self._value = self.initializer(self.shape)
        return np.array(self._value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self.numpy(), dtype)

    def assign(self, value: Any) -> None:
        """Sets the elements; InvalidArgument for another shape, FailedPrecondition while a job trains them."""
        if self.locked is not None:
            raise self.locked
        array = np.array(value, np.float32)
        if array.shape != self.shape:
            raise InvalidArgument(f"weight {self.path} has shape {self.shape}, not {array.shape}")
        self._value, self._fetch = array, None
        self.version += 1

    def assign_later(self, fetch: Callable[[], Array]) -> None:
        """Sets elements, in the graph's layout, that `fetch` gives when somebody reads them."""
        self._value = None
        self.version += 1
        self._fetch = lambda: self.layout.from_graph(np.asarray(fetch(), np.float32), self.shape)

    def message(self) -> pb.Initializer | None:
        """What makes the initial elements at the coordinator; None: the elements must be sent."""
        return None if self.known else self.initializer._message(self.shape)
