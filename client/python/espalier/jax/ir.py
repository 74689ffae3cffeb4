"""Nodes and wires of a graph while it is converted: cheap to rewrite, emitted as an espalier.Graph at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from espalier.graph import AttributeValue, Graph, Tensor

Dim = Any  # an int, or an expression of the batch size (jax.export's symbolic dimension)
Shape = tuple[Dim, ...]
RANDOM = frozenset({"random_like", "dropout"})  # two nodes with equal inputs draw different numbers
MISSING = "missing"  # stands for a primitive without a counterpart; `Node.note` says which and why


@dataclass(eq=False)
class Wire:
    """A tensor: a node's output, or an input, a parameter or a constant."""

    shape: Shape
    dtype: str
    node: Node | None = None
    kind: str = "computed"  # "input", "parameter", "constant"
    name: str = ""  # of inputs and parameters
    data: np.ndarray[Any, Any] | None = None  # of parameters and constants
    trainable: bool = True  # of parameters


@dataclass(eq=False)
class Node:
    """An application of an operator."""

    op: str
    inputs: list[Wire | None]
    attributes: dict[str, AttributeValue]
    outputs: list[Wire] = field(default_factory=list)
    source: str = ""  # "model.py:12" of the user's program
    scope: str = ""  # "Encoder/Dense_0", where the framework says it
    note: tuple[str, str] = ("", "")  # of MISSING: primitive and reason

    def ints(self, name: str) -> list[int]:
        """An attribute that is a list of integers."""
        value = self.attributes[name]
        assert isinstance(value, Sequence)
        return [int(v) for v in value]

    def number(self, name: str) -> float:
        """An attribute that is a number."""
        value = self.attributes[name]
        assert isinstance(value, (int, float))
        return float(value)


def is_static(dim: Dim) -> bool:
    """Whether a dimension does not depend on the batch size."""
    return isinstance(dim, (int, np.integer))


def same(a: Dim, b: Dim) -> bool:
    """Whether two dimensions are equal whatever the batch size."""
    if is_static(a) or is_static(b):
        return is_static(a) and is_static(b) and int(a) == int(b)
    return bool((a - b) == 0) if str(a) != str(b) else True


def product(dims: Iterable[Dim]) -> Dim:
    """Of dimensions; 1 for none."""
    result: Dim = 1
    for dim in dims:
        result = result * dim
    return result


