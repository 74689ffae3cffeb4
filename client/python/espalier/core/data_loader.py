"""SingleDataLoader: the examples of one input, batch by batch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from espalier.core.enums import DataType
from espalier.core.layer import Array, Feed, Tensor
from espalier.errors import InvalidArgument, NotFound
from espalier.npz import as_integers

if TYPE_CHECKING:
    from espalier.core.model import FFModel


class SingleDataLoader:
    """The examples of one input, or the labels, which next_batch loads in order.

    The array is read when batches are loaded; it must not change after the first forward pass or fit.
    """

    def __init__(
        self,
        ffmodel: FFModel,
        input: Tensor,
        full_input: Any,
        num_samples: int | None = None,
        data_type: DataType | None = None,
    ):
        column = ffmodel._column(input)
        if column is None:
            raise InvalidArgument(f"a data loader feeds an input or the labels; {input!r} is neither")
        array = np.asarray(full_input)
        if array.dtype.kind not in "fiub":
            raise InvalidArgument(f"the data of {input.name} has elements of type {array.dtype}; accepted are numbers")
        rows = input.dims[0] // ffmodel._batch_size  # of the tensor, for each example
        per_example = rows * math.prod(input.dims[1:])
        if array.ndim == 0 or math.prod(array.shape[1:]) not in (per_example, per_example // rows) or not len(array):
            raise InvalidArgument(
                f"the data of {input.name} has dims {list(array.shape)}; an example of it has {list(input.dims[1:])}"
            )
        if math.prod(array.shape[1:]) != per_example:  # one line for each of the rows
            array = array.reshape(len(array) // rows, -1)
        self._tensor, self.column = input, column
        self._array = array.reshape(len(array), *ffmodel._example_shape(column))
        if array.dtype.kind == "f" and input.dtype.startswith("int"):
            as_integers(self._array, f"{input.name} is a tensor of {input.data_type.name}, and its data has")
        self._num_samples = len(self._array) if num_samples is None else 0
        if num_samples is not None:
            self.num_samples = num_samples
        self._next = 0

    @property
    def num_samples(self) -> int:
        """Number of examples that are used: all, or the first ones."""
        return self._num_samples

    @num_samples.setter
    def num_samples(self, samples: int) -> None:
        if not 1 <= samples <= len(self._array):
            raise InvalidArgument(f"num_samples {samples}: the data of {self._tensor.name} has {len(self._array)}")
        self._num_samples = int(samples)

    @property
    def array(self) -> Array:
        """The examples, in the shape that the model takes."""
        return self._array[: self._num_samples]

    def next_batch(self, ffmodel: FFModel) -> None:
        """Loads the next batch into the tensor. NotFound when fewer examples than a batch are left."""
        size = ffmodel._batch_size
        if self._next + size > self._num_samples:
            raise NotFound(
                f"the data loader of {self._tensor.name} has {self._num_samples - self._next} examples left of "
                f"{self._num_samples}, a batch takes {size}; reset() begins anew"
            )
        self._tensor._fed = Feed(self._array[self._next : self._next + size], (self, self._next))
        self._next += size

    def reset(self) -> None:
        """Begins with the first example again."""
        self._next = 0


__all__ = ["SingleDataLoader"]
