"""Losses: PyTorch's, by the operators of losses where these mean the same, otherwise of elementwise ones."""

from __future__ import annotations

from typing import Any

import torch

from espalier.torch.convert_elementwise import where
from espalier.torch.convert_reduce import reduce
from espalier.torch.emitter import Emitter, Output
from espalier.torch.registry import handles
from espalier.torch.values import CannotConvert, Value, product, same, same_shape

_REDUCTIONS = {0: "none", 1: "mean", 2: "sum"}


def _reduced(emit: Emitter, values: Value, reduction: int) -> Value:
    if reduction == 0:
        return values
    return reduce(emit, "reduce_mean" if reduction == 1 else "reduce_sum", values)


def _like(emit: Emitter, x: Value) -> None:
    """The elementwise operators that follow have the type of `x`."""
    emit.outputs = [Output(x.shape, x.dtype)]


def _classes_last(emit: Emitter, x: Value) -> Value:
    return x if x.rank == 2 else emit.transpose(x, [0, *range(2, x.rank), 1])


def _unflattened(emit: Emitter, logits: Value, labels: Value) -> tuple[Value, Value]:
    """[B, S, C] and [B, S], where the module flattened them: so the loss can be split along the batch."""
    before, labels_before = emit.before_reshape(logits), emit.before_reshape(labels)
    same_rows = before.rank > 2 and same_shape(before.shape[:-1], labels_before.shape)
    if same_rows and same(before.shape[-1], logits.shape[-1]):
        return before, labels_before
    return logits, labels


@handles("cross_entropy_loss.default")
def _cross_entropy(
    emit: Emitter,
    x: Value,
    target: Value,
    weight: Value | None = None,
    reduction: int = 1,
    ignore_index: Any = -100,
    label_smoothing: Any = 0.0,
) -> Value:
    output = emit.output
    single = x.rank == 1
    if single:
        x = emit.reshape(x, [1, *x.shape])
        target = emit.reshape(target, [1, *target.shape])
    logits, smoothing = _classes_last(emit, emit.whole(x)), float(emit.scalar(label_smoothing))
    if target.dtype.is_floating_point:
        probabilities = _classes_last(emit, emit.whole(target))
        return emit.reshape(_soft_labels(emit, logits, probabilities, weight, reduction, smoothing), output.shape)
    labels = emit.whole(target)
    if reduction != 0:
        logits, labels = _unflattened(emit, logits, labels)
    attributes: dict[str, Any] = {
        "ignore_index": int(ignore_index),
        "reduction": _REDUCTIONS[reduction],
        "mean_over": "counted",
        "label_smoothing": smoothing,
    }
    if emit.is_probability(logits):
        # PyTorch applies its softmax all the same; without a word the coordinator would take the first one's input.
        attributes["from_logits"] = True
    shape = labels.shape if reduction == 0 else ()
    inputs = [logits, labels] if weight is None else [logits, labels, emit.whole(weight)]
    made = emit.op("sparse_categorical_crossentropy", inputs, attributes, shape=shape, dtype=output.dtype)
    return emit.reshape(made, output.shape)


def _soft_labels(
    emit: Emitter, logits: Value, target: Value, weight: Value | None, reduction: int, smoothing: float
) -> Value:
    if weight is None and reduction == 1 and not emit.depends(target):
        attributes = {"from_logits": True, "label_smoothing": smoothing}
        return emit.op("categorical_crossentropy", [logits, target], attributes, shape=(), dtype=logits.dtype)
    _like(emit, logits)
    classes = emit.number(logits.shape[-1])
    if smoothing:
        target = emit.arithmetic("add", emit.arithmetic("multiply", target, 1 - smoothing), smoothing / classes)
    values = emit.op("log_softmax", [logits], {"axis": -1}, shape=logits.shape, dtype=logits.dtype)
    values = emit.elementwise("multiply", [values, target])
    if weight is not None:
        values = emit.elementwise("multiply", [values, weight])
    rows = emit.elementwise("neg", [reduce(emit, "reduce_sum", values, [-1])])
    return _reduced(emit, rows, reduction)


