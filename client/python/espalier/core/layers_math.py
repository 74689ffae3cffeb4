"""Layers that compute element by element, products and reductions."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from typing import Any

from espalier.core.builder import Attributes, Builder, Layer, axis_of
from espalier.core.enums import DataType, OpType, dtype_of
from espalier.core.layer import Tensor
from espalier.graph import ATTRIBUTE_DTYPES


def _broadcast(layer: Layer, x: Tensor, y: Tensor) -> tuple[list[int], int | None]:
    """Dims and the batch's dimension of an element-wise result."""
    rank = max(x.num_dims, y.num_dims)
    dims, batch_dim = [], None
    wide = [[*(1,) * (rank - t.num_dims), *t.dims] for t in (x, y)]
    places = [None if t.batch_dim is None else t.batch_dim + rank - t.num_dims for t in (x, y)]
    for d, (a, b) in enumerate(zip(*wide, strict=True)):
        if a != b and 1 not in (a, b):
            raise layer.error(f"dims {list(x.dims)} and {list(y.dims)} do not go together")
        if d in places:
            mixed = a == b and places[0] != places[1] and not (x.uniform or y.uniform)
            if mixed:
                raise layer.error(
                    f"dims {list(x.dims)} and {list(y.dims)}: dimension {d} is the batch in one of them only"
                )
            batch_dim = d
        dims.append(max(a, b))
    return dims, batch_dim