class Program:
    """Nodes in topological order. Equal applications are one node, but for random operators."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.inputs: list[Wire] = []
        self.parameters: list[Wire] = []
        self.outputs: dict[str, Wire] = {}
        self.source = ""  # of the nodes that follow
        self.scope = ""
        self._known: dict[Any, Node] = {}
        self._constants: dict[Any, Wire] = {}

    def input(self, name: str, shape: Shape, dtype: str) -> Wire:
        """A tensor of the data set."""
        self.inputs.append(Wire(shape, dtype, kind="input", name=name))
        return self.inputs[-1]

    def parameter(self, name: str, data: np.ndarray[Any, Any], trainable: bool) -> Wire:
        """A tensor that is kept between steps."""
        wire = Wire(data.shape, data.dtype.name, kind="parameter", name=name, data=data, trainable=trainable)
        self.parameters.append(wire)
        return wire

    def constant(self, array: Any) -> Wire:
        """Given elements; equal ones are one wire."""
        data = np.asarray(array)
        key = (data.tobytes(), data.shape, data.dtype.name)
        if key not in self._constants:
            self._constants[key] = Wire(data.shape, data.dtype.name, kind="constant", data=data)
        return self._constants[key]

    def emit(
        self,
        op: str,
        inputs: Sequence[Wire | None],
        shape: Shape | Sequence[Shape],
        dtype: str | Sequence[str],
        /,
        **attributes: AttributeValue,
    ) -> Any:
        """Applies an operator: one Wire, or a tuple of them if `dtype` is a sequence."""
        many = not isinstance(dtype, str)
        key: Any = (op, tuple(map(id, inputs)), tuple(sorted((k, str(v)) for k, v in attributes.items())))
        node = None if op in RANDOM else self._known.get(key)
        if node is None:
            node = Node(op, list(inputs), attributes, source=self.source, scope=self.scope)
            shapes, dtypes = (shape, dtype) if many else ([shape], [dtype])
            node.outputs = [Wire(tuple(s), str(t), node) for s, t in zip(shapes, dtypes, strict=True)]
            self.nodes.append(node)
            self._known[key] = node
        return tuple(node.outputs) if many else node.outputs[0]

    def missing(
        self, primitive: str, reason: str, inputs: Sequence[Wire], shapes: Sequence[Shape], dtypes: Sequence[str]
    ) -> tuple[Wire, ...]:
        """Stand-ins for the results of a primitive that cannot be converted, so that the others are found, too."""
        node = Node(MISSING, list(inputs), {}, source=self.source, scope=self.scope, note=(primitive, reason))
        node.outputs = [Wire(tuple(s), t, node) for s, t in zip(shapes, dtypes, strict=True)]
        self.nodes.append(node)
        return tuple(node.outputs)

    def replace(self, old: Wire, new: Wire) -> None:
        """Lets every reader of `old` read `new`."""
        for node in self.nodes:
            node.inputs = [new if wire is old else wire for wire in node.inputs]
        self.outputs = {name: new if wire is old else wire for name, wire in self.outputs.items()}

    def users(self) -> dict[int, list[Node]]:
        """Readers of each wire, by the wire's id."""
        found: dict[int, list[Node]] = {}
        for node in self.nodes:
            for wire in node.inputs:
                if wire is not None:
                    found.setdefault(id(wire), []).append(node)
        return found

    def sweep(self) -> None:
        """Drops nodes that no output needs, and orders the others topologically."""
        order: list[Node] = []
        done: set[int] = set()
        stack: list[tuple[Node, Iterator[Wire | None]]] = []

        def visit(wire: Wire | None) -> None:
            if wire is not None and wire.node is not None and id(wire.node) not in done:
                done.add(id(wire.node))
                stack.append((wire.node, iter(wire.node.inputs)))

        for output in self.outputs.values():
            visit(output)
            while stack:
                node, rest = stack[-1]
                before = len(stack)
                for wire in rest:
                    visit(wire)
                    if len(stack) > before:
                        break
                else:
                    order.append(node)
                    stack.pop()
        self.nodes = order

    def to_graph(self, name: str, batch_of: Callable[[Dim], int | None]) -> Graph:
        """The graph of the live nodes. `batch_of` gives the size of a dimension, None for the batch itself."""
        graph = Graph(name)
        tensors: dict[int, Tensor] = {}
        used = {id(wire) for node in self.nodes for wire in node.inputs} | {id(w) for w in self.outputs.values()}
        for wire in self.inputs:
            if id(wire) in used:
                tensors[id(wire)] = graph.input(wire.name, [batch_of(d) for d in wire.shape], wire.dtype)
        for wire in self.parameters:
            tensors[id(wire)] = graph.parameter(wire.name, data=wire.data, dtype=wire.dtype, trainable=wire.trainable)

        def tensor(wire: Wire) -> Tensor:
            if id(wire) not in tensors and wire.kind == "constant":
                assert wire.data is not None
                tensors[id(wire)] = graph.constant(wire.data, dtype=wire.dtype)
            return tensors[id(wire)]

        for node in self.nodes:
            operands = [None if wire is None else tensor(wire) for wire in node.inputs]
            label = f"{node.scope}/{node.op}" if node.scope else node.op
            made = graph.op(
                node.op, operands, node.attributes, outputs=len(node.outputs), name=label, source=node.source
            )
            for wire, value in zip(node.outputs, made, strict=True):
                value.dtype = wire.dtype
                tensors[id(wire)] = value
        for output, wire in self.outputs.items():
            graph.output(output, tensor(wire))
        return graph
