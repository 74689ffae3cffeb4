"""Symbolic tensors, which layers are called on, and the nodes that made them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from espalier.errors import InvalidArgument

if TYPE_CHECKING:
    from espalier.keras.layer import Layer

Shape = tuple[int | None, ...]  # outermost first; None: not known before training, such as the batch size


class KerasTensor:
    """A result of a layer that has no elements yet: shape and element type.

    Python's arithmetic works on it, as `espalier.keras.ops` does.
    """

    __array_priority__ = 1000

    def __init__(self, shape: Shape, dtype: str, name: str, node: Node | None = None, index: int = 0):
        self.shape = tuple(shape)
        self.dtype = dtype
        self.name = name
        self.node = node  # None: an input
        self.index = index  # which of the node's outputs
        self.origin: Layer | None = None  # of an input: its InputLayer

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def __repr__(self) -> str:
        return f"<KerasTensor {self.name}, shape={self.shape}, dtype={self.dtype}>"

    def _no_elements(self, what: str) -> InvalidArgument:
        return InvalidArgument(
            f"{what} of {self.name}: this tensor has no elements while a model is built. Write the model with layers, "
            "Python's arithmetic and espalier.keras.ops; a choice that depends on elements cannot be traced"
        )

    def __bool__(self) -> bool:
        raise self._no_elements("the truth value")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise self._no_elements("the elements")

    def __iter__(self) -> Iterator[KerasTensor]:
        raise self._no_elements("a loop over the rows")

    def __float__(self) -> float:
        raise self._no_elements("the number")

    def __int__(self) -> int:
        raise self._no_elements("the number")

    def _apply(self, function: str, *arguments: Any) -> Any:
        from espalier.keras import ops

        return getattr(ops, function)(*arguments)

    def __add__(self, other: Any) -> Any:
        return self._apply("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self._apply("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return self._apply("subtract", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._apply("subtract", other, self)

    def __mul__(self, other: Any) -> Any:
        return self._apply("multiply", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._apply("multiply", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._apply("divide", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._apply("divide", other, self)

    def __pow__(self, other: Any) -> Any:
        return self._apply("power", self, other)

    def __matmul__(self, other: Any) -> Any:
        return self._apply("matmul", self, other)

    def __neg__(self) -> Any:
        return self._apply("negative", self)

    def __abs__(self) -> Any:
        return self._apply("absolute", self)

    def __getitem__(self, key: Any) -> Any:
        return self._apply("get_item", self, key)


class Node:
    """One application of a layer."""

    def __init__(self, layer: Layer, inputs: list[KerasTensor], arguments: Mapping[str, Any], source: str):
        self.layer = layer
        self.inputs = inputs
        self.arguments = dict(arguments)
        self.source = source  # "file.py:12" of the user's program
        self.outputs: list[KerasTensor] = []


def flatten(structure: Any) -> list[Any]:
    """The leaves of lists, tuples and dicts, in order."""
    if isinstance(structure, Mapping):
        return [leaf for item in structure.values() for leaf in flatten(item)]
    if isinstance(structure, (list, tuple)):
        return [leaf for item in structure for leaf in flatten(item)]
    return [structure]


def transform(structure: Any, change: Callable[[Any], Any]) -> Any:
    """`structure` with every leaf changed."""
    if isinstance(structure, Mapping):
        return {key: transform(item, change) for key, item in structure.items()}
    if isinstance(structure, (list, tuple)):
        return type(structure)(transform(item, change) for item in structure)
    return change(structure)


def topological(outputs: list[KerasTensor], inputs: list[KerasTensor]) -> tuple[list[Node], list[Layer]]:
    """The nodes between inputs and outputs, each behind those that it reads; and their layers in Keras' order.

    InvalidArgument for an output that depends on a tensor that is no input.
    """
    known = {id(tensor) for tensor in inputs}
    order: list[Node] = []
    met: dict[int, int] = {}  # layer -> when it was first met
    done: set[int] = set()
    stack: list[tuple[KerasTensor, bool]] = [(tensor, False) for tensor in reversed(outputs)]
    while stack:
        tensor, visited = stack.pop()
        if id(tensor) in known:
            continue
        node = tensor.node
        if node is None:
            raise InvalidArgument(f"the outputs depend on {tensor.name}, which is not among the model's inputs")
        if id(node) in done:
            continue
        if visited:
            done.add(id(node))
            order.append(node)
            continue
        met.setdefault(id(node.layer), len(met))
        stack.append((tensor, True))
        stack.extend((read, False) for read in reversed(node.inputs))
    return order, _by_depth(order, met)


def _by_depth(order: list[Node], met: dict[int, int]) -> list[Layer]:
    # Keras lists layers by their distance from the outputs, the furthest first; weights have this order.
    nodes: dict[int, int] = {}
    layers: dict[int, int] = {}
    found: dict[int, Layer] = {}
    for node in reversed(order):
        depth = max(nodes.get(id(node), 0), layers.get(id(node.layer), 0))
        nodes[id(node)] = layers[id(node.layer)] = depth
        found[id(node.layer)] = node.layer
        for tensor in node.inputs:
            if tensor.node is not None:
                nodes[id(tensor.node)] = max(depth + 1, nodes.get(id(tensor.node), 0))
    return [found[key] for key in sorted(found, key=lambda key: (-layers[key], met[key]))]
