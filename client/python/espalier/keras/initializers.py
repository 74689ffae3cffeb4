"""Initial elements of weights, with Keras' names, arguments and distributions.

A weight that nobody has read or set before training is made by the coordinator, from the same distribution and the
job's seed; others are made here, from `set_random_seed` or the initializer's own `seed`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from espalier import graph
from espalier.errors import InvalidArgument
from espalier.keras import backend
from espalier.keras.serialization import Configurable, find
from espalier.v1 import graph_pb2 as pb

Array = np.ndarray[Any, Any]

# The standard deviation of a normal distribution that is cut off at two standard deviations.
_TRUNCATED = 0.87962566103423978


def fans(shape: Sequence[int]) -> tuple[float, float]:
    """Inputs and outputs of a weight in Keras' layout, kernels outermost."""
    if len(shape) < 1:
        return 1.0, 1.0
    if len(shape) == 1:
        return float(shape[0]), float(shape[0])
    receptive = math.prod(shape[:-2])
    return float(shape[-2] * receptive), float(shape[-1] * receptive)


def _truncated(generator: np.random.Generator, shape: Sequence[int], mean: float, stddev: float) -> Array:
    drawn = generator.standard_normal(tuple(shape))
    while (outside := np.abs(drawn) > 2).any():
        drawn[outside] = generator.standard_normal(int(outside.sum()))
    return (mean + stddev * drawn).astype(np.float32)


