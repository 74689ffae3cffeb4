"""Activation functions, with Keras' names and defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from espalier.errors import InvalidArgument
from espalier.graph import AttributeValue
from espalier.keras.lowering import Lowering, Value
from espalier.keras.serialization import named

Function = Callable[[Lowering, Value], Value]


def _plain(op: str, **attributes: AttributeValue) -> Function:
    return lambda g, x: g.map(x, op, attributes)


def _along_last(op: str) -> Function:
    def apply(g: Lowering, x: Value) -> Value:
        last = len(x.shape) - 1
        axis = last if x.order is None else x.order.index(last)
        tensor = g.op(op, [x.tensor], {"axis": axis}, shape=x.tensor.shape or x.shape, dtype=x.dtype)
        made = Value(tensor, x.shape, x.order)
        if op == "softmax":
            made.logits = ("softmax", x)
        return made

    return apply


def _sigmoid(g: Lowering, x: Value) -> Value:
    made = g.map(x, "sigmoid")
    made.logits = ("sigmoid", x)
    return made


def _times(g: Lowering, a: Value, b: Value) -> Value:
    return Value(g.broadcast("multiply", a.tensor, b.tensor), a.shape, a.order)


def _minus(g: Lowering, a: Value, b: Value) -> Value:
    return Value(g.broadcast("subtract", a.tensor, b.tensor), a.shape, a.order)


def _log_sigmoid(g: Lowering, x: Value) -> Value:
    return g.map(g.map(g.map(x, "neg"), "softplus"), "neg")


def _tanh_shrink(g: Lowering, x: Value) -> Value:
    return _minus(g, x, g.map(x, "tanh"))


def _squareplus(g: Lowering, x: Value) -> Value:
    root = g.map(g.map(_times(g, x, x), "add_scalar", {"value": 4.0}), "sqrt")
    both = Value(g.broadcast("add", x.tensor, root.tensor), x.shape, x.order)
    return g.map(both, "multiply_scalar", {"value": 0.5})


def relu_with(g: Lowering, x: Value, negative_slope: float, max_value: float | None, threshold: float) -> Value:
    """Keras' general relu: slope * (x - threshold) below the threshold, x above it, at most max_value."""
    if threshold == 0:
        y = g.map(x, "relu") if negative_slope == 0 else g.map(x, "leaky_relu", {"alpha": float(negative_slope)})
    elif negative_slope == 0:
        y = g.map(x, "thresholded_relu", {"alpha": float(threshold)})
    else:
        over = g.map(x, "thresholded_relu", {"alpha": float(threshold)})
        under = g.map(g.map(x, "add_scalar", {"value": -float(threshold)}), "clip", {"max": 0.0})
        scaled = g.map(under, "multiply_scalar", {"value": float(negative_slope)})
        y = Value(g.broadcast("add", over.tensor, scaled.tensor), x.shape, x.order)
    if max_value is not None:
        y = g.map(y, "clip", {"max": float(max_value)})
    return y


FUNCTIONS: dict[str, Function] = {
    "relu": _plain("relu"),
    "relu6": lambda g, x: relu_with(g, x, 0.0, 6.0, 0.0),
    "leaky_relu": _plain("leaky_relu", alpha=0.2),
    "softmax": _along_last("softmax"),
    "log_softmax": _along_last("log_softmax"),
    "sigmoid": _sigmoid,
    "log_sigmoid": _log_sigmoid,
    "tanh": _plain("tanh"),
    "tanh_shrink": _tanh_shrink,
    "softplus": _plain("softplus"),
    "softsign": _plain("softsign"),
    "selu": _plain("selu", alpha=1.6732632423543772, gamma=1.0507009873554805),
    "elu": _plain("elu", alpha=1.0),
    "celu": _plain("celu", alpha=1.0),
    "exponential": _plain("exp"),
    "silu": _plain("silu"),
    "gelu": _plain("gelu", approximate="none"),
    "hard_sigmoid": _plain("hard_sigmoid", alpha=1 / 6, beta=0.5),
    "hard_silu": _plain("hard_swish"),
    "hard_tanh": _plain("clip", min=-1.0, max=1.0),
    "hard_shrink": lambda g, x: _hard_shrink(g, x, 0.5),
    "soft_shrink": _plain("shrink", bias=0.5, lambd=0.5),
    "mish": _plain("mish"),
    "squareplus": _squareplus,
    "linear": lambda g, x: x,
}
ALIASES = {"swish": "silu", "hard_swish": "hard_silu", "exp": "exponential", "none": "linear", "identity": "linear"}


def _hard_shrink(g: Lowering, x: Value, threshold: float) -> Value:
    return g.map(x, "shrink", {"bias": 0.0, "lambd": threshold})


class Activation:
    """An activation function by its name; `relu`, `softmax` and the others of this module are such."""

    def __init__(self, name: str):
        self.name = name
        self.__name__ = name

    def __call__(self, x: Any) -> Any:
        """Applies it to a tensor of a model."""
        from espalier.keras.layers.core import Activation as Layer

        return Layer(self)(x)

    def lower(self, g: Lowering, x: Value) -> Value:
        """The operators of the function."""
        return FUNCTIONS[self.name](g, x)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Activation) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<activation {self.name}>"


_MADE = {name: Activation(name) for name in FUNCTIONS}


def get(identifier: Any) -> Activation:
    """The activation of a name, a configuration, a function of Keras with such a name, or None ("linear")."""
    if identifier is None:
        return _MADE["linear"]
    if isinstance(identifier, Activation):
        return identifier
    made = named(identifier)
    if made is not None:
        name = str(made[1].get("name", made[0])) if made[0] == "Activation" else made[0]
        if name == "function" and isinstance(identifier, Mapping):
            name = str(identifier.get("config"))
    else:
        name = identifier if isinstance(identifier, str) else str(getattr(identifier, "__name__", identifier))
    name = ALIASES.get(name, name)
    if name not in _MADE:
        raise InvalidArgument(f"activation {name!r}; known are {', '.join(sorted([*_MADE, *ALIASES]))}")
    return _MADE[name]


def __getattr__(name: str) -> Any:
    if name in _MADE or name in ALIASES:
        return _MADE[ALIASES.get(name, name)]
    raise AttributeError(f"no activation {name!r}")


# Activations that recurrent operators know, with their arguments.
RECURRENT = {
    "tanh": ("tanh", 0.0, 0.0),
    "sigmoid": ("sigmoid", 0.0, 0.0),
    "relu": ("relu", 0.0, 0.0),
    "linear": ("affine", 1.0, 0.0),
    "hard_sigmoid": ("hard_sigmoid", 1 / 6, 0.5),
    "leaky_relu": ("leaky_relu", 0.2, 0.0),
    "elu": ("elu", 1.0, 0.0),
    "softsign": ("softsign", 0.0, 0.0),
    "softplus": ("softplus", 0.0, 0.0),
}
