"""Attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from espalier.errors import InvalidArgument
from espalier.graph import Tensor
from espalier.keras.layer import Layer, Spec
from espalier.keras.lowering import Lowering, Value, known
from espalier.keras.tensor import KerasTensor, Shape
from espalier.keras.variable import Layout, Variable


def _mask_free(name: str, arguments: dict[str, Any], masks: tuple[str, ...]) -> None:
    for mask in masks:
        if arguments.pop(mask, None) is not None:
            raise InvalidArgument(f"{name}: {mask} is not supported; give attention_mask")


class MultiHeadAttention(Layer):
    """softmax(query key^T / sqrt(key_dim)) value in several heads, projected.

    A call takes query, value and key (default: value), attention_mask (bool, true: visible) and use_causal_mask.
    """

    _call_arguments = ("training", "use_causal_mask")

    def __init__(
        self,
        num_heads: int,
        key_dim: int,
        value_dim: int | None = None,
        dropout: float = 0.0,
        use_bias: bool = True,
        output_shape: Any = None,
        attention_axes: Any = None,
        flash_attention: bool | None = None,
        use_gate: bool = False,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(activity_regularizer=activity_regularizer, **kwargs)
        axes = None if attention_axes is None else np.atleast_1d(attention_axes).tolist()
        if axes not in (None, [1]):
            raise InvalidArgument(f"{self.name}: attention_axes={attention_axes!r}; accepted: 1, the steps")
        if use_gate:
            raise InvalidArgument(f"{self.name}: use_gate=True is not supported")
        self.num_heads, self.key_dim = int(num_heads), int(key_dim)
        self.value_dim = int(value_dim or key_dim)
        self.dropout, self.use_bias = float(dropout), use_bias
        if output_shape is not None:
            sizes = np.atleast_1d(output_shape).tolist()
            if len(sizes) != 1:
                raise InvalidArgument(f"{self.name}: output_shape={output_shape!r}; accepted: one number")
            output_shape = int(sizes[0])
        self._output_size: int | None = output_shape
        self._kernel = (kernel_initializer, kernel_regularizer, kernel_constraint)
        self._bias = (bias_initializer, bias_regularizer, bias_constraint)

    def _bind(self, inputs: Any, *args: Any, **kwargs: Any) -> tuple[list[KerasTensor], dict[str, Any]]:
        names = ("value", "key", "query_mask", "value_mask", "key_mask", "attention_mask", "return_attention_scores")
        given = dict(zip(names, args, strict=False)) | kwargs
        _mask_free(self.name, given, ("query_mask", "value_mask", "key_mask"))
        if given.pop("return_attention_scores", False):
            raise InvalidArgument(f"{self.name}: return_attention_scores=True is not supported")
        value = given.pop("value", None)
        if value is None:
            raise InvalidArgument(f"{self.name}: call it on query and value")
        key, mask = given.pop("key", None), given.pop("attention_mask", None)
        _, arguments = super()._bind(inputs, **given)
        return [inputs, value, value if key is None else key, *([] if mask is None else [mask])], arguments

    def _build(self, shapes: list[Shape]) -> None:
        for shape in shapes[:3]:
            if len(shape) != 3:
                raise InvalidArgument(f"takes [batch, steps, features], got {shape}")
        sizes = known([shape[2] for shape in shapes[:3]], "MultiHeadAttention")
        out = self._output_size or sizes[0]
        heads = self.num_heads
        self.query, self.query_bias = self._projection("query", sizes[0], self.key_dim)
        self.key, self.key_bias = self._projection("key", sizes[2], self.key_dim)
        self.value, self.value_bias = self._projection("value", sizes[1], self.value_dim)
        initializer, regularizer, constraint = self._kernel
        self.output = self.add_weight(
            (heads, self.value_dim, out),
            initializer,
            name="attention_output/kernel",
            regularizer=regularizer,
            constraint=constraint,
            layout=Layout((out, heads * self.value_dim), (2, 0, 1)),
        )
        self.output_bias = self._add_bias("attention_output/bias", (out,), (out,))

    def _projection(self, name: str, size: int, dim: int) -> tuple[Variable, Variable | None]:
        initializer, regularizer, constraint = self._kernel
        kernel = self.add_weight(
            (size, self.num_heads, dim),
            initializer,
            name=f"{name}/kernel",
            regularizer=regularizer,
            constraint=constraint,
            layout=Layout((self.num_heads * dim, size), (1, 2, 0)),
        )
        return kernel, self._add_bias(f"{name}/bias", (self.num_heads, dim), (self.num_heads * dim,))

    def _add_bias(self, name: str, shape: tuple[int, ...], lies: tuple[int, ...]) -> Variable | None:
        if not self.use_bias:
            return None
        initializer, regularizer, constraint = self._bias
        return self.add_weight(
            shape, initializer, name=name, regularizer=regularizer, constraint=constraint, layout=Layout(lies)
        )

    def _outputs(self, specs: list[Spec], arguments: Mapping[str, Any]) -> list[Spec]:
        return [(self.compute_output_shape(specs[0][0]), "float32")]

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The query's shape, with the output's size last."""
        return (*input_shape[:2], self._output_size or input_shape[2])

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        mask = self._mask(g, inputs[3]) if len(inputs) > 3 else None
        weights = [g.weight(w) for w in (self.query, self.key, self.value, self.output)]
        biases = [
            None if b is None else g.weight(b)
            for b in (self.query_bias, self.key_bias, self.value_bias, self.output_bias)
        ]
        query, value, key = (g.plain(v) for v in inputs[:3])
        operands: list[Tensor | None] = [query, key, value, *weights, *biases, None, None, mask]
        while operands[-1] is None:
            operands.pop()
        attributes = {
            "heads": self.num_heads,
            "causal": bool(arguments.get("use_causal_mask", False)),
            "rate": self.dropout if self._trains(g, arguments) else 0.0,
        }
        shape = self.compute_output_shape(inputs[0].shape)
        return [Value(g.op("multi_head_attention", operands, attributes, shape=shape), shape)]

    def _mask(self, g: Lowering, value: Value) -> Tensor:
        # Bool [batch, steps, keys], or with heads in dimension 1; the operator wants all heads.
        mask = g.cast(g.plain(value), "bool")
        shape = mask.shape or ()
        if len(shape) == 4 and shape[1] == 1:
            mask = g.squeeze(mask, 1)
        elif len(shape) not in (3, 4):
            raise InvalidArgument(f"attention_mask takes [batch, query steps, key steps], got {value.shape}")
        return mask