@handles("nll_loss_nd.default", "nll_loss.default", "nll_loss2d.default")
def _nll(
    emit: Emitter,
    x: Value,
    target: Value,
    weight: Value | None = None,
    reduction: int = 1,
    ignore_index: Any = -100,
) -> Value:
    if x.rank < 2:
        raise CannotConvert("only of a batch: log-probabilities [N, C, ...]")
    attributes: dict[str, Any] = {
        "ignore_index": int(ignore_index),
        "reduction": _REDUCTIONS[reduction],
        "mean_over": "counted",
    }
    inputs = [emit.whole(x), emit.whole(target)] + ([] if weight is None else [emit.whole(weight)])
    return emit.op("negative_log_likelihood", inputs, attributes)


def _difference(operator: str, each: str) -> Any:
    def handler(emit: Emitter, x: Value, target: Value, reduction: int = 1) -> Value:
        plain = same_shape(x.shape, target.shape) and not emit.depends(target) and x.dtype == target.dtype
        if plain and reduction != 0 and x.rank > 0:
            return emit.op(operator, [emit.whole(x), emit.whole(target)], {"reduction": _REDUCTIONS[reduction]})
        rest = emit.elementwise("subtract", [x, target], dtype=emit.output.dtype)
        _like(emit, rest)
        values = emit.unary("abs", rest) if each == "abs" else emit.elementwise("multiply", [rest, rest])
        return _reduced(emit, values, reduction)

    return handler


handles("mse_loss.default")(_difference("mean_squared_error", "square"))
handles("l1_loss.default")(_difference("mean_absolute_error", "abs"))


@handles("binary_cross_entropy_with_logits.default")
def _bce_logits(
    emit: Emitter,
    x: Value,
    target: Value,
    weight: Value | None = None,
    pos_weight: Value | None = None,
    reduction: int = 1,
) -> Value:
    target = emit.cast(target, x.dtype)
    if weight is None and pos_weight is None and reduction == 1 and not emit.depends(target) and x.rank > 0:
        return emit.op("binary_crossentropy", [emit.whole(x), emit.whole(target)], {"from_logits": True})
    _like(emit, x)
    # (1 - t) x + (1 + (pos_weight - 1) t) softplus(-x)
    negative = emit.unary("softplus", emit.unary("neg", x))
    if pos_weight is not None:
        extra = emit.elementwise("multiply", [emit.arithmetic("subtract", pos_weight, 1.0), target])
        negative = emit.elementwise("multiply", [emit.arithmetic("add", extra, 1.0), negative])
    rest = emit.elementwise("multiply", [emit.arithmetic("subtract", 1.0, target), x])
    values = emit.elementwise("add", [rest, negative])
    if weight is not None:
        values = emit.elementwise("multiply", [values, weight])
    return _reduced(emit, values, reduction)


@handles("binary_cross_entropy.default")
def _bce(emit: Emitter, x: Value, target: Value, weight: Value | None = None, reduction: int = 1) -> Value:
    if weight is None and reduction == 1 and not emit.depends(target) and x.rank > 0:
        return emit.op("binary_crossentropy", [emit.whole(x), emit.whole(target)], {"from_logits": False})
    _like(emit, x)

    def logarithm(value: Value) -> Value:
        return emit.unary("clip", emit.unary("log", value), {"min": -100.0})

    positive = emit.elementwise("multiply", [target, logarithm(x)])
    others = emit.arithmetic("subtract", 1.0, target)
    negative = emit.elementwise("multiply", [others, logarithm(emit.arithmetic("subtract", 1.0, x))])
    values = emit.unary("neg", emit.elementwise("add", [positive, negative]))
    if weight is not None:
        values = emit.elementwise("multiply", [values, weight])
    return _reduced(emit, values, reduction)


@handles("xlogy.Tensor", elementwise=True)
def _xlogy(emit: Emitter, x: Value, y: Value) -> Value:
    return _x_log_x(emit, x, y)


def _x_log_x(emit: Emitter, x: Value, y: Value) -> Value:
    """x log y, 0 where x is 0."""
    zero = emit.elementwise("equal", [x, 0.0], dtype=torch.bool, inputs_dtype=x.dtype)
    logarithm = emit.unary("log", where(emit, zero, 1.0, y))
    return emit.elementwise("multiply", [x, logarithm])