class MathLayers(Builder):
    """Layers that compute element by element, products and reductions."""

    def _unary(
        self, op_type: OpType, op: str, input: Tensor, name: str | None, attributes: Attributes | None = None
    ) -> Tensor:
        layer = self._begin(op_type, op, name, [input])
        made = layer.emit(op, [input], attributes, dims=input.dims, batch_dim=input.batch_dim, dtype=input.dtype)
        return self._end(layer, made)

    def _binary(self, op_type: OpType, op: str, x: Tensor, y: Tensor, name: str | None) -> Tensor:
        layer = self._begin(op_type, op, name, [x, y], uniform=True)
        if x.dtype != y.dtype:
            raise layer.error(f"its inputs have {x.data_type.name} and {y.data_type.name}; cast() converts")
        dims, batch_dim = _broadcast(layer, x, y)
        uniform = x.uniform and y.uniform
        made = layer.emit(op, [x, y], dims=dims, batch_dim=batch_dim, dtype=x.dtype, uniform=uniform)
        return self._end(layer, made)

    def exp(self, x: Tensor, name: str | None = None) -> Tensor:
        """e to the power of x."""
        return self._unary(OpType.EXP, "exp", x, name)

    def sin(self, x: Tensor, name: str | None = None) -> Tensor:
        """Sine."""
        return self._unary(OpType.SIN, "sin", x, name)

    def cos(self, x: Tensor, name: str | None = None) -> Tensor:
        """Cosine."""
        return self._unary(OpType.COS, "cos", x, name)

    def rsqrt(self, input: Tensor, name: str | None = None) -> Tensor:
        """1 / square root."""
        return self._unary(OpType.RSQRT, "rsqrt", input, name)

    def add(self, x: Tensor, y: Tensor, inplace_a: bool = False, name: str | None = None) -> Tensor:
        """x + y. Memory is planned by the daemon; inplace_a changes nothing, here and in the other layers."""
        return self._binary(OpType.ADD, "add", x, y, name)

    def subtract(self, x: Tensor, y: Tensor, inplace_a: bool = False, name: str | None = None) -> Tensor:
        """x - y."""
        return self._binary(OpType.SUBTRACT, "subtract", x, y, name)

    def multiply(self, x: Tensor, y: Tensor, inplace_a: bool = False, name: str | None = None) -> Tensor:
        """x * y."""
        return self._binary(OpType.MULTIPLY, "multiply", x, y, name)

    def divide(self, x: Tensor, y: Tensor, inplace_a: bool = False, name: str | None = None) -> Tensor:
        """x / y."""
        return self._binary(OpType.DIVIDE, "divide", x, y, name)

    def max(self, x: Tensor, y: Tensor, inplace_a: bool = False, name: str | None = None) -> Tensor:
        """The larger one of each pair."""
        return self._binary(OpType.MAX, "maximum", x, y, name)

    def min(self, x: Tensor, y: Tensor, inplace_a: bool = False, name: str | None = None) -> Tensor:
        """The smaller one of each pair."""
        return self._binary(OpType.MIN, "minimum", x, y, name)

    def pow(self, input: Tensor, exponent: float, name: str | None = None) -> Tensor:
        """Input to the power of a number."""
        return self._unary(OpType.POW, "power_scalar", input, name, {"value": float(exponent)})

    def scalar_multiply(self, input: Tensor, scalar: float, inplace: bool = True, name: str | None = None) -> Tensor:
        """Input * scalar."""
        return self._unary(OpType.SCALAR_MULTIPLY, "multiply_scalar", input, name, {"value": float(scalar)})

    def scalar_add(self, input: Tensor, scalar: float, inplace: bool = True, name: str | None = None) -> Tensor:
        """Input + scalar."""
        return self._unary(OpType.SCALAR_ADD, "add_scalar", input, name, {"value": float(scalar)})

    def scalar_sub(self, input: Tensor, scalar: float, inplace: bool = True, name: str | None = None) -> Tensor:
        """Input - scalar."""
        return self._unary(OpType.SCALAR_SUB, "subtract_scalar", input, name, {"value": float(scalar)})

    def scalar_true_divide(self, input: Tensor, scalar: float, inplace: bool = True, name: str | None = None) -> Tensor:
        """Input / scalar."""
        return self._unary(OpType.SCALAR_TRUEDIV, "divide_scalar", input, name, {"value": float(scalar)})

    def relu(self, input: Tensor, inplace: bool = True, name: str | None = None) -> Tensor:
        """max(input, 0)."""
        return self._unary(OpType.RELU, "relu", input, name)

    def gelu(self, input: Tensor, inplace: bool = True, name: str | None = None) -> Tensor:
        """Input times the normal distribution's share below it."""
        return self._unary(OpType.GELU, "gelu", input, name)

    def elu(self, input: Tensor, inplace: bool = True, name: str | None = None) -> Tensor:
        """Input, or exp(input) - 1 where it is negative."""
        return self._unary(OpType.ELU, "elu", input, name)

    def sigmoid(self, input: Tensor, name: str | None = None) -> Tensor:
        """1 / (1 + exp(-input))."""
        return self._unary(OpType.SIGMOID, "sigmoid", input, name)

    def tanh(self, input: Tensor, name: str | None = None) -> Tensor:
        """Hyperbolic tangent."""
        return self._unary(OpType.TANH, "tanh", input, name)

    def identity(self, input: Tensor, name: str | None = None) -> Tensor:
        """The input."""
        made = self._unary(OpType.IDENTITY, "identity", input, name)
        made.logits = input.logits
        return made

    def softmax(self, input: Tensor, axis: int = -1, name: str | None = None) -> Tensor:
        """exp(input) / sum of exp(input) along a dimension.

        Crossentropies of a model that ends in it are computed on its input, which is the same and keeps its digits.
        """
        layer = self._begin(OpType.SOFTMAX, "softmax", name, [input])
        at = axis_of(layer, axis, input.num_dims)
        layer.check_batch(input, [at])
        made = layer.emit("softmax", [input], {"axis": at}, dims=input.dims, batch_dim=input.batch_dim)
        if at == input.num_dims - 1:
            made.logits = input
        return self._end(layer, made)

    def dropout(self, input: Tensor, rate: float, seed: int = 0, name: str | None = None) -> Tensor:
        """Zeros with probability `rate`, the others times 1 / (1 - rate); in evaluation the input.

        Which ones is decided by FFConfig.seed, the layer and the pass; `seed` is not used.
        """
        layer = self._begin(OpType.DROPOUT, "dropout", name, [input])
        if not isinstance(rate, numbers.Real) or not 0 <= rate < 1:
            raise layer.error(f"rate {rate}; accepted: 0 or more, less than 1")
        made = layer.emit("dropout", [input], {"rate": float(rate)}, dims=input.dims, batch_dim=input.batch_dim)
        return self._end(layer, made)

    def cast(self, input: Tensor, dtype: DataType, name: str | None = None) -> Tensor:
        """The elements in another type."""
        layer = self._begin(OpType.TO, "cast", name, [input])
        to = dtype_of(dtype, f"layer {layer.op.name}")
        made = layer.emit(
            "cast", [input], {"to": ATTRIBUTE_DTYPES[to]}, dims=input.dims, batch_dim=input.batch_dim, dtype=to
        )
        return self._end(layer, made)

    def batch_matmul(
        self,
        A: Tensor,  # noqa: N803 - FlexFlow's names
        B: Tensor,  # noqa: N803
        a_seq_length_dim: int | None = None,
        b_seq_length_dim: int | None = None,
        name: str | None = None,
    ) -> Tensor:
        """A [..., m, k] times B [..., k, n]: [..., m, n].

        a_seq_length_dim and b_seq_length_dim: the dimension of A and of B that is a sequence; forward(seq_length=n)
        counts what lies at n or beyond in it as 0.
        """
        layer = self._begin(OpType.BATCH_MATMUL, "batch_matmul", name, [A, B])
        rank = A.num_dims
        if rank < 3 or B.num_dims != rank or A.dims[:-2] != B.dims[:-2] or A.dims[-1] != B.dims[-2]:
            raise layer.error(
                f"dims {list(A.dims)} and {list(B.dims)}; needed are [..., m, k] and [..., k, n], three or more, equal "
                "before the last two"
            )
        marks = [-1 if d is None or d == -1 else axis_of(layer, d, rank) for d in (a_seq_length_dim, b_seq_length_dim)]
        if any(0 <= mark < rank - 2 for mark in marks):
            raise layer.error(f"a sequence is one of the last two dimensions, not {marks[0]} of A and {marks[1]} of B")
        dims, batch_dim = [*A.dims[:-1], B.dims[-1]], A.batch_dim
        if A.batch_dim is None and B.batch_dim == rank - 1:
            batch_dim = rank - 1
        elif A.batch_dim == rank - 2 and B.batch_dim is None:
            batch_dim = rank - 2
        elif A.batch_dim != B.batch_dim or (A.batch_dim is not None and A.batch_dim >= rank - 2):
            raise layer.error(
                f"dims {list(A.dims)} and {list(B.dims)}: the batch is dimension {A.batch_dim} of A and {B.batch_dim} "
                "of B; it must be the same one, before the last two"
            )
        if marks == [-1, -1]:
            made = layer.emit("matmul", [A, B], dims=dims, batch_dim=batch_dim)
            return self._end(layer, made)
        if batch_dim is not None and batch_dim >= rank - 2:
            raise layer.error("sequences of matrices whose rows or columns are the batch")
        length = self._sequence_length()
        a, b = A, B
        if rank > 3:
            a, b = (layer.reshaped(t, [-1, *t.dims[-2:]]) for t in (A, B))
        attributes = {
            "a_seq_length_dim": marks[0] - rank + 3 if marks[0] >= 0 else -1,
            "b_seq_length_dim": marks[1] - rank + 3 if marks[1] >= 0 else -1,
        }
        product = [a.dims[0], *dims[-2:]]
        made = layer.emit("batch_matmul", [a, b, length], attributes, dims=product, batch_dim=a.batch_dim)
        return self._end(layer, layer.reshaped(made, dims) if rank > 3 else made)

    def _sequence_length(self) -> Tensor:
        """The number that forward(seq_length=...) is given, as a tensor."""
        raise NotImplementedError

    def _reduce(
        self, op_type: OpType, op: str, input: Tensor, axes: Sequence[int] | int, keepdims: bool, name: str | None
    ) -> Tensor:
        layer = self._begin(op_type, op, name, [input])
        given = [axes] if isinstance(axes, int) else axes
        found = sorted({axis_of(layer, axis, input.num_dims) for axis in given})
        if input.batch_dim in found:
            raise layer.error(f"axes {list(given)} have the batch among them; LOSS_IDENTITY means over it")
        kept = [d for d in range(input.num_dims) if keepdims or d not in found]
        dims = [1 if d in found else input.dims[d] for d in kept]
        batch_dim = None if input.batch_dim is None else kept.index(input.batch_dim)
        attributes: dict[str, Any] = {"axes": found, "keepdims": bool(keepdims)}
        made = layer.emit(op, [input], attributes, dims=dims, batch_dim=batch_dim, dtype=input.dtype)
        return self._end(layer, made)

    def reduce_sum(
        self, input: Tensor, axes: Sequence[int] | int, keepdims: bool = False, name: str | None = None
    ) -> Tensor:
        """Sum over dimensions."""
        return self._reduce(OpType.REDUCE_SUM, "reduce_sum", input, axes, keepdims, name)

    def mean(self, input: Tensor, dims: Sequence[int] | int, keepdims: bool = False, name: str | None = None) -> Tensor:
        """Mean over dimensions."""
        return self._reduce(OpType.MEAN, "reduce_mean", input, dims, keepdims, name)
