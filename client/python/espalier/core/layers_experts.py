"""Layers of mixtures of experts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from espalier.core.enums import ActiMode, OpType
from espalier.core.layer import Tensor
from espalier.core.layers_math import MathLayers
from espalier.core.layers_weights import WeightLayers
from espalier.errors import InvalidArgument


class ExpertLayers(WeightLayers, MathLayers):
    """Layers of mixtures of experts."""

    _capacities: dict[int, float]  # value of the assignment -> alpha of its group_by

    def top_k(self, input: Tensor, k: int, sorted: bool = True, name: str | None = None) -> list[Tensor]:
        """The k largest elements along the last dimension, and their places (DT_INT32)."""
        layer = self._begin(OpType.TOPK, "top_k", name, [input])
        if not 1 <= k <= input.dims[-1]:
            raise layer.error(f"k {k} of {input.dims[-1]} elements")
        layer.check_batch(input, [input.num_dims - 1])
        dims = [*input.dims[:-1], k]
        found, places = layer.emit_n("top_k", [input], {"k": k, "axis": -1}, [(dims, input.dtype), (dims, "int64")])
        made = [found, layer.emit("cast", [places], {"to": "i32"}, dims=dims, batch_dim=input.batch_dim, dtype="int32")]
        self._finish(layer, made)
        return made

    def group_by(
        self, input: Tensor, assign: Tensor, n: int, alpha: float = 1.0, name: str | None = None
    ) -> list[Tensor]:
        """The rows of [N, E] by the experts of assign [N, k]: n tensors of ceil(alpha k N / n) rows, zeros at the end.

        Rows beyond are dropped.
        """
        layer = self._begin(OpType.GROUP_BY, "group_by", name, [input, assign])
        if input.num_dims != 2 or assign.num_dims != 2 or assign.dtype != "int32":
            raise layer.error(f"it takes rows [N, E] and experts [N, k] of DT_INT32, got {input!r} and {assign!r}")
        layer.check_batch(input)
        layer.check_batch(assign)
        capacity = math.ceil(alpha * assign.dims[1] * input.dims[0] / n)
        results = [([capacity, input.dims[1]], input.dtype)] * n
        made = layer.emit_n("group_by", [input, assign], {"n": n, "alpha": float(alpha)}, results)
        self._capacities[assign.value.index] = float(alpha)
        self._finish(layer, made)
        return made

    def aggregate(self, inputs: Sequence[Tensor], n: int, lambda_bal: float = 0.0, name: str | None = None) -> Tensor:
        """The experts' rows, weighted by their gates and summed: [N, E].

        inputs: gates of the choices [N, k], experts [N, k], the same experts again (FlexFlow has true ones there), all
        gates [N, n], and the results of the n experts. lambda_bal: weight of a loss that balances the experts' load.
        """
        return self._aggregate(OpType.AGGREGATE, "aggregate", inputs, n, lambda_bal, name)

    def aggregate_spec(
        self, inputs: Sequence[Tensor], n: int, lambda_bal: float = 0.0, name: str | None = None
    ) -> Tensor:
        """The experts' rows, one for each choice, so that each is trained by itself: [N k, E]; inputs as aggregate."""
        return self._aggregate(OpType.AGGREGATE_SPEC, "aggregate_spec", inputs, n, lambda_bal, name)

    def _aggregate(
        self, op_type: OpType, op: str, inputs: Sequence[Tensor], n: int, lambda_bal: float, name: str | None
    ) -> Tensor:
        layer = self._begin(op_type, op, name, list(inputs))
        if len(inputs) != n + 4:
            raise layer.error(f"{len(inputs)} inputs; for {n} experts it takes 4 and their {n} results")
        gates, assign, true_assign, full, *experts = inputs
        if true_assign is not assign:
            raise layer.error("its third input must be its second: there are no true assignments besides")
        if assign.value.index not in self._capacities:
            raise layer.error("its second input is not what group_by was given")
        attributes = {"n": n, "alpha": self._capacities[assign.value.index], "lambda_balance": float(lambda_bal)}
        rows = gates.dims[0] * (gates.dims[1] if op == "aggregate_spec" else 1)
        made = layer.emit(op, [gates, assign, full, *experts], attributes, dims=[rows, experts[0].dims[-1]])
        return self._end(layer, made)

    def moe(
        self,
        input: Tensor,
        num_exp: int,
        num_select: int,
        expert_hidden_size: int,
        alpha: float = 2.0,
        lambda_bal: float = 0.04,
        name: str | None = None,
    ) -> Tensor:
        """num_exp dense layers, of which num_select compute each row: [N, E] to [N, expert_hidden_size]."""
        label = name or f"moe_{len(self._layers)}"
        if not 1 <= num_select <= num_exp:
            raise InvalidArgument(f"layer {label} (moe): num_select {num_select} of {num_exp} experts")
        full = self.softmax(self.dense(input, num_exp, name=f"{label}_gate"))
        gates, assign = self.top_k(full, num_select)
        rows = self.group_by(input, assign, num_exp, alpha)
        results = [
            self.dense(part, expert_hidden_size, ActiMode.AC_MODE_RELU, name=f"{label}_expert_{i}")
            for i, part in enumerate(rows)
        ]
        return self.aggregate([gates, assign, assign, full, *results], num_exp, lambda_bal, name)