@handles("kl_div.default")
def _kl_div(emit: Emitter, x: Value, target: Value, reduction: int = 1, log_target: bool = False) -> Value:
    _like(emit, x)
    if log_target:
        rest = emit.elementwise("subtract", [target, x])
        values = emit.elementwise("multiply", [emit.unary("exp", target), rest])
    else:
        rest = emit.elementwise("multiply", [target, x])
        values = emit.elementwise("subtract", [_x_log_x(emit, target, target), rest])
    return _reduced(emit, values, reduction)


def _bent(huber: bool) -> Any:
    def handler(emit: Emitter, x: Value, target: Value, reduction: int = 1, beta: Any = 1.0) -> Value:
        _like(emit, x)
        bend = float(emit.scalar(beta))
        rest = emit.elementwise("subtract", [x, target])
        size = emit.unary("abs", rest)
        if bend == 0.0:
            return _reduced(emit, size, reduction)
        square = emit.arithmetic("multiply", emit.elementwise("multiply", [rest, rest]), 0.5 if huber else 0.5 / bend)
        line = emit.arithmetic("subtract", size, 0.5 * bend)
        if huber:
            line = emit.arithmetic("multiply", line, bend)
        near = emit.elementwise("less", [size, bend], dtype=torch.bool, inputs_dtype=x.dtype)
        return _reduced(emit, where(emit, near, square, line), reduction)

    return handler


handles("smooth_l1_loss.default")(_bent(False))
handles("huber_loss.default")(_bent(True))


@handles("soft_margin_loss.default")
def _soft_margin(emit: Emitter, x: Value, target: Value, reduction: int = 1) -> Value:
    _like(emit, x)
    return _reduced(
        emit, emit.unary("softplus", emit.unary("neg", emit.elementwise("multiply", [x, target]))), reduction
    )


@handles("margin_ranking_loss.default")
def _margin_ranking(emit: Emitter, a: Value, b: Value, target: Value, margin: Any = 0.0, reduction: int = 1) -> Value:
    _like(emit, a)
    rest = emit.elementwise("multiply", [emit.unary("neg", target), emit.elementwise("subtract", [a, b])])
    return _reduced(emit, emit.unary("clip", emit.arithmetic("add", rest, float(margin)), {"min": 0.0}), reduction)


@handles("hinge_embedding_loss.default")
def _hinge_embedding(emit: Emitter, x: Value, target: Value, margin: Any = 1.0, reduction: int = 1) -> Value:
    _like(emit, x)
    hinge = emit.unary("clip", emit.arithmetic("subtract", float(margin), x), {"min": 0.0})
    positive = emit.elementwise("equal", [target, 1], dtype=torch.bool, inputs_dtype=target.dtype)
    return _reduced(emit, where(emit, positive, x, hinge), reduction)


@handles("poisson_nll_loss.default")
def _poisson(
    emit: Emitter, x: Value, target: Value, log_input: bool, full: bool, eps: Any, reduction: int = 1
) -> Value:
    if full:
        raise CannotConvert("only with full=False")
    _like(emit, x)
    if log_input:
        values = emit.elementwise("subtract", [emit.unary("exp", x), emit.elementwise("multiply", [target, x])])
    else:
        logarithm = emit.unary("log", emit.arithmetic("add", x, float(eps)))
        values = emit.elementwise("subtract", [x, emit.elementwise("multiply", [target, logarithm])])
    return _reduced(emit, values, reduction)


def accuracy(emit: Emitter, logits: Value, labels: Value) -> Value:
    """Metric: fraction of right classes, the classes in dimension 1 as in PyTorch."""
    if not same(product(logits.shape), 0) and logits.rank > 2 and same_shape(logits.shape[:-1], labels.shape):
        return emit.op("accuracy", [emit.whole(logits), labels], shape=(), dtype=torch.float32)
    return emit.op("accuracy", [_classes_last(emit, emit.whole(logits)), labels], shape=(), dtype=torch.float32)
