"""Layers that move elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

from espalier.core.builder import Builder, axis_of
from espalier.core.enums import OpType
from espalier.core.layer import Tensor


class ShapeLayers(Builder):
    """Layers that move elements."""

    def transpose(self, input: Tensor, perm: Sequence[int], name: str | None = None) -> Tensor:
        """Dimension i of the result is dimension perm[i]."""
        layer = self._begin(OpType.TRANSPOSE, "transpose", name, [input])
        order = [int(p) for p in perm]
        if sorted(order) != list(range(input.num_dims)):
            raise layer.error(f"perm {order} of {input.num_dims} dimensions; each must occur once")
        batch_dim = None if input.batch_dim is None else order.index(input.batch_dim)
        dims = [input.dims[p] for p in order]
        made = layer.emit("transpose", [input], {"perm": order}, dims=dims, batch_dim=batch_dim, dtype=input.dtype)
        return self._end(layer, made)

    def reverse(self, input: Tensor, axis: int, name: str | None = None) -> Tensor:
        """The elements along a dimension in the opposite order."""
        layer = self._begin(OpType.REVERSE, "reverse", name, [input])
        axes = [axis_of(layer, axis, input.num_dims)]
        made = layer.emit(
            "reverse", [input], {"axes": axes}, dims=input.dims, batch_dim=input.batch_dim, dtype=input.dtype
        )
        return self._end(layer, made)

    def concat(self, tensors: Sequence[Tensor], axis: int, name: str | None = None) -> Tensor:
        """Several tensors, one behind the other along a dimension that does not follow the batch."""
        layer = self._begin(OpType.CONCAT, "concat", name, list(tensors))
        if not tensors:
            raise layer.error("it needs at least one tensor")
        first = tensors[0]
        at = axis_of(layer, axis, first.num_dims)
        for tensor in tensors[1:]:
            same = tensor.num_dims == first.num_dims and all(
                a == b for d, (a, b) in enumerate(zip(tensor.dims, first.dims, strict=True)) if d != at
            )
            if not same or tensor.dtype != first.dtype:
                raise layer.error(f"along axis {at}: {first!r} and {tensor!r} do not go together")
        batch_dim = next((t.batch_dim for t in tensors if t.batch_dim is not None), None)
        if batch_dim == at:
            raise layer.error(f"axis {axis} is the batch; concatenate along another one")
        dims = [*first.dims[:at], sum(t.dims[at] for t in tensors), *first.dims[at + 1 :]]
        made = layer.emit("concat", tensors, {"axis": at}, dims=dims, batch_dim=batch_dim, dtype=first.dtype)
        return self._end(layer, made)

    def split(self, input: Tensor, sizes: int | Sequence[int], axis: int, name: str | None = None) -> list[Tensor]:
        """Consecutive pieces along a dimension that is not the batch: so many equal ones, or of these sizes."""
        layer = self._begin(OpType.SPLIT, "split", name, [input])
        at = axis_of(layer, axis, input.num_dims)
        whole = input.dims[at]
        if isinstance(sizes, int):
            if sizes < 1 or whole % sizes:
                raise layer.error(f"{whole} elements along axis {at} cannot be split into {sizes} equal pieces")
            sizes = [whole // sizes] * sizes
        if sum(sizes) != whole or any(size < 1 for size in sizes):
            raise layer.error(f"sizes {list(sizes)} do not add up to {whole}, the size of dimension {at}")
        if input.batch_dim == at:
            raise layer.error(f"axis {axis} is the batch; split along another one")
        results = [([*input.dims[:at], size, *input.dims[at + 1 :]], input.dtype) for size in sizes]
        made = layer.emit_n("split", [input], {"axis": at, "sizes": list(sizes)}, results)
        self._finish(layer, made)
        return made

    def reshape(self, input: Tensor, shape: Sequence[int], name: str | None = None) -> Tensor:
        """The elements in the same order, with other dimensions; one of them may be -1.

        The batch stays whole: a dimension of the result begins where it begins.
        """
        layer = self._begin(OpType.RESHAPE, "reshape", name, [input])
        return self._end(layer, layer.reshaped(input, shape))

    def flat(self, input: Tensor, name: str | None = None) -> Tensor:
        """[N, ...] to [N, all the rest]."""
        layer = self._begin(OpType.FLAT, "flat", name, [input])
        layer.check_batch(input)
        return self._end(layer, layer.reshaped(input, [input.dims[0], math.prod(input.dims[1:])]))

    def gather(self, input: Tensor, index: Tensor, dim: int, name: str | None = None) -> Tensor:
        """Elements along `dim` by their places, as torch.gather: the result has the dims of `index`."""
        layer = self._begin(OpType.GATHER, "gather", name, [input, index])
        at = axis_of(layer, dim, input.num_dims)
        fits = index.num_dims == input.num_dims and all(
            i <= x for d, (i, x) in enumerate(zip(index.dims, input.dims, strict=True)) if d != at
        )
        if not fits or index.dtype not in ("int32", "int64"):
            raise layer.error(f"index {index!r} does not fit the input {input!r}")
        if at == input.batch_dim:
            raise layer.error(f"dim {dim} is the batch; gather along another one")
        made = layer.emit(
            "gather_elements", [input, index], {"axis": at}, dims=index.dims, batch_dim=index.batch_dim,
            dtype=input.dtype,
        )  # fmt: skip
        return self._end(layer, made)