class Initializer(Configurable):
    """Base of all initializers."""

    seed: int | None = None

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> Array:
        """Elements of `shape`, float32. With a `seed` always the same."""
        generator = backend.generator() if self.seed is None else np.random.default_rng(self.seed)
        return np.asarray(self._draw(tuple(shape), generator), np.float32)

    def _draw(self, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
        raise NotImplementedError

    def _message(self, shape: tuple[int, ...]) -> pb.Initializer | None:
        # What makes the same distribution at the coordinator, of a weight in Keras' layout; None: nothing does.
        return None


class Zeros(Initializer):
    """All zero."""

    def __init__(self) -> None:
        pass

    def _draw(self, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
        return np.zeros(shape)

    def _message(self, shape: tuple[int, ...]) -> pb.Initializer:
        return graph.zeros()


class Ones(Initializer):
    """All one."""

    def __init__(self) -> None:
        pass

    def _draw(self, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
        return np.ones(shape)

    def _message(self, shape: tuple[int, ...]) -> pb.Initializer:
        return graph.ones()


class Constant(Initializer):
    """All `value`, a number, or the elements of `value`, an array of the weight's shape."""

    def __init__(self, value: Any = 0.0):
        self.value = value

    def _draw(self, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
        made: Array = np.broadcast_to(np.asarray(self.value, np.float32), shape).copy()
        return made

    def _message(self, shape: tuple[int, ...]) -> pb.Initializer | None:
        return graph.constant_value(float(self.value)) if np.ndim(self.value) == 0 else None


class RandomNormal(Initializer):
    """Normal numbers."""

    def __init__(self, mean: float = 0.0, stddev: float = 0.05, seed: int | None = None):
        self.mean, self.stddev, self.seed = mean, stddev, seed

    def _draw(self, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
        return np.asarray(generator.normal(self.mean, self.stddev, shape))

    def _message(self, shape: tuple[int, ...]) -> pb.Initializer | None:
        return graph.normal(self.stddev, self.mean) if self.seed is None else None


class TruncatedNormal(Initializer):
    """Normal numbers, drawn again beyond two standard deviations."""

    def __init__(self, mean: float = 0.0, stddev: float = 0.05, seed: int | None = None):
        self.mean, self.stddev, self.seed = mean, stddev, seed

    def _draw(self, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
        return _truncated(generator, shape, self.mean, self.stddev)

    def _message(self, shape: tuple[int, ...]) -> pb.Initializer | None:
        return graph.truncated_normal(self.stddev, self.mean) if self.seed is None else None


class RandomUniform(Initializer):
    """Uniform numbers between `minval` and `maxval`."""

    def __init__(self, minval: float = -0.05, maxval: float = 0.05, seed: int | None = None):
        self.minval, self.maxval, self.seed = minval, maxval, seed

    def _draw(self, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
        return np.asarray(generator.uniform(self.minval, self.maxval, shape))

    def _message(self, shape: tuple[int, ...]) -> pb.Initializer | None:
        return graph.uniform(self.minval, self.maxval) if self.seed is None else None


class VarianceScaling(Initializer):
    """Numbers of variance `scale` divided by the inputs, the outputs or their mean."""

    def __init__(
        self,
        scale: float = 1.0,
        mode: str = "fan_in",
        distribution: str = "truncated_normal",
        seed: int | None = None,
    ):
        if scale <= 0:
            raise InvalidArgument(f"VarianceScaling: scale={scale}; accepted: above 0")
        if mode not in ("fan_in", "fan_out", "fan_avg"):
            raise InvalidArgument(f"VarianceScaling: mode={mode!r}; accepted are fan_in, fan_out, fan_avg")
        distribution = distribution.lower()
        if distribution == "normal":
            distribution = "truncated_normal"
        if distribution not in ("truncated_normal", "untruncated_normal", "uniform"):
            raise InvalidArgument(
                f"VarianceScaling: distribution={distribution!r}; accepted are truncated_normal, untruncated_normal, "
                "uniform"
            )
        self.scale, self.mode, self.distribution, self.seed = scale, mode, distribution, seed

    def _variance(self, shape: tuple[int, ...]) -> float:
        fan_in, fan_out = fans(shape)
        by = {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self.mode]
        return self.scale / max(1.0, by)

    def _same(self, shape: tuple[int, ...]) -> Initializer:
        variance = self._variance(shape)
        if self.distribution == "uniform":
            return RandomUniform(-math.sqrt(3 * variance), math.sqrt(3 * variance), self.seed)
        if self.distribution == "truncated_normal":
            return TruncatedNormal(0.0, math.sqrt(variance) / _TRUNCATED, self.seed)
        return RandomNormal(0.0, math.sqrt(variance), self.seed)

    def _draw(self, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
        return self._same(shape)._draw(shape, generator)

    def _message(self, shape: tuple[int, ...]) -> pb.Initializer | None:
        return self._same(shape)._message(shape)


class GlorotUniform(VarianceScaling):
    """Uniform numbers of half width sqrt(6 / (inputs + outputs))."""

    def __init__(self, seed: int | None = None):
        super().__init__(1.0, "fan_avg", "uniform", seed)


class GlorotNormal(VarianceScaling):
    """Truncated normal numbers of standard deviation sqrt(2 / (inputs + outputs))."""

    def __init__(self, seed: int | None = None):
        super().__init__(1.0, "fan_avg", "truncated_normal", seed)


class HeUniform(VarianceScaling):
    """Uniform numbers of half width sqrt(6 / inputs)."""

    def __init__(self, seed: int | None = None):
        super().__init__(2.0, "fan_in", "uniform", seed)


class HeNormal(VarianceScaling):
    """Truncated normal numbers of standard deviation sqrt(2 / inputs)."""

    def __init__(self, seed: int | None = None):
        super().__init__(2.0, "fan_in", "truncated_normal", seed)


class LecunUniform(VarianceScaling):
    """Uniform numbers of half width sqrt(3 / inputs)."""

    def __init__(self, seed: int | None = None):
        super().__init__(1.0, "fan_in", "uniform", seed)


class LecunNormal(VarianceScaling):
    """Truncated normal numbers of standard deviation sqrt(1 / inputs)."""

    def __init__(self, seed: int | None = None):
        super().__init__(1.0, "fan_in", "truncated_normal", seed)


class Orthogonal(Initializer):
    """Orthonormal rows or columns of the weight as a matrix of its last dimension, times `gain`."""

    def __init__(self, gain: float = 1.0, seed: int | None = None):
        self.gain, self.seed = gain, seed

    def _draw(self, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
        if len(shape) < 2:
            raise InvalidArgument(f"Orthogonal: a weight of shape {shape}; at least two dimensions are needed")
        rows, columns = math.prod(shape[:-1]), shape[-1]
        q, r = np.linalg.qr(generator.standard_normal((max(rows, columns), min(rows, columns))))
        q = q * np.sign(np.diag(r))
        return np.asarray(self.gain * (q if rows >= columns else q.T).reshape(shape))


class Identity(Initializer):
    """`gain` times the identity matrix."""

    def __init__(self, gain: float = 1.0):
        self.gain = gain

    def _draw(self, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
        if len(shape) != 2:
            raise InvalidArgument(f"Identity: a weight of shape {shape}; it makes matrices only")
        return self.gain * np.eye(*shape)


_CLASSES: dict[str, type[Initializer]] = {
    c.__name__: c
    for c in (
        Zeros,
        Ones,
        Constant,
        RandomNormal,
        TruncatedNormal,
        RandomUniform,
        VarianceScaling,
        GlorotUniform,
        GlorotNormal,
        HeUniform,
        HeNormal,
        LecunUniform,
        LecunNormal,
        Orthogonal,
        Identity,
    )
}
_CLASSES |= {backend.snake_case(name): c for name, c in _CLASSES.items()}
_CLASSES |= {
    "zero": Zeros,
    "one": Ones,
    "normal": RandomNormal,
    "uniform": RandomUniform,
    "OrthogonalInitializer": Orthogonal,
    "IdentityInitializer": Identity,
    # FlexFlow's names
    "DefaultInitializer": GlorotUniform,
    "UniformInitializer": RandomUniform,
    "NormInitializer": RandomNormal,
}


class _FromFunction(Initializer):
    def __init__(self, function: Any):
        self.function = function

    def _draw(self, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
        drawn = np.asarray(self.function(shape), np.float32)
        if drawn.shape != shape:
            raise InvalidArgument(f"initializer {self.function!r} made {drawn.shape} for a weight of shape {shape}")
        return drawn


def get(identifier: Any) -> Initializer:
    """The initializer of a name ("glorot_uniform"), a configuration, an array or a function of a shape."""
    if isinstance(identifier, (int, float, np.ndarray)) and not isinstance(identifier, bool):
        return Constant(identifier)
    if callable(identifier) and not isinstance(identifier, (Initializer, type)):
        return _FromFunction(identifier)
    if isinstance(identifier, Mapping):
        # Keras writes seeds that are generators as None or as configurations, and axes that are not the last two.
        config = {k: v for k, v in (identifier.get("config") or {}).items() if k not in ("input_axes", "output_axes")}
        if isinstance(config.get("seed"), Mapping):
            config["seed"] = None
        identifier = {**identifier, "config": config}
    found: Initializer = find("initializer", identifier, _CLASSES, Initializer)
    return found
