"""Losses, with Keras' names, arguments and formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from espalier.errors import InvalidArgument
from espalier.graph import Tensor
from espalier.keras import backend
from espalier.keras.lowering import Lowering, Value, known
from espalier.keras.serialization import Configurable, find, of_keras
from espalier.notes import warn

_EPSILON = 1e-7
_VIEWS = frozenset(["cast", "flatten", "identity", "reshape", "squeeze", "transpose", "unsqueeze"])
# Operators whose results are hardly ever probabilities. Of sums and products, as of an ensemble, it is not known.
_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
_FUNCTIONS = ("elu", "gelu", "leaky_relu", "log_softmax", "relu", "selu", "silu", "softplus", "tanh")
_NO_PROBABILITIES = frozenset([*_CONVOLUTIONS, *_FUNCTIONS, "batch_norm", "layer_norm", "linear"])
_NO_DISTRIBUTIONS = _NO_PROBABILITIES | {"sigmoid", "hard_sigmoid"}


def _unary(g: Lowering, op: str, x: Tensor, **attributes: Any) -> Tensor:
    return g.op(op, [x], attributes, shape=x.shape or ())


def _mean_last(g: Lowering, x: Tensor) -> Tensor:
    return g.reduce("reduce_mean", x, [len(x.shape or ()) - 1])


def _sum_last(g: Lowering, x: Tensor) -> Tensor:
    return g.reduce("reduce_sum", x, [len(x.shape or ()) - 1])


def _clip(g: Lowering, x: Tensor, low: float | None, high: float | None = None) -> Tensor:
    attributes = {} if low is None else {"min": low}
    return _unary(g, "clip", x, **(attributes if high is None else attributes | {"max": high}))


def _difference(g: Lowering, t: Tensor, p: Tensor) -> Tensor:
    return g.broadcast("subtract", p, t)


def _probabilities(g: Lowering, p: Value) -> Tensor:
    # What Keras makes of an output that is taken as a distribution.
    x = g.plain(p)
    total = g.reduce("reduce_sum", x, [len(x.shape or ()) - 1], keepdims=True)
    return _clip(g, g.broadcast("divide", x, total), _EPSILON, 1 - _EPSILON)


class Loss(Configurable):
    """Base of all losses.

    `reduction` is "sum_over_batch_size" (the mean; "mean" says the same) or "sum".
    """

    integer_labels = False
    _op = ""  # the operator of the mean, if there is one
    _softmax = False  # a distribution over the last dimension is compared

    def __init__(self, name: str | None = None, reduction: str | None = "sum_over_batch_size", dtype: Any = None):
        self.name = name or backend.snake_case(type(self).__name__)
        if reduction not in ("sum_over_batch_size", "mean", "sum", "auto"):
            raise InvalidArgument(
                f"{self.name}: reduction={reduction!r}; accepted are sum_over_batch_size, mean and sum"
            )
        self.reduction = reduction

    def lower(self, g: Lowering, target: Tensor, prediction: Value, weights: Tensor | None = None) -> Tensor:
        """The scalar loss. `weights` has one number for each example."""
        if self.reduction != "sum" and self._op:
            return self._mean(g, target, prediction, weights)
        values = self._values(g, target, prediction)
        if self.reduction != "sum":
            return g.op("identity_loss", [values, *([] if weights is None else [weights])], shape=())
        if weights is not None:
            rank = len(values.shape or ())
            wide = g.reshape(weights, (None, *(1,) * (rank - 1))) if rank > 1 else weights
            values = g.broadcast("multiply", values, wide)
        total = g.reduce("reduce_sum", values, list(range(len(values.shape or ()))))
        return g.op("identity_loss", [total], shape=())

    def _mean(self, g: Lowering, target: Tensor, prediction: Value, weights: Tensor | None) -> Tensor:
        return self._call(g, self._op, [g.plain(prediction), target], weights, {})

    def _call(
        self, g: Lowering, op: str, operands: list[Tensor | None], weights: Tensor | None, attributes: dict[str, Any]
    ) -> Tensor:
        return g.op(op, [*operands, *([] if weights is None else [weights])], attributes, shape=())

    def _values(self, g: Lowering, target: Tensor, prediction: Value) -> Tensor:
        # One value for each example (and step).
        raise NotImplementedError


class MeanSquaredError(Loss):
    """mean of (prediction - target)^2."""

    _op = "mean_squared_error"

    def _values(self, g: Lowering, target: Tensor, prediction: Value) -> Tensor:
        d = _difference(g, target, g.plain(prediction))
        return _mean_last(g, g.broadcast("multiply", d, d))


class MeanAbsoluteError(Loss):
    """mean of |prediction - target|."""

    _op = "mean_absolute_error"

    def _values(self, g: Lowering, target: Tensor, prediction: Value) -> Tensor:
        return _mean_last(g, _unary(g, "abs", _difference(g, target, g.plain(prediction))))


class MeanAbsolutePercentageError(Loss):
    """100 * mean of |(target - prediction) / target|."""

    def _values(self, g: Lowering, target: Tensor, prediction: Value) -> Tensor:
        d = _unary(g, "abs", _difference(g, target, g.plain(prediction)))
        size = _clip(g, _unary(g, "abs", target), _EPSILON)
        return g.scalar("multiply_scalar", _mean_last(g, g.broadcast("divide", d, size)), 100.0)


class MeanSquaredLogarithmicError(Loss):
    """mean of (log(target + 1) - log(prediction + 1))^2."""

    def _values(self, g: Lowering, target: Tensor, prediction: Value) -> Tensor:
        logs = [
            _unary(g, "log", g.scalar("add_scalar", _clip(g, x, _EPSILON), 1.0)) for x in (target, g.plain(prediction))
        ]
        d = _difference(g, logs[0], logs[1])
        return _mean_last(g, g.broadcast("multiply", d, d))


class Huber(Loss):
    """d^2 / 2 where |d| <= delta, else delta |d| - delta^2 / 2."""

    def __init__(self, delta: float = 1.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.delta = float(delta)

    def _values(self, g: Lowering, target: Tensor, prediction: Value) -> Tensor:
        size = _unary(g, "abs", _difference(g, target, g.plain(prediction)))
        near = _clip(g, size, None, self.delta)
        # With near = min(|d|, delta): near |d| - near^2 / 2.
        half = g.scalar("multiply_scalar", near, 0.5)
        return _mean_last(g, g.broadcast("multiply", near, g.broadcast("subtract", size, half)))


class LogCosh(Loss):
    """log(cosh(prediction - target))."""

    def _values(self, g: Lowering, target: Tensor, prediction: Value) -> Tensor:
        d = _difference(g, target, g.plain(prediction))
        soft = _unary(g, "softplus", g.scalar("multiply_scalar", d, -2.0))
        return _mean_last(g, g.scalar("add_scalar", g.broadcast("add", d, soft), -0.6931471805599453))


class Hinge(Loss):
    """max(1 - target * prediction, 0), targets -1 and 1 (0 counts as -1 where all are 0 or 1)."""

    signed_labels = True

    def _margin(self, g: Lowering, target: Tensor, prediction: Value) -> Tensor:
        product = g.broadcast("multiply", target, g.plain(prediction))
        return _unary(g, "relu", g.scalar("add_scalar", _unary(g, "neg", product), 1.0))

    def _values(self, g: Lowering, target: Tensor, prediction: Value) -> Tensor:
        return _mean_last(g, self._margin(g, target, prediction))


class SquaredHinge(Hinge):
    """max(1 - target * prediction, 0)^2."""

    def _values(self, g: Lowering, target: Tensor, prediction: Value) -> Tensor:
        margin = self._margin(g, target, prediction)
        return _mean_last(g, g.broadcast("multiply", margin, margin))


class CategoricalHinge(Loss):
    """max(largest wrong prediction - right prediction + 1, 0)."""

    def _values(self, g: Lowering, target: Tensor, prediction: Value) -> Tensor:
        p = g.plain(prediction)
        right = _sum_last(g, g.broadcast("multiply", target, p))
        other = g.scalar("add_scalar", _unary(g, "neg", target), 1.0)
        wrong = g.broadcast("multiply", other, p)
        wrong = g.reduce("reduce_max", wrong, [len(wrong.shape or ()) - 1])
        return _unary(g, "relu", g.scalar("add_scalar", g.broadcast("subtract", wrong, right), 1.0))


class KLDivergence(Loss):
    """sum of target * log(target / prediction)."""

    def _values(self, g: Lowering, target: Tensor, prediction: Value) -> Tensor:
        t, p = (_clip(g, x, _EPSILON, 1.0) for x in (target, g.plain(prediction)))
        ratio = _unary(g, "log", g.broadcast("divide", t, p))
        return _sum_last(g, g.broadcast("multiply", t, ratio))


class Poisson(Loss):
    """mean of prediction - target * log(prediction)."""

    def _values(self, g: Lowering, target: Tensor, prediction: Value) -> Tensor:
        p = g.plain(prediction)
        log = _unary(g, "log", g.scalar("add_scalar", p, _EPSILON))
        return _mean_last(g, g.broadcast("subtract", p, g.broadcast("multiply", target, log)))


class CosineSimilarity(Loss):
    """Minus the cosine of the angle between target and prediction."""

    _sign = -1.0

    def __init__(self, axis: int = -1, **kwargs: Any):
        super().__init__(**kwargs)
        if axis != -1:
            raise InvalidArgument(f"{self.name}: axis={axis}; accepted: -1")

    def _values(self, g: Lowering, target: Tensor, prediction: Value) -> Tensor:
        from espalier.keras.layers.merging import _normalized

        last = len(target.shape or ()) - 1
        t, p = _normalized(g, target, last), _normalized(g, g.plain(prediction), last)
        return g.scalar("multiply_scalar", _sum_last(g, g.broadcast("multiply", t, p)), self._sign)


def _made_by(g: Lowering, value: Value) -> str:
    """The operator that computes a value, behind those that only give it another shape; empty: an input."""
    producers = {index: node for node in g.graph.proto.nodes for index in node.outputs}
    node = producers.get(value.tensor.index)
    while node is not None and node.op in _VIEWS:
        node = producers.get(node.inputs[0])
    return "" if node is None else str(node.op)


class _Logits(Loss):
    # A loss that takes logits, or probabilities as Keras' default says. Where they are the result of a softmax or
    # sigmoid, the loss is computed on what that was applied to, which is exact.
    def __init__(self, from_logits: bool, label_smoothing: float, kwargs: dict[str, Any]):
        if kwargs.pop("axis", -1) != -1:
            raise InvalidArgument(f"{type(self).__name__}: axis: accepted: -1, the last dimension")
        super().__init__(**kwargs)
        if not 0 <= label_smoothing < 1:
            raise InvalidArgument(f"{self.name}: label_smoothing={label_smoothing}; accepted: from 0 to below 1")
        self.from_logits, self.label_smoothing = from_logits, float(label_smoothing)

    def _logits(self, prediction: Value, function: str) -> Value | None:
        if self.from_logits:
            return prediction
        if prediction.logits is not None and prediction.logits[0] == function:
            return prediction.logits[1]
        return None

    def _point_out(self, g: Lowering, prediction: Value, function: str) -> None:
        """Warns of an output that is hardly what the loss takes it for.

        An operator that is told from_logits needs this for False only; of True the coordinator's notes say the same.
        """
        text = ""
        if self.from_logits:
            if prediction.logits is not None and prediction.logits[0] == function:
                text = (
                    f"{self.name}: the model ends in a {function}, and from_logits is True: another {function} is "
                    f"applied to its output. Give {type(self).__name__}(), or let the model end without a {function}"
                )
        elif _made_by(g, prediction) in (_NO_PROBABILITIES if function == "sigmoid" else _NO_DISTRIBUTIONS):
            text = (
                f"{self.name}: the model does not end in a {function}, and from_logits is False: its output is taken "
                f"as probabilities, as Keras does. If it holds logits, give {type(self).__name__}(from_logits=True)"
            )
        if text and text not in g.pointed_out:
            g.pointed_out.add(text)
            warn(text)


class CategoricalCrossentropy(_Logits):
    """-sum of target * log(probability) over the classes, for targets like the output."""

    _op = "categorical_crossentropy"

    def __init__(self, from_logits: bool = False, label_smoothing: float = 0.0, axis: int = -1, **kwargs: Any):
        super().__init__(from_logits, label_smoothing, kwargs | {"axis": axis})

    def _mean(self, g: Lowering, target: Tensor, prediction: Value, weights: Tensor | None) -> Tensor:
        logits = self._logits(prediction, "softmax")
        if logits is None:
            values = self._values(g, target, prediction)
            return self._call(g, "identity_loss", [values], weights, {})
        attributes = {"from_logits": True, "label_smoothing": self.label_smoothing}
        return self._call(g, self._op, [g.plain(logits), target], weights, attributes)

    def _values(self, g: Lowering, target: Tensor, prediction: Value) -> Tensor:
        if self.label_smoothing > 0:
            classes = known((target.shape or ())[-1:], self.name)[0]
            target = g.scalar("multiply_scalar", target, 1 - self.label_smoothing)
            target = g.scalar("add_scalar", target, self.label_smoothing / classes)
        self._point_out(g, prediction, "softmax")
        logits = self._logits(prediction, "softmax")
        if logits is not None:
            x = g.plain(logits)
            logs = _unary(g, "log_softmax", x, axis=len(x.shape or ()) - 1)
        else:
            logs = _unary(g, "log", _probabilities(g, prediction))
        return _unary(g, "neg", _sum_last(g, g.broadcast("multiply", target, logs)))


class SparseCategoricalCrossentropy(_Logits):
    """-log(probability of the label), for integer labels."""

    integer_labels = True
    _op = "sparse_categorical_crossentropy"

    def __init__(self, from_logits: bool = False, ignore_class: int | None = None, axis: int = -1, **kwargs: Any):
        super().__init__(from_logits, 0.0, kwargs | {"axis": axis})
        if ignore_class is not None:
            raise InvalidArgument(
                f"{self.name}: ignore_class={ignore_class}: Keras' mean counts ignored labels differently; set them to "
                "-100 in the data, which is ignored here, or weigh examples by sample_weight"
            )

    def _mean(self, g: Lowering, target: Tensor, prediction: Value, weights: Tensor | None) -> Tensor:
        logits = self._logits(prediction, "softmax")
        operands: list[Tensor | None]
        if logits is None:
            self._point_out(g, prediction, "softmax")
            # Logarithms of probabilities are logits of the same distribution.
            operands = [_unary(g, "log", _probabilities(g, prediction)), target]
        else:
            operands = [g.plain(logits), target]
        if weights is not None:
            operands.append(None)
        return self._call(g, self._op, operands, weights, {"from_logits": True})

    def _values(self, g: Lowering, target: Tensor, prediction: Value) -> Tensor:
        x = g.plain(prediction)
        classes = known((x.shape or ())[-1:], self.name)[0]
        hot = g.op("one_hot", [target], {"depth": classes}, shape=x.shape or ())
        self._point_out(g, prediction, "softmax")
        logits = self._logits(prediction, "softmax")
        if logits is None:
            logs = _unary(g, "log", _probabilities(g, prediction))
        else:
            z = g.plain(logits)
            logs = _unary(g, "log_softmax", z, axis=len(z.shape or ()) - 1)
        return _unary(g, "neg", _sum_last(g, g.broadcast("multiply", hot, logs)))


class BinaryCrossentropy(_Logits):
    """-(target log(p) + (1 - target) log(1 - p)), the mean over the last dimension."""

    _op = "binary_crossentropy"

    def __init__(self, from_logits: bool = False, label_smoothing: float = 0.0, axis: int = -1, **kwargs: Any):
        super().__init__(from_logits, label_smoothing, kwargs | {"axis": axis})

    def _smooth(self, g: Lowering, target: Tensor) -> Tensor:
        if self.label_smoothing == 0:
            return target
        target = g.scalar("multiply_scalar", target, 1 - self.label_smoothing)
        return g.scalar("add_scalar", target, self.label_smoothing / 2)

    def _mean(self, g: Lowering, target: Tensor, prediction: Value, weights: Tensor | None) -> Tensor:
        target = self._smooth(g, target)
        logits = self._logits(prediction, "sigmoid")
        if logits is not None:
            return self._call(g, self._op, [g.plain(logits), target], weights, {"from_logits": True})
        self._point_out(g, prediction, "sigmoid")
        p = _clip(g, g.plain(prediction), _EPSILON, 1 - _EPSILON)
        return self._call(g, self._op, [p, target], weights, {"from_logits": False})

    def _values(self, g: Lowering, target: Tensor, prediction: Value) -> Tensor:
        target = self._smooth(g, target)
        self._point_out(g, prediction, "sigmoid")
        logits = self._logits(prediction, "sigmoid")
        if logits is not None:
            x = g.plain(logits)
            return _mean_last(g, g.broadcast("subtract", _unary(g, "softplus", x), g.broadcast("multiply", x, target)))
        p = _clip(g, g.plain(prediction), _EPSILON, 1 - _EPSILON)
        yes = g.broadcast("multiply", target, _unary(g, "log", p))
        rest = g.scalar("add_scalar", _unary(g, "neg", target), 1.0)
        no = g.broadcast("multiply", rest, _unary(g, "log", g.scalar("add_scalar", _unary(g, "neg", p), 1.0)))
        return _unary(g, "neg", _mean_last(g, g.broadcast("add", yes, no)))


class Identity(Loss):
    """The mean of the output itself: a model that computes its loss. The targets are not read (FlexFlow's identity)."""

    reads_target = False
    _op = "identity_loss"

    def _mean(self, g: Lowering, target: Tensor, prediction: Value, weights: Tensor | None) -> Tensor:
        return self._call(g, self._op, [g.plain(prediction)], weights, {})


_ALIASES: dict[str, Callable[..., Loss]] = {
    "mse": MeanSquaredError,
    "mae": MeanAbsoluteError,
    "mape": MeanAbsolutePercentageError,
    "msle": MeanSquaredLogarithmicError,
    "kld": KLDivergence,
    "kl_divergence": KLDivergence,
    "kullback_leibler_divergence": KLDivergence,
    "bce": BinaryCrossentropy,
    "log_cosh": LogCosh,
    "logcosh": LogCosh,
    "identity": Identity,
}
CLASSES: dict[str, Callable[..., Loss]] = {}
for _class in (
    MeanSquaredError,
    MeanAbsoluteError,
    MeanAbsolutePercentageError,
    MeanSquaredLogarithmicError,
    Huber,
    LogCosh,
    Hinge,
    SquaredHinge,
    CategoricalHinge,
    KLDivergence,
    Poisson,
    CosineSimilarity,
    CategoricalCrossentropy,
    SparseCategoricalCrossentropy,
    BinaryCrossentropy,
):
    CLASSES[_class.__name__] = _class
    CLASSES[backend.snake_case(_class.__name__)] = _class
CLASSES |= _ALIASES | {name.upper(): made for name, made in _ALIASES.items() if len(name) <= 4}


def get(identifier: Any) -> Loss:
    """The loss of a name or alias ("mse"), a configuration, or one of Keras' functions of such a name."""
    identifier = of_keras(identifier)
    if callable(identifier) and not isinstance(identifier, (type, Loss)):
        name = str(getattr(identifier, "__name__", ""))
        if name not in CLASSES:
            raise InvalidArgument(
                f"loss {identifier!r}: a Python function cannot run in a job. Let the model compute its loss, and give "
                "loss='identity'"
            )
        identifier = name
    found: Loss = find("loss", identifier, CLASSES, Loss)
    return found
