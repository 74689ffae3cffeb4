"""Initializers, with FlexFlow's names and arguments.

Seeds of single initializers are not used: FFConfig.seed decides all numbers, those of two parameters are never equal.
"""

from __future__ import annotations

from espalier import graph
from espalier.errors import InvalidArgument
from espalier.v1 import graph_pb2


class Initializer:
    """Base of all initializers; `proto` is the daemon's message."""

    proto: graph_pb2.Initializer


class GlorotUniformInitializer(Initializer):
    """Uniform numbers of half width sqrt(6 / (fan in + fan out))."""

    def __init__(self, seed: int = 0):
        self.proto = graph.glorot_uniform()


class ZeroInitializer(Initializer):
    """All zero."""

    def __init__(self) -> None:
        self.proto = graph.zeros()


class ConstantInitializer(Initializer):
    """All `value`."""

    def __init__(self, value: float):
        self.proto = graph.constant_value(float(value))


class UniformInitializer(Initializer):
    """Uniform numbers from minv to maxv."""

    def __init__(self, seed: int, minv: float, maxv: float):
        if not minv <= maxv:
            raise InvalidArgument(f"UniformInitializer: minv {minv} is above maxv {maxv}")
        self.proto = graph.uniform(float(minv), float(maxv))


class NormInitializer(Initializer):
    """Normal numbers."""

    def __init__(self, seed: int, mean: float, stddev: float):
        if not stddev >= 0:
            raise InvalidArgument(f"NormInitializer: stddev is {stddev}; accepted: 0 or more")
        self.proto = graph.normal(float(stddev), float(mean))


def message(initializer: Initializer | None, default: graph_pb2.Initializer, what: str) -> graph_pb2.Initializer:
    """The daemon's message. InvalidArgument for what is no initializer."""
    if initializer is None:
        return default
    if not isinstance(initializer, Initializer):
        raise InvalidArgument(
            f"{what}: {initializer!r} is no initializer; accepted: GlorotUniformInitializer, ZeroInitializer, "
            "UniformInitializer, NormInitializer, ConstantInitializer"
        )
    return initializer.proto