class Attention(Layer):
    """softmax(query key^T) value, called on [query, value] or [query, value, key]; with use_scale a trained factor."""

    _call_arguments = ("training", "use_causal_mask")

    def __init__(
        self,
        use_scale: bool = False,
        score_mode: str = "dot",
        dropout: float = 0.0,
        seed: int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if score_mode != "dot":
            raise InvalidArgument(f"{self.name}: score_mode={score_mode!r}; accepted: dot")
        self.use_scale, self.dropout = use_scale, float(dropout)

    def _bind(self, inputs: Any, *args: Any, **kwargs: Any) -> tuple[list[KerasTensor], dict[str, Any]]:
        if kwargs.pop("return_attention_scores", False):
            raise InvalidArgument(f"{self.name}: return_attention_scores=True is not supported")
        return super()._bind(inputs, *args, **kwargs)

    def _build(self, shapes: list[Shape]) -> None:
        if len(shapes) not in (2, 3) or any(len(s) != 3 for s in shapes):
            raise InvalidArgument(f"takes [query, value] or [query, value, key] of three dimensions, got {shapes}")
        self.scale = self.add_weight((), "ones", name="scale", layout=Layout((1,))) if self.use_scale else None

    def _outputs(self, specs: list[Spec], arguments: Mapping[str, Any]) -> list[Spec]:
        return [((*specs[0][0][:2], specs[1][0][2]), "float32")]

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The query's steps and the value's features."""
        return (*input_shape[0][:2], input_shape[1][2])

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        query, value = g.plain(inputs[0]), g.plain(inputs[1])
        key = g.plain(inputs[-1])
        steps, keys = known([inputs[0].shape[1], inputs[1].shape[1]], "Attention")
        scores = g.op("matmul", [query, key], {"transpose_b": True}, shape=(None, steps, keys))
        if self.scale is not None:
            scores = g.broadcast("multiply", scores, g.weight(self.scale))
        if arguments.get("use_causal_mask", False):
            hidden = np.triu(np.full((steps, keys), -1e9, np.float32), 1)
            scores = g.broadcast("add", scores, g.constant(hidden))
        weights = g.op("softmax", [scores], {"axis": 2}, shape=scores.shape or ())
        if self.dropout > 0 and self._trains(g, arguments):
            weights = g.op("dropout", [weights], {"rate": self.dropout}, shape=weights.shape or ())
        y = g.op("matmul", [weights, value], shape=(None, steps, inputs[1].shape[2]))
        return [Value(y, y.shape or ())]
