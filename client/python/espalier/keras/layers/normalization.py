"""Normalization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from espalier.errors import InvalidArgument
from espalier.graph import Tensor
from espalier.keras.layer import Layer, only_one
from espalier.keras.lowering import Lowering, Order, Value, known
from espalier.keras.tensor import Shape
from espalier.keras.variable import Variable


def _axis_first(rank: int, axis: int) -> Order:
    # The order [N, C, others...] for channels at `axis`.
    return (0, axis, *(d for d in range(1, rank) if d != axis))


class BatchNormalization(Layer):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta with the moments of the whole batch, on every plan.

    moving = momentum * moving + (1 - momentum) * batch; the moving moments serve evaluation. With trainable=False or
    training=False they serve training, too.
    """

    def __init__(
        self,
        axis: int = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        moving_mean_initializer: Any = "zeros",
        moving_variance_initializer: Any = "ones",
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        synchronized: bool = False,
        renorm: bool = False,
        renorm_clipping: Any = None,
        renorm_momentum: float = 0.99,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if renorm:
            raise InvalidArgument(f"{self.name}: renorm=True is not supported")
        if isinstance(axis, (list, tuple)):
            if len(axis) != 1:
                raise InvalidArgument(f"{self.name}: axis={axis!r}; accepted: one dimension")
            axis = axis[0]
        self.axis = int(axis)
        self.momentum, self.epsilon = float(momentum), float(epsilon)
        self.center, self.scale = center, scale
        self._gamma = (gamma_initializer, gamma_regularizer, gamma_constraint)
        self._beta = (beta_initializer, beta_regularizer, beta_constraint)
        self._moving = (moving_mean_initializer, moving_variance_initializer)

    def _build(self, shapes: list[Shape]) -> None:
        shape = only_one("BatchNormalization", shapes)
        axis = self.axis % len(shape)
        if axis == 0 or shape[axis] is None:
            raise InvalidArgument(f"axis={self.axis} of {shape} is the batch, or its size is not known")
        channels = int(shape[axis] or 0)
        self.gamma = self.beta = None
        if self.scale:
            self.gamma = self._one(channels, "gamma", *self._gamma)
        if self.center:
            self.beta = self._one(channels, "beta", *self._beta)
        self.moving_mean = self.add_weight((channels,), self._moving[0], name="moving_mean", trainable=False)
        self.moving_variance = self.add_weight((channels,), self._moving[1], name="moving_variance", trainable=False)

    def _one(self, channels: int, name: str, initializer: Any, regularizer: Any, constraint: Any) -> Variable:
        return self.add_weight((channels,), initializer, name=name, regularizer=regularizer, constraint=constraint)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape."""
        return input_shape

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        value = inputs[0]
        rank = len(value.shape)
        order = _axis_first(rank, self.axis % rank)
        x = g.ordered(value, order)
        channels = self.moving_mean.shape[0]
        ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
        scale = g.constant(ones) if self.gamma is None else g.weight(self.gamma)
        bias = g.constant(zeros) if self.beta is None else g.weight(self.beta)
        mean, variance = g.weight(self.moving_mean), g.weight(self.moving_variance)
        if not (self.trainable and self.moving_mean_moves and self._trains(g, arguments)):
            return [Value(self._fixed(g, x, (scale, bias, mean, variance)), value.shape, order)]
        stats = g.op("batch_norm_stats", [x], shape=(2, channels))
        attributes = {"epsilon": self.epsilon, "momentum": 1 - self.momentum, "biased_running_var": True}
        y = g.op("batch_norm", [x, scale, bias, mean, variance, stats], attributes, shape=x.shape or ())
        return [Value(y, value.shape, order)]

    # False once a model that holds this layer was frozen.
    @property
    def moving_mean_moves(self) -> bool:
        """Whether training moves the moving moments."""
        return self._outer_trainable

    _outer_trainable = True

    def _apply_trainable(self, outer: bool) -> None:
        self._outer_trainable = outer
        super()._apply_trainable(outer)

    def _fixed(self, g: Lowering, x: Tensor, weights: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        scale, bias, mean, variance = weights
        channels = self.moving_mean.shape[0]
        steep = g.broadcast(
            "multiply", scale, g.op("rsqrt", [g.scalar("add_scalar", variance, self.epsilon)], shape=(channels,))
        )
        shift = g.broadcast("subtract", bias, g.broadcast("multiply", mean, steep))
        wide = [channels, *(1,) * (len(x.shape or ()) - 2)]
        steep, shift = (g.op("reshape", [t], {"shape": wide}, shape=tuple(wide)) for t in (steep, shift))
        return g.broadcast("add", g.broadcast("multiply", x, steep), shift)


class LayerNormalization(Layer):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta over `axis`: one dimension, or several at the end."""

    def __init__(
        self,
        axis: Any = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        rms_scaling: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        if rms_scaling:
            raise InvalidArgument(f"{self.name}: rms_scaling=True is not supported; use RMSNormalization")
        self.axis = tuple(axis) if isinstance(axis, (list, tuple)) else (int(axis),)
        self.epsilon, self.center, self.scale = float(epsilon), center, scale
        self._gamma = (gamma_initializer, gamma_regularizer, gamma_constraint)
        self._beta = (beta_initializer, beta_regularizer, beta_constraint)

    def _build(self, shapes: list[Shape]) -> None:
        shape = only_one("LayerNormalization", shapes)
        axes = sorted(a % len(shape) for a in self.axis)
        sizes = known([shape[a] for a in axes], "LayerNormalization")
        self.gamma = self.beta = None
        if self.scale:
            initializer, regularizer, constraint = self._gamma
            self.gamma = self.add_weight(
                sizes, initializer, name="gamma", regularizer=regularizer, constraint=constraint
            )
        if self.center:
            initializer, regularizer, constraint = self._beta
            self.beta = self.add_weight(sizes, initializer, name="beta", regularizer=regularizer, constraint=constraint)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape."""
        return input_shape

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        value = inputs[0]
        rank = len(value.shape)
        axes = sorted(a % rank for a in self.axis)
        order = (*(d for d in range(rank) if d not in axes), *axes)
        x = g.ordered(value, order)
        weights = [None if w is None else g.weight(w) for w in (self.gamma, self.beta)]
        wide = x.shape or ()
        if len(axes) > 1:
            count = int(np.prod(known([value.shape[a] for a in axes], "LayerNormalization")))
            kept = wide[: rank - len(axes)]
            known(kept[1:], "LayerNormalization")
            x = g.reshape(x, (*kept, count))
            weights = [None if w is None else g.op("reshape", [w], {"shape": [count]}, shape=(count,)) for w in weights]
        y = g.op("layer_norm", [x, *weights], {"epsilon": self.epsilon}, shape=x.shape or ())
        return [Value(g.reshape(y, wide), value.shape, order)]


class RMSNormalization(Layer):
    """x / sqrt(mean of x^2 + epsilon) * scale over the last dimension."""

    def __init__(self, axis: int = -1, epsilon: float = 1e-6, **kwargs: Any):
        super().__init__(**kwargs)
        axis = axis[0] if isinstance(axis, (list, tuple)) and len(axis) == 1 else axis
        if axis != -1:
            raise InvalidArgument(f"{self.name}: axis={axis!r}; accepted: -1")
        self.epsilon = float(epsilon)

    def _build(self, shapes: list[Shape]) -> None:
        (size,) = known(only_one("RMSNormalization", shapes)[-1:], "RMSNormalization")
        self.gamma = self.add_weight((size,), "ones", name="scale")

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape."""
        return input_shape

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        x = g.plain(inputs[0])
        y = g.op("rms_norm", [x, g.weight(self.gamma)], {"epsilon": self.epsilon}, shape=inputs[0].shape)
        return [Value(y, inputs[0].shape)]


class GroupNormalization(Layer):
    """(x - mean) / sqrt(variance + epsilon) * gamma + beta over groups of channels; groups=-1: each channel."""

    def __init__(
        self,
        groups: int = 32,
        axis: int = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.groups, self.axis, self.epsilon = int(groups), int(axis), float(epsilon)
        self.center, self.scale = center, scale
        self._gamma = (gamma_initializer, gamma_regularizer, gamma_constraint)
        self._beta = (beta_initializer, beta_regularizer, beta_constraint)

    def _build(self, shapes: list[Shape]) -> None:
        shape = only_one("GroupNormalization", shapes)
        (channels,) = known([shape[self.axis % len(shape)]], "GroupNormalization")
        if self.groups != -1 and channels % self.groups:
            raise InvalidArgument(f"{channels} channels are no multiple of groups={self.groups}")
        self.gamma = self.beta = None
        if self.scale:
            initializer, regularizer, constraint = self._gamma
            self.gamma = self.add_weight(
                (channels,), initializer, name="gamma", regularizer=regularizer, constraint=constraint
            )
        if self.center:
            initializer, regularizer, constraint = self._beta
            self.beta = self.add_weight(
                (channels,), initializer, name="beta", regularizer=regularizer, constraint=constraint
            )

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape."""
        return input_shape

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        value = inputs[0]
        rank = len(value.shape)
        axis = self.axis % rank
        order = _axis_first(rank, axis)
        x = g.ordered(value, order)
        groups = int(value.shape[axis] or 0) if self.groups == -1 else self.groups
        weights = [None if w is None else g.weight(w) for w in (self.gamma, self.beta)]
        attributes = {"groups": groups, "epsilon": self.epsilon}
        return [Value(g.op("group_norm", [x, *weights], attributes, shape=x.shape or ()), value.shape, order)]


class UnitNormalization(Layer):
    """x divided by its root of sums of squares over `axis`, which is at least 1e-12."""

    def __init__(self, axis: Any = -1, **kwargs: Any):
        super().__init__(**kwargs)
        self.axis: Sequence[int] = tuple(axis) if isinstance(axis, (list, tuple)) else (int(axis),)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape."""
        return input_shape

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        x = g.plain(inputs[0])
        axes = sorted(a % len(inputs[0].shape) for a in self.axis)
        norm = g.reduce("reduce_l2", x, axes, keepdims=True)
        norm = g.op("clip", [norm], {"min": 1e-12}, shape=norm.shape or ())
        return [Value(g.broadcast("divide", x, norm), inputs[0].shape)]
