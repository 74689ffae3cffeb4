"""Random numbers: other ones than PyTorch's generator draws, of the same distribution, new in every step."""

from __future__ import annotations

from typing import Any

import torch

from espalier.torch.convert_layers import dropout
from espalier.torch.emitter import Emitter
from espalier.torch.registry import handles
from espalier.torch.values import CannotConvert, Value


@handles("bernoulli.p")
def _bernoulli(emit: Emitter, x: Value, p: Any = 0.5, generator: Any = None) -> Value:
    """Ones with probability p. As in dropout, they are p where the model is evaluated: a mean of what is drawn."""
    return _kept(emit, x, float(emit.scalar(p)))


def _kept(emit: Emitter, x: Value, p: float) -> Value:
    if p == 0.0:
        return emit.fill(0.0, x.dtype, x.shape)
    ones = emit.whole(emit.fill(1.0, x.dtype, x.shape))
    return emit.arithmetic("multiply", dropout(emit, ones, 1.0 - p), p, x.dtype)


def _drawn(distribution: str, a: float = 0.0, b: float = 1.0) -> Any:
    def handler(emit: Emitter, *_: Any, **__: Any) -> Value:
        output = emit.output
        if output.dtype != torch.float32:
            raise CannotConvert(f"of {output.dtype}; only float32")
        like = emit.whole(emit.fill(0.0, output.dtype, output.shape))
        return emit.op("random_like", [like], {"distribution": distribution, "a": a, "b": b})

    return handler


handles("rand.default", "rand_like.default")(_drawn("uniform"))
handles("randn.default", "randn_like.default")(_drawn("normal"))


@handles("uniform.default")
def _uniform(emit: Emitter, x: Value, low: Any = 0.0, high: Any = 1.0, generator: Any = None) -> Value:
    return _drawn("uniform", float(low), float(high))(emit)  # type: ignore[no-any-return]


@handles("normal_functional.default")
def _normal(emit: Emitter, x: Value, mean: Any = 0.0, std: Any = 1.0, generator: Any = None) -> Value:
    return _drawn("normal", float(mean), float(std))(emit)  # type: ignore[no-any-return]
