"""The daemon's optimizer updates in NumPy, to compare others with (docs/reference/operators.md, sgd_update etc.)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
# (parameter, gradient, learning rate, number of the update from 1, state, attributes) -> change of the parameter
Formula = Callable[[Array, Array, float, int, dict[str, Any], Mapping[str, float]], Array]


def clip(gradients: Sequence[Array], max_norm: float) -> float:
    """The factor of gradients whose global norm is clipped; 0: it is not."""
    if not max_norm:
        return 1.0
    norm = float(np.sqrt(sum(float(np.sum(np.square(g, dtype=np.float64))) for g in gradients)))
    return min(1.0, max_norm / (norm + 1e-6))


def _sgd(p: Array, g: Array, rate: float, t: int, state: dict[str, Any], a: Mapping[str, float]) -> Array:
    momentum = a.get("momentum", 0.0)
    g = g + a.get("weight_decay", 0.0) * p
    if momentum:
        state["buffer"] = g if t == 1 else momentum * state["buffer"] + g
        g = g + momentum * state["buffer"] if a.get("nesterov") else state["buffer"]
    return -rate * g


def _adam(decoupled: bool) -> Formula:
    def formula(p: Array, g: Array, rate: float, t: int, state: dict[str, Any], a: Mapping[str, float]) -> Array:
        b1, b2, decay = a.get("beta1", 0.9), a.get("beta2", 0.999), a.get("weight_decay", 0.0)
        g = g if decoupled else g + decay * p
        state["m"] = b1 * state.get("m", 0.0) + (1 - b1) * g
        state["v"] = b2 * state.get("v", 0.0) + (1 - b2) * g * g
        correction = np.sqrt(1 - b2**t)
        epsilon = a.get("epsilon", 1e-8) / (correction if a.get("epsilon_hat") else 1.0)
        step = state["m"] / (1 - b1**t) / (np.sqrt(state["v"]) / correction + epsilon)
        change: Array = -rate * step - (rate * decay * p if decoupled else 0.0)
        return change

    return formula


def _root(square: Array, epsilon: float, a: Mapping[str, float]) -> Array:
    root: Array = np.sqrt(square + epsilon) if a.get("eps_in_sqrt") else np.sqrt(square) + epsilon
    return root


def _adagrad(p: Array, g: Array, rate: float, t: int, state: dict[str, Any], a: Mapping[str, float]) -> Array:
    g = g + a.get("weight_decay", 0.0) * p
    state["sum"] = state.get("sum", a.get("initial_accumulator_value", 0.0)) + g * g
    change: Array = -rate / (1 + (t - 1) * a.get("lr_decay", 0.0)) * g / _root(state["sum"], a.get("eps", 1e-10), a)
    return change


def _rmsprop(p: Array, g: Array, rate: float, t: int, state: dict[str, Any], a: Mapping[str, float]) -> Array:
    alpha = a.get("alpha", 0.99)
    g = g + a.get("weight_decay", 0.0) * p
    state["v"] = alpha * state.get("v", 0.0) + (1 - alpha) * g * g
    v = state["v"]
    if a.get("centered"):
        state["mean"] = alpha * state.get("mean", 0.0) + (1 - alpha) * g
        v = v - state["mean"] ** 2
    d: Array = g / _root(v, a.get("eps", 1e-8), a)
    if a.get("momentum"):
        state["buffer"] = a["momentum"] * state.get("buffer", 0.0) + d
        d = state["buffer"]
    return -rate * d


def _lion(p: Array, g: Array, rate: float, t: int, state: dict[str, Any], a: Mapping[str, float]) -> Array:
    b1, b2, m = a.get("beta1", 0.9), a.get("beta2", 0.99), state.get("m", 0.0)
    change: Array = -rate * (np.sign(b1 * m + (1 - b1) * g) + a.get("weight_decay", 0.0) * p)
    state["m"] = b2 * m + (1 - b2) * g
    return change


FORMULAS: dict[str, Formula] = {
    "sgd": _sgd,
    "adam": _adam(False),
    "adamw": _adam(True),
    "adagrad": _adagrad,
    "rmsprop": _rmsprop,
    "lion": _lion,
}
