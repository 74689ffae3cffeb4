"""Activations with arguments or weights of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from espalier.errors import InvalidArgument
from espalier.keras import activations
from espalier.keras.layer import Layer, only_one
from espalier.keras.lowering import Lowering, Value, known
from espalier.keras.tensor import Shape


class _Activation(Layer):
    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape."""
        return input_shape


class ReLU(_Activation):
    """x from the threshold to max_value, negative_slope * (x - threshold) below."""

    def __init__(
        self, max_value: float | None = None, negative_slope: float = 0.0, threshold: float = 0.0, **kwargs: Any
    ):
        super().__init__(**kwargs)
        if (max_value is not None and max_value < 0) or negative_slope < 0 or threshold < 0:
            raise InvalidArgument(f"{self.name}: max_value, negative_slope and threshold are at least 0")
        self.max_value, self.negative_slope, self.threshold = max_value, float(negative_slope), float(threshold)

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        return [activations.relu_with(g, inputs[0], self.negative_slope, self.max_value, self.threshold)]


class LeakyReLU(_Activation):
    """x above 0, negative_slope * x below."""

    def __init__(self, negative_slope: float = 0.3, alpha: float | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.negative_slope = float(negative_slope if alpha is None else alpha)

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        return [g.map(inputs[0], "leaky_relu", {"alpha": self.negative_slope})]


class PReLU(_Activation):
    """x above 0, alpha * x below, with a weight alpha for each element but those of `shared_axes`."""

    def __init__(
        self,
        alpha_initializer: Any = "Zeros",
        alpha_regularizer: Any = None,
        alpha_constraint: Any = None,
        shared_axes: Sequence[int] | int | None = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self._alpha = (alpha_initializer, alpha_regularizer, alpha_constraint)
        if isinstance(shared_axes, int):
            shared_axes = [shared_axes]
        self.shared_axes = list(shared_axes or ())

    def _build(self, shapes: list[Shape]) -> None:
        shape = only_one("PReLU", shapes)
        sizes = known([1 if d in self.shared_axes else s for d, s in enumerate(shape) if d > 0], "PReLU")
        initializer, regularizer, constraint = self._alpha
        self.alpha = self.add_weight(sizes, initializer, name="alpha", regularizer=regularizer, constraint=constraint)

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        x = g.plain(inputs[0])
        return [Value(g.op("prelu", [x, g.weight(self.alpha)], shape=inputs[0].shape), inputs[0].shape)]


class ELU(_Activation):
    """x above 0, alpha * (exp(x) - 1) below."""

    def __init__(self, alpha: float = 1.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.alpha = float(alpha)

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        return [g.map(inputs[0], "elu", {"alpha": self.alpha})]


class ThresholdedReLU(_Activation):
    """x above theta, else 0."""

    def __init__(self, theta: float = 1.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.theta = float(theta)

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        return [g.map(inputs[0], "thresholded_relu", {"alpha": self.theta})]


class Softmax(_Activation):
    """exp(x) / sum of exp(x) along `axis`."""

    def __init__(self, axis: int = -1, **kwargs: Any):
        super().__init__(**kwargs)
        axis = axis[0] if isinstance(axis, (list, tuple)) and len(axis) == 1 else axis
        if not isinstance(axis, int):
            raise InvalidArgument(f"{self.name}: axis={axis!r}; accepted: one dimension")
        self.axis = axis

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        x = inputs[0]
        rank = len(x.shape)
        axis = self.axis % rank
        if axis == rank - 1:
            return [activations.get("softmax").lower(g, x)]
        lies = axis if x.order is None else x.order.index(axis)
        y = g.op("softmax", [x.tensor], {"axis": lies}, shape=x.tensor.shape or x.shape)
        return [Value(y, x.shape, x.order)]
