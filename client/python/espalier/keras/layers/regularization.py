"""Layers that act while training only: dropout and noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from espalier.errors import InvalidArgument
from espalier.graph import Tensor
from espalier.keras import backend, regularizers
from espalier.keras.layer import Layer
from espalier.keras.lowering import Lowering, Value


def ones_like(g: Lowering, tensor: Tensor) -> Tensor:
    """A one for every element."""
    same = g.op("equal", [tensor, tensor], shape=tensor.shape or (), dtype="bool")
    return g.cast(same, "float32")


def _normal(g: Lowering, like: Tensor, deviation: float) -> Tensor:
    # Normal numbers while training, zeros in evaluation. They depend on no weight, so they need no gradient.
    attributes: dict[str, Any] = {"distribution": "normal", "b": deviation}
    noise = g.op("random_like", [ones_like(g, like)], attributes, shape=like.shape or ())
    return g.broadcast("multiply", noise, g.in_training(like))


class _Same(Layer):
    def compute_output_shape(self, input_shape: Any) -> Any:
        """The input's shape."""
        return input_shape


class Dropout(_Same):
    """Zeros with probability `rate`, the rest divided by 1 - rate. In `noise_shape` a 1 shares the choice."""

    def __init__(
        self, rate: float, noise_shape: Sequence[int | None] | None = None, seed: int | None = None, **kwargs: Any
    ):
        super().__init__(**kwargs)
        if not 0 <= rate <= 1:
            raise InvalidArgument(f"{self.name}: rate={rate}; accepted: 0 to 1")
        # The job's seed chooses what is dropped; a layer's own seed has no meaning.
        self.rate, self.noise_shape = float(rate), None if noise_shape is None else tuple(noise_shape)

    def _shared(self, rank: int) -> list[int]:
        # Dimensions of size 1 in the mask.
        if self.noise_shape is None:
            return []
        if len(self.noise_shape) != rank:
            raise InvalidArgument(f"noise_shape={self.noise_shape} has not the input's {rank} dimensions")
        return [d for d, size in enumerate(self.noise_shape) if size == 1 and d > 0]

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        x = inputs[0]
        if self.rate == 0 or not self._trains(g, arguments):
            return [x]
        if self.rate == 1:
            return [g.map(x, "multiply_scalar", {"value": 0.0})]
        shared = self._shared(len(x.shape))
        if self.noise_shape is not None and self.noise_shape[0] == 1:
            raise InvalidArgument(f"noise_shape={self.noise_shape}: examples cannot share what is dropped")
        if not shared:
            return [g.map(x, "dropout", {"rate": self.rate})]
        lies = [d if x.order is None else x.order.index(d) for d in shared]
        one = ones_like(g, g.reduce("reduce_max", x.tensor, sorted(lies), keepdims=True))
        mask = g.op("dropout", [one], {"rate": self.rate}, shape=one.shape or ())
        return [Value(g.broadcast("multiply", x.tensor, mask), x.shape, x.order)]


class _SpatialDropout(Dropout):
    rank = 2

    def __init__(self, rate: float, data_format: str | None = None, seed: int | None = None, **kwargs: Any):
        super().__init__(rate, None, seed, **kwargs)
        self.data_format = backend.data_format_of(data_format or getattr(type(self), "_default_data_format", None))

    def _shared(self, rank: int) -> list[int]:
        if rank != self.rank + 2:
            raise InvalidArgument(f"{type(self).__name__} takes {self.rank + 2} dimensions, got {rank}")
        return list(range(1, rank - 1)) if self.data_format == "channels_last" else list(range(2, rank))


class SpatialDropout1D(_SpatialDropout):
    """Dropout of whole channels of [batch, steps, channels]."""

    rank = 1

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any):
        super().__init__(rate, "channels_last", seed, **kwargs)


class SpatialDropout2D(_SpatialDropout):
    """Dropout of whole channels of images."""

    rank = 2


class SpatialDropout3D(_SpatialDropout):
    """Dropout of whole channels of three-dimensional inputs."""

    rank = 3


class GaussianNoise(_Same):
    """Adds normal numbers of standard deviation `stddev`."""

    def __init__(self, stddev: float, seed: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        self.stddev = float(stddev)

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        x = inputs[0]
        if self.stddev == 0 or not self._trains(g, arguments):
            return [x]
        noise = _normal(g, x.tensor, self.stddev)
        return [Value(g.broadcast("add", x.tensor, noise), x.shape, x.order)]


class GaussianDropout(_Same):
    """Multiplies by normal numbers of mean 1 and standard deviation sqrt(rate / (1 - rate))."""

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any):
        super().__init__(**kwargs)
        if not 0 <= rate < 1:
            raise InvalidArgument(f"{self.name}: rate={rate}; accepted: from 0 to below 1")
        self.rate = float(rate)

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        x = inputs[0]
        if self.rate == 0 or not self._trains(g, arguments):
            return [x]
        deviation = (self.rate / (1 - self.rate)) ** 0.5
        factor = g.scalar("add_scalar", _normal(g, x.tensor, deviation), 1.0)
        return [Value(g.broadcast("multiply", x.tensor, factor), x.shape, x.order)]


class ActivityRegularization(_Same):
    """Adds l1 * sum |x| + l2 * sum x^2 to the loss, divided by the batch size; the result is x."""

    def __init__(self, l1: float = 0.0, l2: float = 0.0, **kwargs: Any):
        super().__init__(activity_regularizer=regularizers.L1L2(l1, l2), **kwargs)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make an equal layer."""
        return {key: value for key, value in super().get_config().items() if key != "activity_regularizer"}

    def _lower(self, g: Lowering, inputs: list[Value], arguments: Mapping[str, Any]) -> list[Value]:
        return inputs[:1]
