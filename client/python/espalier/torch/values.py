"""Values of a module under conversion, and sizes that may depend on the batch size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy
import torch

from espalier.errors import EspalierError
from espalier.graph import Tensor

# A dimension: a number, or an expression of the one symbol that stands for the batch size.
Size: TypeAlias = Any
Shape: TypeAlias = tuple[Size, ...]


class NeedsBatchSize(EspalierError):
    """A number is needed where the batch size is not known."""


class CannotConvert(EspalierError):
    """An operator is used in a way that has no counterpart; the message is the reason."""


def size(value: Any) -> Size:
    """A Python integer, or the expression of a symbolic one."""
    node = getattr(value, "node", None)
    if node is not None and hasattr(node, "expr"):
        value = node.expr
    if isinstance(value, sympy.Expr):
        return int(value) if value.is_Integer else value
    return int(value)


def sizes(values: Iterable[Any]) -> Shape:
    """Like `size`, of several."""
    return tuple(size(value) for value in values)


def product(shape: Iterable[Size]) -> Size:
    """Number of elements."""
    total: Size = 1
    for dimension in shape:
        total = total * dimension
    return size(sympy.expand(total)) if isinstance(total, sympy.Expr) else total


def is_known(shape: Iterable[Size]) -> bool:
    """Whether no dimension depends on the batch size."""
    return all(isinstance(dimension, int) for dimension in shape)


def same(a: Size, b: Size) -> bool:
    """Whether two sizes are equal for every batch size."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(sympy.expand(a - b) == 0)


def same_shape(a: Shape, b: Shape) -> bool:
    """Whether two shapes are equal for every batch size."""
    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))


def broadcast(*shapes: Shape) -> Shape:
    """Shape of the result of an elementwise operator."""
    rank = max(len(shape) for shape in shapes)
    result: list[Size] = [1] * rank
    for shape in shapes:
        for axis, dimension in enumerate(shape, rank - len(shape)):
            if same(dimension, 1):
                continue
            if not same(result[axis], 1) and not same(result[axis], dimension):
                raise CannotConvert(f"shapes {', '.join(str(s) for s in shapes)} do not broadcast")
            result[axis] = dimension
    return tuple(result)


def axis(index: int, rank: int) -> int:
    """`index` of a dimension, from the front."""
    return index % rank if rank > 0 else 0


@dataclass(eq=False)
class Value:
    """A tensor of the module: a value of the graph, or elements that are known.

    `shape` is what the module sees. What is held may have a size of 1 where `shape` has more; elementwise operators
    broadcast it, so that most masks and tables never get the size of the batch.
    """

    held: Tensor | torch.Tensor
    shape: Shape
    dtype: torch.dtype
    held_shape: Shape

    @property
    def is_constant(self) -> bool:
        """Whether the elements are known."""
        return isinstance(self.held, torch.Tensor)

    @property
    def is_whole(self) -> bool:
        """Whether what is held has the shape that the module sees."""
        return same_shape(self.shape, self.held_shape)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def elements(self) -> torch.Tensor:
        """Known elements, in the shape that the module sees."""
        assert isinstance(self.held, torch.Tensor)
        return self.held.expand(self.shape) if not self.is_whole else self.held


def constant(elements: torch.Tensor, shape: Sequence[Size] | None = None) -> Value:
    """A value of known elements; `shape`: what it is broadcast to."""
    held: Shape = tuple(elements.shape)
    if shape is None:
        return Value(elements, held, elements.dtype, held)
    seen = tuple(shape)
    # A size that follows the batch stays one, though its elements are known for one batch size only.
    last = seen[len(seen) - len(held) :]
    held = tuple(1 if length == 1 and not same(s, 1) else s for length, s in zip(held, last, strict=True))
    return Value(elements, seen, elements.dtype, held)
