"""The operators as functions: each applies one to tensors of a graph and returns its output.

    hidden = ops.linear(x, weight, bias, activation="relu")

Made by generate_ops.py from docs/reference/operators.md; do not edit. Numbers and arrays among the inputs become
constants of the graph. `name` is that of the node. Shapes are checked by the coordinator, which names the node and the
user's line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from espalier.errors import InvalidArgument
from espalier.graph import AttributeValue, Graph, Tensor

Operand = Tensor | float | npt.NDArray[np.generic]

__all__ = [
    "abs",
    "accuracy",
    "acos",
    "acosh",
    "adaptive_pool2d",
    "add",
    "add_n",
    "add_scalar",
    "aggregate",
    "aggregate_spec",
    "arg_max",
    "arg_min",
    "arg_top_k",
    "argsort",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "attention",
    "batch_matmul",
    "batch_norm",
    "batch_norm_stats",
    "binary_accuracy",
    "binary_crossentropy",
    "cache",
    "cast",
    "categorical_accuracy",
    "categorical_crossentropy",
    "ceil",
    "celu",
    "clip",
    "concat",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "cos",
    "cosh",
    "cumsum",
    "depth_to_space",
    "divide",
    "divide_scalar",
    "dropout",
    "elu",
    "embedding",
    "embedding_bag",
    "equal",
    "erf",
    "exp",
    "expand",
    "expert_linear",
    "fill",
    "flatten",
    "floor",
    "gather",
    "gather_elements",
    "gather_nd",
    "gelu",
    "greater",
    "greater_equal",
    "grid_sample",
    "group_by",
    "group_norm",
    "gru",
    "hard_sigmoid",
    "hard_swish",
    "identity",
    "identity_loss",
    "is_inf",
    "is_nan",
    "layer_norm",
    "leaky_relu",
    "less",
    "less_equal",
    "linear",
    "load_balance_loss",
    "log",
    "log_softmax",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "lora_linear",
    "lrn",
    "lstm",
    "matmul",
    "max_pool_indices",
    "max_unpool",
    "maximum",
    "mean_absolute_error",
    "mean_squared_error",
    "minimum",
    "mish",
    "modulo",
    "multi_head_attention",
    "multiply",
    "multiply_scalar",
    "neg",
    "negative_log_likelihood",
    "not_equal",
    "one_hot",
    "pad",
    "perplexity",
    "pool2d",
    "power",
    "power_scalar",
    "prelu",
    "quantized_expert_linear",
    "quantized_linear",
    "random_like",
    "reciprocal",
    "reduce_l1",
    "reduce_l2",
    "reduce_log_sum",
    "reduce_log_sum_exp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_sum",
    "reduce_sum_square",
    "regularization_loss",
    "regularize_gradient",
    "relu",
    "reshape",
    "residual_layer_norm",
    "residual_rms_norm",
    "resize",
    "reverse",
    "reverse_sequence",
    "rms_norm",
    "rnn",
    "root_mean_squared_error",
    "rotary",
    "round",
    "rsqrt",
    "scatter_elements",
    "scatter_nd",
    "selu",
    "shrink",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinh",
    "slice",
    "softmax",
    "softplus",
    "softsign",
    "sort",
    "space_to_depth",
    "sparse_categorical_crossentropy",
    "split",
    "sqrt",
    "squeeze",
    "stop_gradient",
    "subtract",
    "subtract_scalar",
    "sum_squares",
    "swiglu",
    "tan",
    "tanh",
    "thresholded_relu",
    "tile",
    "top_k",
    "top_k_accuracy",
    "transpose",
    "triangle",
    "unsqueeze",
    "where",
]


def _tensors(op: str, inputs: Sequence[Operand | None]) -> tuple[Graph, list[Tensor | None]]:
    first = next((item for item in inputs if isinstance(item, Tensor)), None)
    if first is None:
        raise InvalidArgument(f"{op}: at least one input must be a tensor of a graph")
    graph, dtype = first.graph, first.dtype or "float32"
    return graph, [
        item if item is None or isinstance(item, Tensor) else graph.constant(item, dtype=dtype) for item in inputs
    ]


def _given(attributes: Mapping[str, AttributeValue | None]) -> dict[str, AttributeValue]:
    return {key: value for key, value in attributes.items() if value is not None}


def _one(
    op: str, inputs: Sequence[Operand | None], attributes: Mapping[str, AttributeValue | None], name: str | None
) -> Tensor:
    graph, tensors = _tensors(op, inputs)
    return graph.op(op, tensors, _given(attributes), name=name)


def _many(
    op: str,
    inputs: Sequence[Operand | None],
    attributes: Mapping[str, AttributeValue | None],
    name: str | None,
    outputs: int,
) -> tuple[Tensor, ...]:
    graph, tensors = _tensors(op, inputs)
    return graph.op(op, tensors, _given(attributes), outputs=outputs, name=name)


def abs(x: Operand, *, name: str | None = None) -> Tensor:
    """y = |x|; gradient zero at zero."""
    return _one("abs", [x], {}, name)


def accuracy(
    logits: Operand,
    labels: Operand,
    example_weights: Operand | None = None,
    *,
    ignore_index: int = -100,
    name: str | None = None,
) -> Tensor:
    """Fraction of labels whose logit is the largest, the first one where several are; NaN is wrong; the values of
    example n are multiplied by example_weights[n].

    ignore_index: a label that adds nothing to the sum
    """
    return _one("accuracy", [logits, labels, example_weights], {"ignore_index": ignore_index}, name)


def acos(x: Operand, *, name: str | None = None) -> Tensor:
    """y = acos(x)."""
    return _one("acos", [x], {}, name)


def acosh(x: Operand, *, name: str | None = None) -> Tensor:
    """y = acosh(x)."""
    return _one("acosh", [x], {}, name)


def adaptive_pool2d(x: Operand, *, kind: str, size: Sequence[int], name: str | None = None) -> Tensor:
    """x[N, C, H, W] -> [N, C, size]: maximum or average over rows floor(i H / H') to ceil((i + 1) H / H') - 1, columns
    alike.

    kind: 'max' or 'average'
    size: height, width
    """
    return _one("adaptive_pool2d", [x], {"kind": kind, "size": size}, name)


def add(a: Operand, b: Operand, *, name: str | None = None) -> Tensor:
    """y = a + b, with numpy's broadcasting; integers wrap."""
    return _one("add", [a, b], {}, name)


def add_n(*x: Operand, name: str | None = None) -> Tensor:
    """y = x0 + x1 + ..., in this order."""
    return _one("add_n", [*x], {}, name)


def add_scalar(x: Operand, *, value: float, name: str | None = None) -> Tensor:
    """y = x + value.

    value: the number
    """
    return _one("add_scalar", [x], {"value": value}, name)


def aggregate(
    gate_values: Operand,
    assign: Operand,
    gate_full: Operand,
    *expert: Operand,
    n: int,
    alpha: float = 1,
    lambda_balance: float = 0,
    name: str | None = None,
) -> Tensor:
    """gate_values[N, k], assign[N, k], gate_full[N, n], experts' outputs n of [capacity, E] -> [N, E]: the sum over a
    sample's choices of gate value * row; dropped choices count as 0 (see group_by); the gradient of gate_full is that
    of lambda_balance * load_balance_loss(gate_full, assign).

    n: experts
    alpha: capacity of an expert, relative to an even share of the choices
    lambda_balance: weight of the load-balance loss
    """
    return _one(
        "aggregate",
        [gate_values, assign, gate_full, *expert],
        {"n": n, "alpha": alpha, "lambda_balance": lambda_balance},
        name,
    )


def aggregate_spec(
    gate_values: Operand,
    assign: Operand,
    gate_full: Operand,
    *expert: Operand,
    n: int,
    alpha: float = 1,
    lambda_balance: float = 0,
    name: str | None = None,
) -> Tensor:
    """gate_values[N, k], assign[N, k], gate_full[N, n], experts' outputs n of [capacity, E] -> [N * k, E]: the row of
    each choice, for a loss of each expert's own answer; dropped choices are 0 (see group_by). On the way back a row's
    gradient d reaches its expert times the gate value p; gate_full of a chosen expert gets |d|^2 / (sum of |d|^2 over
    the sample's choices) - (1 - p), all get the gradient of lambda_balance * load_balance_loss(gate_full, assign), less
    their mean over the experts.

    n: experts
    alpha: capacity of an expert, relative to an even share of the choices
    lambda_balance: weight of the load-balance loss
    """
    return _one(
        "aggregate_spec",
        [gate_values, assign, gate_full, *expert],
        {"n": n, "alpha": alpha, "lambda_balance": lambda_balance},
        name,
    )


def arg_max(
    x: Operand, *, axis: int = 0, keepdims: bool = True, select_last: bool = False, name: str | None = None
) -> Tensor:
    """The place of the largest element along axis; NaN is largest.

    axis: along which to look, from the end if negative
    keepdims: keep the dimension, with size 1
    select_last: of equal elements the last, otherwise the first
    """
    return _one("arg_max", [x], {"axis": axis, "keepdims": keepdims, "select_last": select_last}, name)


def arg_min(
    x: Operand, *, axis: int = 0, keepdims: bool = True, select_last: bool = False, name: str | None = None
) -> Tensor:
    """The place of the smallest element along axis; NaN is smallest.

    axis: along which to look, from the end if negative
    keepdims: keep the dimension, with size 1
    select_last: of equal elements the last, otherwise the first
    """
    return _one("arg_min", [x], {"axis": axis, "keepdims": keepdims, "select_last": select_last}, name)


def arg_top_k(
    x: Operand, *, k: int, axis: int = -1, largest: bool = True, sorted: bool = True, name: str | None = None
) -> Tensor:
    """The places that top_k gives, as i32.

    k: elements to pick from each line
    axis: along which to look, from the end if negative
    largest: the largest elements, otherwise the smallest
    sorted: whether the order matters; it is always the sorted one
    """
    return _one("arg_top_k", [x], {"k": k, "axis": axis, "largest": largest, "sorted": sorted}, name)


def argsort(x: Operand, *, axis: int = -1, descending: bool = False, name: str | None = None) -> Tensor:
    """The places that sort gives.

    axis: along which to sort, from the end if negative
    descending: the largest first, otherwise the smallest
    """
    return _one("argsort", [x], {"axis": axis, "descending": descending}, name)


def asin(x: Operand, *, name: str | None = None) -> Tensor:
    """y = asin(x)."""
    return _one("asin", [x], {}, name)


def asinh(x: Operand, *, name: str | None = None) -> Tensor:
    """y = asinh(x)."""
    return _one("asinh", [x], {}, name)


def atan(x: Operand, *, name: str | None = None) -> Tensor:
    """y = atan(x)."""
    return _one("atan", [x], {}, name)


def atanh(x: Operand, *, name: str | None = None) -> Tensor:
    """y = atanh(x)."""
    return _one("atanh", [x], {}, name)


def attention(
    q: Operand,
    k: Operand,
    v: Operand,
    mask: Operand | None = None,
    *,
    head_dim: int,
    causal: bool = False,
    scale: float = 0,
    name: str | None = None,
) -> Tensor:
    """q[B, S, Hq*D], k[B, T, Hk*D], v[B, T, Hk*D], mask? -> softmax(scale * q k^T + mask) v, like q; head h of q reads
    head h * Hk / Hq of k and v. causal: row s sees columns t <= s. mask: bool (true = visible) or f32 (added), [S, T],
    [B, S, T] or [B, Hq, S, T]. A row that sees nothing is zero.

    head_dim: D
    causal: row s sees columns t <= s
    scale: 0: 1/sqrt(D)
    """
    return _one("attention", [q, k, v, mask], {"head_dim": head_dim, "causal": causal, "scale": scale}, name)


def batch_matmul(
    a: Operand,
    b: Operand,
    length: Operand | None = None,
    *,
    a_seq_length_dim: int = -1,
    b_seq_length_dim: int = -1,
    name: str | None = None,
) -> Tensor:
    """a[B, m, k], b[B, k, n], length (i32 scalar)? -> a b [B, m, n], where elements of a and b at length or beyond
    along the named dimensions count as 0.

    a_seq_length_dim: of a; -1: none
    b_seq_length_dim: of b; -1: none
    """
    return _one(
        "batch_matmul",
        [a, b, length],
        {"a_seq_length_dim": a_seq_length_dim, "b_seq_length_dim": b_seq_length_dim},
        name,
    )


def batch_norm(
    x: Operand,
    scale: Operand,
    bias: Operand,
    running_mean: Operand,
    running_var: Operand,
    stats: Operand | None = None,
    residual: Operand | None = None,
    *,
    epsilon: float = 1e-05,
    momentum: float = 0.1,
    activation: str = "none",
    biased_running_var: bool = False,
    name: str | None = None,
) -> Tensor:
    """x[N, C, ...], scale[C], bias[C], running_mean[C], running_var[C], stats[2, C]?, residual[N, C, ...]? ->
    activation of (x - mean) / sqrt(var + epsilon) * scale + bias + residual; training takes mean and var from stats and
    moves the running ones (inputs 3 and 4) in place, otherwise the running ones are used.

    epsilon: added to the variance
    momentum: running = (1 - m) * running + m * batch
    activation: applied to the result: none, relu, relu6 (relu, at most 6)
    biased_running_var: move running_var by the mean of squares, as Keras and Flax do; otherwise by the unbiased
        variance, which is count / (count - 1) of it
    """
    return _one(
        "batch_norm",
        [x, scale, bias, running_mean, running_var, stats, residual],
        {"epsilon": epsilon, "momentum": momentum, "activation": activation, "biased_running_var": biased_running_var},
        name,
    )


def batch_norm_stats(x: Operand, *, name: str | None = None) -> Tensor:
    """x[N, C, ...] -> [2, C]: sum(x) / count and sum(x^2) / count over all but C."""
    return _one("batch_norm_stats", [x], {}, name)


def binary_accuracy(
    prediction: Operand,
    target: Operand,
    example_weights: Operand | None = None,
    *,
    threshold: float = 0.5,
    name: str | None = None,
) -> Tensor:
    """Fraction of elements with (prediction > threshold) = (target > 0.5); NaN is wrong; the values of example n are
    multiplied by example_weights[n].

    threshold: 0.5 for probabilities, 0 for logits
    """
    return _one("binary_accuracy", [prediction, target, example_weights], {"threshold": threshold}, name)


def binary_crossentropy(
    prediction: Operand,
    target: Operand,
    example_weights: Operand | None = None,
    *,
    from_logits: bool = True,
    name: str | None = None,
) -> Tensor:
    """Mean of -(t log p + (1 - t) log(1 - p)), where p = sigmoid(prediction) if from_logits; otherwise p is the
    prediction, and its logarithms are at least -100; the values of example n are multiplied by example_weights[n].

    from_logits: otherwise the predictions are probabilities
    """
    return _one("binary_crossentropy", [prediction, target, example_weights], {"from_logits": from_logits}, name)


def cache(x: Operand, state: Operand, *, use_cached: bool = True, name: str | None = None) -> Tensor:
    """x, state like x -> like x; training: state becomes x (input 1 is written), y = x; otherwise y = state if
    use_cached, else x.

    use_cached: answer with the state when not training
    """
    return _one("cache", [x, state], {"use_cached": use_cached}, name)


def cast(x: Operand, *, to: str, name: str | None = None) -> Tensor:
    """y = x in another element type; numbers become integers by truncation, clamped to the range, NaN becomes 0.

    to: name of the element type
    """
    return _one("cast", [x], {"to": to}, name)


def categorical_accuracy(
    prediction: Operand, target: Operand, example_weights: Operand | None = None, *, name: str | None = None
) -> Tensor:
    """Fraction of rows in which prediction and target have their largest value, the first one, at the same place; NaN
    is wrong; the values of example n are multiplied by example_weights[n].
    """
    return _one("categorical_accuracy", [prediction, target, example_weights], {}, name)


def categorical_crossentropy(
    prediction: Operand,
    target: Operand,
    example_weights: Operand | None = None,
    *,
    from_logits: bool = True,
    label_smoothing: float = 0,
    name: str | None = None,
) -> Tensor:
    """Mean over rows of -sum_c t_c log p_c, where p = softmax(prediction) if from_logits, otherwise the prediction (at
    least 2^-126), and t = (1 - label_smoothing) target + label_smoothing / C; the values of example n are multiplied by
    example_weights[n].

    from_logits: otherwise the predictions are probabilities
    label_smoothing: in [0, 1): part of the target that is spread evenly
    """
    return _one(
        "categorical_crossentropy",
        [prediction, target, example_weights],
        {"from_logits": from_logits, "label_smoothing": label_smoothing},
        name,
    )


def ceil(x: Operand, *, name: str | None = None) -> Tensor:
    """y = the smallest integer not below x; gradient zero."""
    return _one("ceil", [x], {}, name)


def celu(x: Operand, *, alpha: float = 1, name: str | None = None) -> Tensor:
    """y = x where x > 0, else alpha * (exp(x / alpha) - 1).

    alpha: minus the limit at minus infinity; not 0
    """
    return _one("celu", [x], {"alpha": alpha}, name)


def clip(x: Operand, *, min: float | None = None, max: float | None = None, name: str | None = None) -> Tensor:
    """y = min(max(x, min), max), NaN for NaN; gradient where min <= x <= max.

    min: lower bound; absent: none
    max: upper bound, wins over the lower one; absent: none
    """
    return _one("clip", [x], {"min": min, "max": max}, name)


def concat(*x: Operand, axis: int, name: str | None = None) -> Tensor:
    """y = x0, x1, ... one after the other along axis.

    axis: from the end if negative
    """
    return _one("concat", [*x], {"axis": axis}, name)


def conv1d(
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    *,
    strides: Sequence[int] = (1,),
    pads: Sequence[int] = (0, 0),
    dilations: Sequence[int] = (1,),
    groups: int = 1,
    activation: str = "none",
    name: str | None = None,
) -> Tensor:
    """x[N, C, spatial...], weight[O, C/groups, kernel...], bias[O]? -> activation of [N, O, spatial'...] (correlation).

    strides: one per dimension
    pads: all begins, then all ends
    dilations: 1: dense kernel
    groups: channel groups
    activation: applied to the result: none, relu, gelu (erf), silu, sigmoid, tanh
    """
    return _one(
        "conv1d",
        [x, weight, bias],
        {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups, "activation": activation},
        name,
    )


def conv2d(
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    *,
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    dilations: Sequence[int] = (1, 1),
    groups: int = 1,
    activation: str = "none",
    name: str | None = None,
) -> Tensor:
    """x[N, C, spatial...], weight[O, C/groups, kernel...], bias[O]? -> activation of [N, O, spatial'...] (correlation).

    strides: one per dimension
    pads: all begins, then all ends
    dilations: 1: dense kernel
    groups: channel groups
    activation: applied to the result: none, relu, gelu (erf), silu, sigmoid, tanh
    """
    return _one(
        "conv2d",
        [x, weight, bias],
        {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups, "activation": activation},
        name,
    )


def conv3d(
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    *,
    strides: Sequence[int] = (1, 1, 1),
    pads: Sequence[int] = (0, 0, 0, 0, 0, 0),
    dilations: Sequence[int] = (1, 1, 1),
    groups: int = 1,
    activation: str = "none",
    name: str | None = None,
) -> Tensor:
    """x[N, C, spatial...], weight[O, C/groups, kernel...], bias[O]? -> activation of [N, O, spatial'...] (correlation).

    strides: one per dimension
    pads: all begins, then all ends
    dilations: 1: dense kernel
    groups: channel groups
    activation: applied to the result: none, relu, gelu (erf), silu, sigmoid, tanh
    """
    return _one(
        "conv3d",
        [x, weight, bias],
        {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups, "activation": activation},
        name,
    )


def conv_transpose1d(
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    *,
    strides: Sequence[int] = (1,),
    pads: Sequence[int] = (0, 0),
    dilations: Sequence[int] = (1,),
    groups: int = 1,
    output_padding: Sequence[int] = (0,),
    name: str | None = None,
) -> Tensor:
    """x[N, C, spatial...], weight[C, O/groups, kernel...], bias[O]? -> [N, O, (spatial - 1) * stride + (kernel - 1) *
    dilation + 1 + output_padding - pads].

    strides: one per dimension
    pads: all begins, then all ends
    dilations: 1: dense kernel
    groups: channel groups
    output_padding: added to the size at the end; below the strides
    """
    return _one(
        "conv_transpose1d",
        [x, weight, bias],
        {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups, "output_padding": output_padding},
        name,
    )


def conv_transpose2d(
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    *,
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    dilations: Sequence[int] = (1, 1),
    groups: int = 1,
    output_padding: Sequence[int] = (0, 0),
    name: str | None = None,
) -> Tensor:
    """x[N, C, spatial...], weight[C, O/groups, kernel...], bias[O]? -> [N, O, (spatial - 1) * stride + (kernel - 1) *
    dilation + 1 + output_padding - pads].

    strides: one per dimension
    pads: all begins, then all ends
    dilations: 1: dense kernel
    groups: channel groups
    output_padding: added to the size at the end; below the strides
    """
    return _one(
        "conv_transpose2d",
        [x, weight, bias],
        {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups, "output_padding": output_padding},
        name,
    )


def conv_transpose3d(
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    *,
    strides: Sequence[int] = (1, 1, 1),
    pads: Sequence[int] = (0, 0, 0, 0, 0, 0),
    dilations: Sequence[int] = (1, 1, 1),
    groups: int = 1,
    output_padding: Sequence[int] = (0, 0, 0),
    name: str | None = None,
) -> Tensor:
    """x[N, C, spatial...], weight[C, O/groups, kernel...], bias[O]? -> [N, O, (spatial - 1) * stride + (kernel - 1) *
    dilation + 1 + output_padding - pads].

    strides: one per dimension
    pads: all begins, then all ends
    dilations: 1: dense kernel
    groups: channel groups
    output_padding: added to the size at the end; below the strides
    """
    return _one(
        "conv_transpose3d",
        [x, weight, bias],
        {"strides": strides, "pads": pads, "dilations": dilations, "groups": groups, "output_padding": output_padding},
        name,
    )


def cos(x: Operand, *, name: str | None = None) -> Tensor:
    """y = cos(x)."""
    return _one("cos", [x], {}, name)


def cosh(x: Operand, *, name: str | None = None) -> Tensor:
    """y = cosh(x)."""
    return _one("cosh", [x], {}, name)


def cumsum(x: Operand, *, axis: int, exclusive: bool = False, reverse: bool = False, name: str | None = None) -> Tensor:
    """y[i] = x[0] + ... + x[i] along axis.

    axis: from the end if negative
    exclusive: leave out x[i] itself
    reverse: sum from the other end
    """
    return _one("cumsum", [x], {"axis": axis, "exclusive": exclusive, "reverse": reverse}, name)


def depth_to_space(x: Operand, *, blocksize: int, mode: str = "DCR", name: str | None = None) -> Tensor:
    """y[n, c, h * b + i, w * b + j] = x[n, k, h, w] with k = (i * b + j) * (C / b^2) + c for mode DCR, k = c * b^2 + i
    * b + j for CRD.

    blocksize: side of a block of pixels
    mode: 'DCR' or 'CRD' (PyTorch's pixel_shuffle)
    """
    return _one("depth_to_space", [x], {"blocksize": blocksize, "mode": mode}, name)


def divide(a: Operand, b: Operand, *, name: str | None = None) -> Tensor:
    """y = a / b, with numpy's broadcasting; integers truncate towards zero."""
    return _one("divide", [a, b], {}, name)


def divide_scalar(x: Operand, *, value: float, name: str | None = None) -> Tensor:
    """y = x / value.

    value: the number
    """
    return _one("divide_scalar", [x], {"value": value}, name)


def dropout(x: Operand, *, rate: float = 0.5, name: str | None = None) -> Tensor:
    """Training: y = x / (1 - rate) with probability 1 - rate, else 0, chosen by the element's index in the whole
    tensor; otherwise y = x.

    rate: probability of a zero, in [0, 1)
    """
    return _one("dropout", [x], {"rate": rate}, name)


def elu(x: Operand, *, alpha: float = 1, name: str | None = None) -> Tensor:
    """y = x where x > 0, else alpha * (exp(x) - 1).

    alpha: minus the limit at minus infinity
    """
    return _one("elu", [x], {"alpha": alpha}, name)


def embedding(ids: Operand, weight: Operand, *, name: str | None = None) -> Tensor:
    """ids[...] (i32, i64), weight[V, E] -> row ids[...] of weight [..., E]."""
    return _one("embedding", [ids, weight], {}, name)


def embedding_bag(
    ids: Operand, weight: Operand, *, mode: str = "sum", padding_index: int = -1, name: str | None = None
) -> Tensor:
    """ids[..., L] (i32, i64), weight[V, E] -> sum or average of the rows that each bag of L ids names [..., E]; ids
    equal to padding_index are left out, an empty bag is 0.

    mode: 'sum' or 'average'
    padding_index: an id to leave out; -1: none
    """
    return _one("embedding_bag", [ids, weight], {"mode": mode, "padding_index": padding_index}, name)


def equal(a: Operand, b: Operand, *, name: str | None = None) -> Tensor:
    """y = whether a is b, with numpy's broadcasting."""
    return _one("equal", [a, b], {}, name)


def erf(x: Operand, *, name: str | None = None) -> Tensor:
    """y = 2 / sqrt(pi) * integral of exp(-t^2) from 0 to x."""
    return _one("erf", [x], {}, name)


def exp(x: Operand, *, name: str | None = None) -> Tensor:
    """y = exp(x)."""
    return _one("exp", [x], {}, name)


def expand(x: Operand, *, shape: Sequence[int], name: str | None = None) -> Tensor:
    """y = x broadcast together with a tensor of dimensions `shape`, as numpy does.

    shape: sizes; 1 leaves a dimension of x as it is
    """
    return _one("expand", [x], {"shape": shape}, name)


def expert_linear(
    x: Operand, weight: Operand, assign: Operand, gates: Operand | None = None, *, name: str | None = None
) -> Tensor:
    """x[T, in] or [T, k, in], weight[n, out, in], assign[T, k] (i32), gates[T, k]? -> y[T, k, out]: row t, j of y is
    weight[assign[t, j]] times row t (or t, j) of x; with gates [T, out]: the sum over j of gates[t, j] times that.
    """
    return _one("expert_linear", [x, weight, assign, gates], {}, name)


def fill(
    graph: Graph, *, dims: Sequence[int] = (), value: float = 0, dtype: str = "f32", name: str | None = None
) -> Tensor:
    """y[dims] = value everywhere.

    dims: shape of the whole tensor
    value: the value
    dtype: element type
    """
    return graph.op("fill", [], {"dims": dims, "value": value, "dtype": dtype}, name=name)


def flatten(x: Operand, *, axis: int = 1, name: str | None = None) -> Tensor:
    """y[a, b] = x, a the product of the dimensions before axis, b of the others.

    axis: first dimension of the second group
    """
    return _one("flatten", [x], {"axis": axis}, name)


def floor(x: Operand, *, name: str | None = None) -> Tensor:
    """y = the largest integer not above x; gradient zero."""
    return _one("floor", [x], {}, name)


def gather(x: Operand, indices: Operand, *, axis: int = 0, name: str | None = None) -> Tensor:
    """y[..., i..., ...] = x[..., indices[i...], ...] along axis; negative indices count from the end.

    axis: dimension of x that is looked up, from the end if negative
    """
    return _one("gather", [x, indices], {"axis": axis}, name)


def gather_elements(x: Operand, indices: Operand, *, axis: int = 0, name: str | None = None) -> Tensor:
    """y[i...] = x[i... with indices[i...] in place of i along axis]; negative indices count from the end.

    axis: dimension of x that is looked up, from the end if negative
    """
    return _one("gather_elements", [x, indices], {"axis": axis}, name)


def gather_nd(x: Operand, indices: Operand, *, batch_dims: int = 0, name: str | None = None) -> Tensor:
    """y[b..., i..., ...] = x[b..., indices[b..., i..., 0], indices[b..., i..., 1], ..., ...]; negative indices count
    from the end.

    batch_dims: leading dimensions that x and indices share
    """
    return _one("gather_nd", [x, indices], {"batch_dims": batch_dims}, name)


def gelu(x: Operand, *, approximate: str = "none", name: str | None = None) -> Tensor:
    """y = x * Phi(x), Phi the normal distribution; or its tanh approximation.

    approximate: none: by the error function; tanh: as in GPT-2
    """
    return _one("gelu", [x], {"approximate": approximate}, name)


def greater(a: Operand, b: Operand, *, name: str | None = None) -> Tensor:
    """y = whether a > b, with numpy's broadcasting."""
    return _one("greater", [a, b], {}, name)


def greater_equal(a: Operand, b: Operand, *, name: str | None = None) -> Tensor:
    """y = whether a >= b, with numpy's broadcasting."""
    return _one("greater_equal", [a, b], {}, name)


def grid_sample(
    x: Operand,
    grid: Operand,
    *,
    mode: str = "bilinear",
    padding: str = "zeros",
    align_corners: bool = False,
    name: str | None = None,
) -> Tensor:
    """x[N, C, H, W], grid[N, H', W', 2] -> x at the grid's points [N, C, H', W']; a point is (horizontal, vertical), -1
    and 1 the image's borders.

    mode: bilinear, nearest or bicubic
    padding: outside x: zeros, border or reflection
    align_corners: -1 and 1 are the centres of the outermost elements, not their borders
    """
    return _one("grid_sample", [x, grid], {"mode": mode, "padding": padding, "align_corners": align_corners}, name)


def group_by(x: Operand, assign: Operand, *, n: int, alpha: float = 1, name: str | None = None) -> tuple[Tensor, ...]:
    """x[N, E], assign[N, k] -> n outputs [capacity, E]: the rows of x by the expert that they are assigned to, in
    order, then zeros; capacity = ceil(alpha * k * N / n), more rows are dropped.

    n: experts
    alpha: capacity of an expert, relative to an even share of the choices
    """
    return _many("group_by", [x, assign], {"n": n, "alpha": alpha}, name, n)


def group_norm(
    x: Operand,
    scale: Operand | None = None,
    bias: Operand | None = None,
    *,
    groups: int,
    epsilon: float = 1e-05,
    name: str | None = None,
) -> Tensor:
    """x[N, C, ...], scale[C]?, bias[C]? -> (x - mean) / sqrt(variance + epsilon) * scale + bias, moments over each
    sample's groups of C / groups channels.

    groups: of channels; C: instance norm
    epsilon: added to the variance
    """
    return _one("group_norm", [x, scale, bias], {"groups": groups, "epsilon": epsilon}, name)


def gru(
    x: Operand,
    w: Operand,
    r: Operand,
    b: Operand | None = None,
    lengths: Operand | None = None,
    h0: Operand | None = None,
    *,
    hidden: int = 0,
    direction: str = "forward",
    activations: str = "",
    alpha: Sequence[float] = (),
    beta: Sequence[float] = (),
    clip: float = 0,
    linear_before_reset: bool = False,
    name: str | None = None,
) -> tuple[Tensor, ...]:
    """x[S, N, I], w[D, 3H, I], r[D, 3H, H], b[D, 6H]?, lengths[N]?, h0[D, N, H]? -> y[S, D, N, H], h[D, N, H]: gates z,
    r, h; h = (1 - z) * candidate + z * h.

    hidden: H; 0: as 'r' says
    direction: 'forward', 'reverse' or 'bidirectional' (D = 2: forward, reverse)
    activations: names joined by ',', for each direction those of f, g, h that the cell has; empty: sigmoid for the
        gates, tanh for the others
    alpha: of the activations; empty: their defaults
    beta: of the activations; empty: their defaults
    clip: arguments of activations are clipped to [-clip, clip]; 0: not
    linear_before_reset: r gates h R^T + Rb, not h
    """
    return _many(
        "gru",
        [x, w, r, b, lengths, h0],
        {
            "hidden": hidden,
            "direction": direction,
            "activations": activations,
            "alpha": alpha,
            "beta": beta,
            "clip": clip,
            "linear_before_reset": linear_before_reset,
        },
        name,
        2,
    )


def hard_sigmoid(x: Operand, *, alpha: float = 0.2, beta: float = 0.5, name: str | None = None) -> Tensor:
    """y = min(max(alpha * x + beta, 0), 1).

    alpha: slope
    beta: value at zero
    """
    return _one("hard_sigmoid", [x], {"alpha": alpha, "beta": beta}, name)


def hard_swish(x: Operand, *, name: str | None = None) -> Tensor:
    """y = x * min(max(x / 6 + 1 / 2, 0), 1)."""
    return _one("hard_swish", [x], {}, name)


def identity(x: Operand, *, name: str | None = None) -> Tensor:
    """y = x."""
    return _one("identity", [x], {}, name)


def identity_loss(x: Operand, example_weights: Operand | None = None, *, name: str | None = None) -> Tensor:
    """Mean of x over all elements; the values of example n are multiplied by example_weights[n]."""
    return _one("identity_loss", [x, example_weights], {}, name)


def is_inf(
    x: Operand, *, detect_negative: bool = True, detect_positive: bool = True, name: str | None = None
) -> Tensor:
    """y = whether x is infinite, of a sign that is asked for.

    detect_negative: minus infinity counts
    detect_positive: plus infinity counts
    """
    return _one("is_inf", [x], {"detect_negative": detect_negative, "detect_positive": detect_positive}, name)


def is_nan(x: Operand, *, name: str | None = None) -> Tensor:
    """y = whether x is NaN."""
    return _one("is_nan", [x], {}, name)


def layer_norm(
    x: Operand,
    scale: Operand | None = None,
    bias: Operand | None = None,
    *,
    epsilon: float = 1e-05,
    name: str | None = None,
) -> Tensor:
    """x[..., E], scale[E]?, bias[E]? -> (x - mean) / sqrt(variance + epsilon) * scale + bias.

    epsilon: added below the root
    """
    return _one("layer_norm", [x, scale, bias], {"epsilon": epsilon}, name)


def leaky_relu(x: Operand, *, alpha: float = 0.01, name: str | None = None) -> Tensor:
    """y = x where x > 0, else alpha * x.

    alpha: slope below zero
    """
    return _one("leaky_relu", [x], {"alpha": alpha}, name)


def less(a: Operand, b: Operand, *, name: str | None = None) -> Tensor:
    """y = whether a < b, with numpy's broadcasting."""
    return _one("less", [a, b], {}, name)


def less_equal(a: Operand, b: Operand, *, name: str | None = None) -> Tensor:
    """y = whether a <= b, with numpy's broadcasting."""
    return _one("less_equal", [a, b], {}, name)


def linear(
    x: Operand, weight: Operand, bias: Operand | None = None, *, activation: str = "none", name: str | None = None
) -> Tensor:
    """x[..., in], weight[out, in], bias[out]? -> activation of x weight^T + bias [..., out].

    activation: applied to the result: none, relu, gelu (erf), silu, sigmoid, tanh
    """
    return _one("linear", [x, weight, bias], {"activation": activation}, name)


def load_balance_loss(gate_full: Operand, assign: Operand, *, name: str | None = None) -> Tensor:
    """gate_full[N, n], assign[N, k] -> scalar n * sum over experts of (their fraction of all choices * their mean
    gate); 1 where both are even.
    """
    return _one("load_balance_loss", [gate_full, assign], {}, name)


def log(x: Operand, *, name: str | None = None) -> Tensor:
    """y = natural logarithm of x."""
    return _one("log", [x], {}, name)


def log_softmax(x: Operand, *, axis: int = -1, name: str | None = None) -> Tensor:
    """X -> x - log(sum(exp(x))) along axis.

    axis: negative: from the end
    """
    return _one("log_softmax", [x], {"axis": axis}, name)


def logical_and(a: Operand, b: Operand, *, name: str | None = None) -> Tensor:
    """y = a and b, with numpy's broadcasting."""
    return _one("logical_and", [a, b], {}, name)


def logical_not(x: Operand, *, name: str | None = None) -> Tensor:
    """y = not x."""
    return _one("logical_not", [x], {}, name)


def logical_or(a: Operand, b: Operand, *, name: str | None = None) -> Tensor:
    """y = a or b, with numpy's broadcasting."""
    return _one("logical_or", [a, b], {}, name)


def logical_xor(a: Operand, b: Operand, *, name: str | None = None) -> Tensor:
    """y = whether a and b differ, with numpy's broadcasting."""
    return _one("logical_xor", [a, b], {}, name)


def lora_linear(x: Operand, a: Operand, b: Operand, adapter: Operand, *, name: str | None = None) -> Tensor:
    """x[T, in], a[n, r, in], b[n, out, r], adapter[T] (i32) -> y[T, out]: row t of y is b[adapter[t]] (a[adapter[t]]
    x[t]), and 0 where adapter[t] is -1. No gradient.
    """
    return _one("lora_linear", [x, a, b, adapter], {}, name)


def lrn(
    x: Operand, *, size: int, alpha: float = 0.0001, beta: float = 0.75, bias: float = 1, name: str | None = None
) -> Tensor:
    """x[N, C, ...] -> x / (bias + alpha / size * sum(x^2))^beta, the sum over channels c - floor((size - 1) / 2) to c +
    ceil((size - 1) / 2).

    size: channels of a window
    """
    return _one("lrn", [x], {"size": size, "alpha": alpha, "beta": beta, "bias": bias}, name)


def lstm(
    x: Operand,
    w: Operand,
    r: Operand,
    b: Operand | None = None,
    lengths: Operand | None = None,
    h0: Operand | None = None,
    c0: Operand | None = None,
    p: Operand | None = None,
    *,
    hidden: int = 0,
    direction: str = "forward",
    activations: str = "",
    alpha: Sequence[float] = (),
    beta: Sequence[float] = (),
    clip: float = 0,
    name: str | None = None,
) -> tuple[Tensor, ...]:
    """x[S, N, I], w[D, 4H, I], r[D, 4H, H], b[D, 8H]?, lengths[N]?, h0[D, N, H]?, c0[D, N, H]?, p[D, 3H]? -> y[S, D, N,
    H], h[D, N, H], c[D, N, H]: gates i, o, f, c; c = f * c + i * g; h = o * tanh(c); p are peepholes of i, o, f.

    hidden: H; 0: as 'r' says
    direction: 'forward', 'reverse' or 'bidirectional' (D = 2: forward, reverse)
    activations: names joined by ',', for each direction those of f, g, h that the cell has; empty: sigmoid for the
        gates, tanh for the others
    alpha: of the activations; empty: their defaults
    beta: of the activations; empty: their defaults
    clip: arguments of activations are clipped to [-clip, clip]; 0: not
    """
    return _many(
        "lstm",
        [x, w, r, b, lengths, h0, c0, p],
        {
            "hidden": hidden,
            "direction": direction,
            "activations": activations,
            "alpha": alpha,
            "beta": beta,
            "clip": clip,
        },
        name,
        3,
    )


def matmul(
    a: Operand, b: Operand, *, transpose_a: bool = False, transpose_b: bool = False, name: str | None = None
) -> Tensor:
    """a[..., m, k], b[..., k, n] -> a b [..., m, n]; batch dimensions broadcast.

    transpose_a: a is given as [..., k, m]
    transpose_b: b is given as [..., n, k]
    """
    return _one("matmul", [a, b], {"transpose_a": transpose_a, "transpose_b": transpose_b}, name)


def max_pool_indices(
    x: Operand,
    *,
    kernel: Sequence[int],
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    dilations: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
    column_major: bool = False,
    name: str | None = None,
) -> tuple[Tensor, ...]:
    """x[N, C, H, W] -> maxima over windows, and where in the whole x each lies (i64): the plane's first element plus h
    * W + w, or h + w * H.

    kernel: height, width
    strides: vertical, horizontal
    pads: top, left, bottom, right
    dilations: 1: dense windows
    ceil_mode: round the output's size up
    column_major: indices count down the columns of a plane
    """
    return _many(
        "max_pool_indices",
        [x],
        {
            "kernel": kernel,
            "strides": strides,
            "pads": pads,
            "dilations": dilations,
            "ceil_mode": ceil_mode,
            "column_major": column_major,
        },
        name,
        2,
    )


def max_unpool(x: Operand, indices: Operand, *, dims: Sequence[int], name: str | None = None) -> Tensor:
    """x[N, C, H, W], indices (as max_pool_indices gives them, row-major) -> [N, C, dims]: x at the indices, the rest 0;
    of equal indices the last one counts.

    dims: height, width; of four, the first two are those of x or 0
    """
    return _one("max_unpool", [x, indices], {"dims": dims}, name)


def maximum(a: Operand, b: Operand, *, name: str | None = None) -> Tensor:
    """y = the larger of a and b, with numpy's broadcasting; NaN wins, a tie shares the gradient."""
    return _one("maximum", [a, b], {}, name)


def mean_absolute_error(
    prediction: Operand,
    target: Operand,
    example_weights: Operand | None = None,
    *,
    reduction: str = "mean",
    name: str | None = None,
) -> Tensor:
    """Mean (or sum) of |prediction - target| over all elements; the values of example n are multiplied by
    example_weights[n].

    reduction: "mean" or "sum"
    """
    return _one("mean_absolute_error", [prediction, target, example_weights], {"reduction": reduction}, name)


def mean_squared_error(
    prediction: Operand,
    target: Operand,
    example_weights: Operand | None = None,
    *,
    reduction: str = "mean",
    name: str | None = None,
) -> Tensor:
    """Mean (or sum) of (prediction - target)^2 over all elements; the values of example n are multiplied by
    example_weights[n].

    reduction: "mean" or "sum"
    """
    return _one("mean_squared_error", [prediction, target, example_weights], {"reduction": reduction}, name)


def minimum(a: Operand, b: Operand, *, name: str | None = None) -> Tensor:
    """y = the smaller of a and b, with numpy's broadcasting; NaN wins, a tie shares the gradient."""
    return _one("minimum", [a, b], {}, name)


def mish(x: Operand, *, name: str | None = None) -> Tensor:
    """y = x * tanh(softplus(x))."""
    return _one("mish", [x], {}, name)


def modulo(a: Operand, b: Operand, *, fmod: bool = False, name: str | None = None) -> Tensor:
    """y = a - q * b, with numpy's broadcasting; q = a / b rounded down (fmod: towards zero), whose gradient is zero.

    fmod: y has the sign of a, as in C; otherwise that of b, as in Python
    """
    return _one("modulo", [a, b], {"fmod": fmod}, name)


def multi_head_attention(
    q: Operand,
    k: Operand,
    v: Operand,
    wq: Operand,
    wk: Operand,
    wv: Operand,
    wo: Operand,
    bq: Operand | None = None,
    bk: Operand | None = None,
    bv: Operand | None = None,
    bo: Operand | None = None,
    bias_k: Operand | None = None,
    bias_v: Operand | None = None,
    mask: Operand | None = None,
    *,
    heads: int,
    causal: bool = False,
    rate: float = 0,
    add_zero_attn: bool = False,
    name: str | None = None,
) -> Tensor:
    """q[B, S, E], k[B, T, K], v[B, T, V], wq[H*D, E], wk[H*D, K], wv[H*Dv, V], wo[O, H*Dv], bq?, bk?, bv?, bo?,
    bias_k[H*D]?, bias_v[H*Dv]?, mask? -> softmax(Q K^T / sqrt(D) + mask) V per head, projected [B, S, O]. bias_k and
    bias_v are one more row of K and V, add_zero_attn one more of zeros; every row sees those. Mask as in attention.

    heads: H
    causal: row s sees columns t <= s
    rate: dropout of the softmax, when training
    add_zero_attn: K and V get a row of zeros
    """
    return _one(
        "multi_head_attention",
        [q, k, v, wq, wk, wv, wo, bq, bk, bv, bo, bias_k, bias_v, mask],
        {"heads": heads, "causal": causal, "rate": rate, "add_zero_attn": add_zero_attn},
        name,
    )


def multiply(a: Operand, b: Operand, *, name: str | None = None) -> Tensor:
    """y = a * b, with numpy's broadcasting; integers wrap."""
    return _one("multiply", [a, b], {}, name)


def multiply_scalar(x: Operand, *, value: float, name: str | None = None) -> Tensor:
    """y = x * value.

    value: the number
    """
    return _one("multiply_scalar", [x], {"value": value}, name)


def neg(x: Operand, *, name: str | None = None) -> Tensor:
    """y = -x; integers wrap."""
    return _one("neg", [x], {}, name)


def negative_log_likelihood(
    log_probabilities: Operand,
    labels: Operand,
    weights: Operand | None = None,
    example_weights: Operand | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    mean_over: str = "counted",
    name: str | None = None,
) -> Tensor:
    """log_probabilities[N, C, ...], labels[N, ...], weights[C]?: -weight[label] * log_probability[label] of every
    place, reduced; ignored labels add nothing; the values of example n are multiplied by example_weights[n].

    ignore_index: a label that adds nothing to the sum
    reduction: "mean", "sum" or "none" (one value per label)
    mean_over: "all" labels, or "counted": the weights of those that are not ignored. Such a mean runs on one device
    """
    return _one(
        "negative_log_likelihood",
        [log_probabilities, labels, weights, example_weights],
        {"ignore_index": ignore_index, "reduction": reduction, "mean_over": mean_over},
        name,
    )


def not_equal(a: Operand, b: Operand, *, name: str | None = None) -> Tensor:
    """y = whether a is not b, with numpy's broadcasting."""
    return _one("not_equal", [a, b], {}, name)


def one_hot(
    indices: Operand,
    *,
    depth: int,
    axis: int = -1,
    on: float = 1,
    off: float = 0,
    dtype: str = "f32",
    name: str | None = None,
) -> Tensor:
    """y[i..., c, ...] = on where indices[i..., ...] is c, otherwise off; negative indices count from depth, and one out
    of range gives off everywhere, as in ONNX.

    depth: number of classes
    axis: where the classes lie in y, from the end if negative
    on: value there
    off: elsewhere
    dtype: element type of y
    """
    return _one("one_hot", [indices], {"depth": depth, "axis": axis, "on": on, "off": off, "dtype": dtype}, name)


def pad(
    x: Operand, *, pads: Sequence[int], mode: str = "constant", value: float = 0, name: str | None = None
) -> Tensor:
    """y = x with elements added (or, where negative, cut off) at both ends of each dimension: a value, or x mirrored
    without its edge, its edge repeated, or x repeated.

    pads: elements before each dimension, then after each
    mode: 'constant', 'reflect', 'edge' or 'wrap'
    value: what mode 'constant' adds
    """
    return _one("pad", [x], {"pads": pads, "mode": mode, "value": value}, name)


def perplexity(
    logits: Operand,
    labels: Operand,
    example_weights: Operand | None = None,
    *,
    ignore_index: int = -100,
    name: str | None = None,
) -> Tensor:
    """Mean over all labels of -log softmax(logits)[label], reported as its exponential; ignored labels add nothing; the
    values of example n are multiplied by example_weights[n].

    ignore_index: a label that adds nothing to the sum
    """
    return _one("perplexity", [logits, labels, example_weights], {"ignore_index": ignore_index}, name)


def pool2d(
    x: Operand,
    *,
    kernel: Sequence[int],
    strides: Sequence[int] = (1, 1),
    pads: Sequence[int] = (0, 0, 0, 0),
    dilations: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
    kind: str,
    count_include_pad: bool = False,
    p: int = 2,
    name: str | None = None,
) -> Tensor:
    """x[N, C, H, W] -> [N, C, H', W']: maximum, average or p-norm (without absent elements) over windows.

    kernel: height, width
    strides: vertical, horizontal
    pads: top, left, bottom, right
    dilations: 1: dense windows
    ceil_mode: round the output's size up
    kind: 'max', 'average' or 'lp'
    count_include_pad: average: pads count as zeros
    p: lp: the exponent
    """
    return _one(
        "pool2d",
        [x],
        {
            "kernel": kernel,
            "strides": strides,
            "pads": pads,
            "dilations": dilations,
            "ceil_mode": ceil_mode,
            "kind": kind,
            "count_include_pad": count_include_pad,
            "p": p,
        },
        name,
    )


def power(a: Operand, b: Operand, *, name: str | None = None) -> Tensor:
    """y = a to the power of b, with numpy's broadcasting; of integers: wraps, and towards zero for negative b."""
    return _one("power", [a, b], {}, name)


def power_scalar(x: Operand, *, value: float, name: str | None = None) -> Tensor:
    """y = x to the power of value.

    value: the number
    """
    return _one("power_scalar", [x], {"value": value}, name)


def prelu(x: Operand, slope: Operand, *, name: str | None = None) -> Tensor:
    """y = x where x > 0, else slope * x; slope is broadcast to x."""
    return _one("prelu", [x, slope], {}, name)


def quantized_expert_linear(
    x: Operand,
    weight: Operand,
    assign: Operand,
    gates: Operand | None = None,
    *,
    bits: int,
    out: int,
    source: str = "",
    name: str | None = None,
) -> Tensor:
    """x[T, in] or [T, k, in] f32, weight, assign[T, k] (i32), gates[T, k]? -> y[T, k, out], or with gates [T, out]:
    expert_linear. weight is bf16 or f16[n, out, in], or u8[n, blocks, block bytes] with 8 or 4 bits in groups of 32
    inputs (ops/kernel/packed_weights.h); with these x is rounded to 8 bits in the same groups.

    bits: of a weight: 16, 8 or 4
    out: rows of a whole expert's matrix
    source: the parameter in the model's files that `weight` is made from; empty: weight itself
    """
    return _one(
        "quantized_expert_linear",
        [x, weight, assign, gates],
        {"bits": bits, "out": out, "source": source},
        name,
    )


def quantized_linear(
    x: Operand,
    weight: Operand,
    bias: Operand | None = None,
    *,
    bits: int,
    out: int,
    source: str = "",
    activation: str = "none",
    name: str | None = None,
) -> Tensor:
    """x[..., in] f32, weight, bias[out]? -> activation of x weight^T + bias [..., out]. weight is bf16 or f16[out, in],
    or u8[blocks, block bytes] with 8 or 4 bits in groups of 32 inputs (ops/kernel/packed_weights.h); with these x is
    rounded to 8 bits in the same groups.

    bits: of a weight: 16, 8 or 4
    out: rows of the whole weight matrix
    source: the parameter in the model's files that `weight` is made from; empty: weight itself
    activation: applied to the result: none, relu, gelu (erf), silu, sigmoid, tanh
    """
    return _one(
        "quantized_linear",
        [x, weight, bias],
        {"bits": bits, "out": out, "source": source, "activation": activation},
        name,
    )


def random_like(
    x: Operand, *, distribution: str = "uniform", a: float = 0, b: float = 1, name: str | None = None
) -> Tensor:
    """y[as x] = random numbers, new in each step, chosen by the element's index in the whole tensor; uniform: a + (b -
    a) * u, u in [0, 1); normal: a + b * z.

    distribution: uniform or normal
    a: lower bound, or mean
    b: upper bound, or standard deviation
    """
    return _one("random_like", [x], {"distribution": distribution, "a": a, "b": b}, name)


def reciprocal(x: Operand, *, name: str | None = None) -> Tensor:
    """y = 1 / x."""
    return _one("reciprocal", [x], {}, name)


def reduce_l1(x: Operand, *, axes: Sequence[int] = (), keepdims: bool = False, name: str | None = None) -> Tensor:
    """y = sum of |x| over axes; integers wrap.

    axes: dimensions, from the end if negative; empty: all
    keepdims: keep reduced dimensions, with size 1
    """
    return _one("reduce_l1", [x], {"axes": axes, "keepdims": keepdims}, name)


def reduce_l2(x: Operand, *, axes: Sequence[int] = (), keepdims: bool = False, name: str | None = None) -> Tensor:
    """y = sqrt(sum of x^2) over axes; its gradient where it is 0 counts as 0.

    axes: dimensions, from the end if negative; empty: all
    keepdims: keep reduced dimensions, with size 1
    """
    return _one("reduce_l2", [x], {"axes": axes, "keepdims": keepdims}, name)


def reduce_log_sum(x: Operand, *, axes: Sequence[int] = (), keepdims: bool = False, name: str | None = None) -> Tensor:
    """y = log(sum of x) over axes.

    axes: dimensions, from the end if negative; empty: all
    keepdims: keep reduced dimensions, with size 1
    """
    return _one("reduce_log_sum", [x], {"axes": axes, "keepdims": keepdims}, name)


def reduce_log_sum_exp(
    x: Operand, *, axes: Sequence[int] = (), keepdims: bool = False, name: str | None = None
) -> Tensor:
    """y = log(sum of exp(x)) over axes, without overflow.

    axes: dimensions, from the end if negative; empty: all
    keepdims: keep reduced dimensions, with size 1
    """
    return _one("reduce_log_sum_exp", [x], {"axes": axes, "keepdims": keepdims}, name)


def reduce_max(x: Operand, *, axes: Sequence[int] = (), keepdims: bool = False, name: str | None = None) -> Tensor:
    """y = the largest x over axes, NaN if there is one; equal ones share the gradient.

    axes: dimensions, from the end if negative; empty: all
    keepdims: keep reduced dimensions, with size 1
    """
    return _one("reduce_max", [x], {"axes": axes, "keepdims": keepdims}, name)


def reduce_mean(x: Operand, *, axes: Sequence[int] = (), keepdims: bool = False, name: str | None = None) -> Tensor:
    """y = sum of x over axes / count.

    axes: dimensions, from the end if negative; empty: all
    keepdims: keep reduced dimensions, with size 1
    """
    return _one("reduce_mean", [x], {"axes": axes, "keepdims": keepdims}, name)


def reduce_min(x: Operand, *, axes: Sequence[int] = (), keepdims: bool = False, name: str | None = None) -> Tensor:
    """y = the smallest x over axes, NaN if there is one; equal ones share the gradient.

    axes: dimensions, from the end if negative; empty: all
    keepdims: keep reduced dimensions, with size 1
    """
    return _one("reduce_min", [x], {"axes": axes, "keepdims": keepdims}, name)


def reduce_prod(x: Operand, *, axes: Sequence[int] = (), keepdims: bool = False, name: str | None = None) -> Tensor:
    """y = product of x over axes; integers wrap.

    axes: dimensions, from the end if negative; empty: all
    keepdims: keep reduced dimensions, with size 1
    """
    return _one("reduce_prod", [x], {"axes": axes, "keepdims": keepdims}, name)


def reduce_sum(x: Operand, *, axes: Sequence[int] = (), keepdims: bool = False, name: str | None = None) -> Tensor:
    """y = sum of x over axes; integers wrap.

    axes: dimensions, from the end if negative; empty: all
    keepdims: keep reduced dimensions, with size 1
    """
    return _one("reduce_sum", [x], {"axes": axes, "keepdims": keepdims}, name)


def reduce_sum_square(
    x: Operand, *, axes: Sequence[int] = (), keepdims: bool = False, name: str | None = None
) -> Tensor:
    """y = sum of x^2 over axes; integers wrap.

    axes: dimensions, from the end if negative; empty: all
    keepdims: keep reduced dimensions, with size 1
    """
    return _one("reduce_sum_square", [x], {"axes": axes, "keepdims": keepdims}, name)


def regularization_loss(parameter: Operand, *, l1: float = 0, l2: float = 0, name: str | None = None) -> Tensor:
    """L1 * sum |p| + l2 * sum p^2."""
    return _one("regularization_loss", [parameter], {"l1": l1, "l2": l2}, name)


def regularize_gradient(
    parameter: Operand,
    gradient: Operand,
    scale: Operand | None = None,
    *,
    l1: float = 0,
    l2: float = 0,
    name: str | None = None,
) -> Tensor:
    """parameter, gradient, scale (f32 scalar)? -> gradient + scale * (l1 * sign(p) + 2 * l2 * p)."""
    return _one("regularize_gradient", [parameter, gradient, scale], {"l1": l1, "l2": l2}, name)


def relu(x: Operand, *, name: str | None = None) -> Tensor:
    """y = max(x, 0); NaN stays NaN."""
    return _one("relu", [x], {}, name)


def reshape(x: Operand, *, shape: Sequence[int], name: str | None = None) -> Tensor:
    """y = x with other dimensions, the elements in the same order.

    shape: sizes; 0 copies the input's dimension, one -1 is inferred
    """
    return _one("reshape", [x], {"shape": shape}, name)


def residual_layer_norm(
    x: Operand,
    residual: Operand,
    scale: Operand | None = None,
    bias: Operand | None = None,
    *,
    epsilon: float = 1e-05,
    name: str | None = None,
) -> tuple[Tensor, ...]:
    """x[..., E], residual (like x), scale[E]?, bias[E]? -> layer_norm(s), s = x + residual.

    epsilon: added below the root
    """
    return _many("residual_layer_norm", [x, residual, scale, bias], {"epsilon": epsilon}, name, 2)


def residual_rms_norm(
    x: Operand, residual: Operand, weight: Operand, *, epsilon: float = 1e-05, name: str | None = None
) -> tuple[Tensor, ...]:
    """x[..., E], residual (like x), weight[E] -> rms_norm(s), s = x + residual.

    epsilon: added below the root
    """
    return _many("residual_rms_norm", [x, residual, weight], {"epsilon": epsilon}, name, 2)


def resize(
    x: Operand,
    *,
    size: Sequence[int] = (),
    scales: Sequence[float] = (),
    mode: str = "nearest",
    coordinates: str = "half_pixel",
    nearest_mode: str = "round_prefer_floor",
    cubic_a: float = -0.75,
    exclude_outside: bool = False,
    antialias: bool = False,
    roi: Sequence[float] = (),
    extrapolation: float = 0,
    name: str | None = None,
) -> Tensor:
    """X -> x with its dimensions resized to `size`, or to floor(scales * dimension): ONNX's Resize.

    size: of the last dimensions, 0 for that of x; none: from scales
    scales: of the last dimensions; none: size / dimension of x
    mode: nearest, linear or cubic
    coordinates: half_pixel, half_pixel_symmetric, pytorch_half_pixel, align_corners, asymmetric, tf_half_pixel_for_nn
        or tf_crop_and_resize
    nearest_mode: round_prefer_floor, round_prefer_ceil, floor or ceil
    cubic_a: cubic: the kernel's coefficient
    exclude_outside: weights outside x count as 0
    antialias: linear, cubic: wider where y is smaller
    roi: tf_crop_and_resize: starts, then ends, as fractions of x
    extrapolation: tf_crop_and_resize: what lies outside x
    """
    return _one(
        "resize",
        [x],
        {
            "size": size,
            "scales": scales,
            "mode": mode,
            "coordinates": coordinates,
            "nearest_mode": nearest_mode,
            "cubic_a": cubic_a,
            "exclude_outside": exclude_outside,
            "antialias": antialias,
            "roi": roi,
            "extrapolation": extrapolation,
        },
        name,
    )


def reverse(x: Operand, *, axes: Sequence[int], name: str | None = None) -> Tensor:
    """y = x with the elements along each of axes in the opposite order.

    axes: dimensions, from the end if negative
    """
    return _one("reverse", [x], {"axes": axes}, name)


def reverse_sequence(
    x: Operand, lengths: Operand, *, batch_axis: int = 1, time_axis: int = 0, name: str | None = None
) -> Tensor:
    """y = x, where the first lengths[b] elements along time_axis of every sequence b are in the opposite order.

    batch_axis: the sequences, from the end if negative
    time_axis: the steps, from the end if negative
    """
    return _one("reverse_sequence", [x, lengths], {"batch_axis": batch_axis, "time_axis": time_axis}, name)


def rms_norm(x: Operand, weight: Operand, *, epsilon: float = 1e-05, name: str | None = None) -> Tensor:
    """x[..., E], weight[E] -> x / sqrt(mean(x^2) + epsilon) * weight.

    epsilon: added below the root
    """
    return _one("rms_norm", [x, weight], {"epsilon": epsilon}, name)


def rnn(
    x: Operand,
    w: Operand,
    r: Operand,
    b: Operand | None = None,
    lengths: Operand | None = None,
    h0: Operand | None = None,
    *,
    hidden: int = 0,
    direction: str = "forward",
    activations: str = "",
    alpha: Sequence[float] = (),
    beta: Sequence[float] = (),
    clip: float = 0,
    name: str | None = None,
) -> tuple[Tensor, ...]:
    """x[S, N, I], w[D, H, I], r[D, H, H], b[D, 2H]?, lengths[N]?, h0[D, N, H]? -> y[S, D, N, H], h[D, N, H]: h = f(x
    w^T + h r^T + b).

    hidden: H; 0: as 'r' says
    direction: 'forward', 'reverse' or 'bidirectional' (D = 2: forward, reverse)
    activations: names joined by ',', for each direction those of f, g, h that the cell has; empty: sigmoid for the
        gates, tanh for the others
    alpha: of the activations; empty: their defaults
    beta: of the activations; empty: their defaults
    clip: arguments of activations are clipped to [-clip, clip]; 0: not
    """
    return _many(
        "rnn",
        [x, w, r, b, lengths, h0],
        {
            "hidden": hidden,
            "direction": direction,
            "activations": activations,
            "alpha": alpha,
            "beta": beta,
            "clip": clip,
        },
        name,
        2,
    )


def root_mean_squared_error(
    prediction: Operand, target: Operand, example_weights: Operand | None = None, *, name: str | None = None
) -> Tensor:
    """Mean of (prediction - target)^2, reported as its root; the values of example n are multiplied by
    example_weights[n].
    """
    return _one("root_mean_squared_error", [prediction, target, example_weights], {}, name)


def rotary(
    x: Operand,
    positions: Operand | None = None,
    *,
    head_dim: int,
    theta: float = 10000,
    frequencies: Sequence[float] = (),
    magnitude: float = 1,
    name: str | None = None,
) -> Tensor:
    """x[..., S, H*D], positions[S]? -> like x: in each head, elements i and i + D/2 turn by position * theta^(-2i/D);
    with n frequencies elements i and i + n turn by position * frequencies[i] and those from 2n on stay; without
    positions row s of the whole tensor has position s.

    head_dim: D, even
    theta: base of the wave lengths
    frequencies: radians per position, at most D/2 of them; empty: those of theta
    magnitude: what sines and cosines are multiplied by
    """
    return _one(
        "rotary",
        [x, positions],
        {"head_dim": head_dim, "theta": theta, "frequencies": frequencies, "magnitude": magnitude},
        name,
    )


def round(x: Operand, *, name: str | None = None) -> Tensor:
    """y = the nearest integer, of two the even one; gradient zero."""
    return _one("round", [x], {}, name)


def rsqrt(x: Operand, *, name: str | None = None) -> Tensor:
    """y = 1 / sqrt(x)."""
    return _one("rsqrt", [x], {}, name)


def scatter_elements(
    x: Operand, indices: Operand, updates: Operand, *, axis: int = 0, reduction: str = "none", name: str | None = None
) -> Tensor:
    """y = x, where y[i... with indices[i...] in place of i along axis] becomes or is combined with updates[i...], one
    after the other.

    axis: dimension of x that is written, from the end if negative
    reduction: 'none' (of several updates of one element the last one stays), 'add', 'multiply', 'maximum' or 'minimum';
        gradient for 'none' and 'add'
    """
    return _one("scatter_elements", [x, indices, updates], {"axis": axis, "reduction": reduction}, name)


def scatter_nd(
    x: Operand, indices: Operand, updates: Operand, *, reduction: str = "none", name: str | None = None
) -> Tensor:
    """y = x, where y[indices[i..., 0], indices[i..., 1], ..., ...] becomes or is combined with updates[i..., ...], one
    after the other.

    reduction: 'none' (of several updates of one element the last one stays), 'add', 'multiply', 'maximum' or 'minimum';
        gradient for 'none' and 'add'
    """
    return _one("scatter_nd", [x, indices, updates], {"reduction": reduction}, name)


def selu(x: Operand, *, alpha: float = 1.67326, gamma: float = 1.0507, name: str | None = None) -> Tensor:
    """y = gamma * x where x > 0, else gamma * alpha * (exp(x) - 1).

    alpha: minus the limit at minus infinity, before gamma
    gamma: scale
    """
    return _one("selu", [x], {"alpha": alpha, "gamma": gamma}, name)


def shrink(x: Operand, *, bias: float = 0, lambd: float = 0.5, name: str | None = None) -> Tensor:
    """y = x + bias where x < -lambd, x - bias where x > lambd, else 0.

    bias: what is taken off
    lambd: half the width of the gap
    """
    return _one("shrink", [x], {"bias": bias, "lambd": lambd}, name)


def sigmoid(x: Operand, *, name: str | None = None) -> Tensor:
    """y = 1 / (1 + exp(-x))."""
    return _one("sigmoid", [x], {}, name)


def sign(x: Operand, *, name: str | None = None) -> Tensor:
    """y = -1, 0 or 1, NaN for NaN; gradient zero."""
    return _one("sign", [x], {}, name)


def silu(x: Operand, *, name: str | None = None) -> Tensor:
    """y = x * sigmoid(x)."""
    return _one("silu", [x], {}, name)


def sin(x: Operand, *, name: str | None = None) -> Tensor:
    """y = sin(x)."""
    return _one("sin", [x], {}, name)


def sinh(x: Operand, *, name: str | None = None) -> Tensor:
    """y = sinh(x)."""
    return _one("sinh", [x], {}, name)


def slice(
    x: Operand,
    *,
    axes: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    steps: Sequence[int] = (),
    name: str | None = None,
) -> Tensor:
    """y = x[start:end:step] along each of axes, with numpy's meaning.

    axes: dimensions, from the end if negative
    starts: first index, one for each of axes
    ends: index after the last, one for each of axes
    steps: all 1 if empty; negative: backwards
    """
    return _one("slice", [x], {"axes": axes, "starts": starts, "ends": ends, "steps": steps}, name)


def softmax(x: Operand, *, axis: int = -1, name: str | None = None) -> Tensor:
    """X -> exp(x) / sum(exp(x)) along axis.

    axis: negative: from the end
    """
    return _one("softmax", [x], {"axis": axis}, name)


def softplus(x: Operand, *, name: str | None = None) -> Tensor:
    """y = log(1 + exp(x))."""
    return _one("softplus", [x], {}, name)


def softsign(x: Operand, *, name: str | None = None) -> Tensor:
    """y = x / (1 + |x|)."""
    return _one("softsign", [x], {}, name)


def sort(x: Operand, *, axis: int = -1, descending: bool = False, name: str | None = None) -> tuple[Tensor, ...]:
    """The elements in their order along axis, and the places where they were; equal ones keep their order, NaN counts
    as the largest.

    axis: along which to sort, from the end if negative
    descending: the largest first, otherwise the smallest
    """
    return _many("sort", [x], {"axis": axis, "descending": descending}, name, 2)


def space_to_depth(x: Operand, *, blocksize: int, name: str | None = None) -> Tensor:
    """y[n, (i * b + j) * C + c, h, w] = x[n, c, h * b + i, w * b + j].

    blocksize: side of a block of pixels
    """
    return _one("space_to_depth", [x], {"blocksize": blocksize}, name)


def sparse_categorical_crossentropy(
    logits: Operand,
    labels: Operand,
    weights: Operand | None = None,
    example_weights: Operand | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    mean_over: str = "all",
    label_smoothing: float = 0,
    name: str | None = None,
) -> Tensor:
    """-sum_c t_c weight_c log softmax(logits)_c with t = (1 - label_smoothing) at the label, plus label_smoothing / C
    everywhere; its mean over labels, sum, or the values; ignored labels add nothing; the values of example n are
    multiplied by example_weights[n].

    ignore_index: a label that adds nothing to the sum
    reduction: "mean", "sum" or "none" (one value per label)
    mean_over: "all" labels, or "counted": the weights of those that are not ignored. Such a mean runs on one device
    label_smoothing: in [0, 1): part of the target that is spread evenly
    """
    return _one(
        "sparse_categorical_crossentropy",
        [logits, labels, weights, example_weights],
        {
            "ignore_index": ignore_index,
            "reduction": reduction,
            "mean_over": mean_over,
            "label_smoothing": label_smoothing,
        },
        name,
    )


def split(x: Operand, *, axis: int, sizes: Sequence[int], name: str | None = None) -> tuple[Tensor, ...]:
    """y0, y1, ... = consecutive pieces of x along axis.

    axis: from the end if negative
    sizes: of the pieces
    """
    return _many("split", [x], {"axis": axis, "sizes": sizes}, name, len(sizes))


def sqrt(x: Operand, *, name: str | None = None) -> Tensor:
    """y = sqrt(x)."""
    return _one("sqrt", [x], {}, name)


def squeeze(x: Operand, *, axes: Sequence[int], name: str | None = None) -> Tensor:
    """y = x without the dimensions `axes`, which have size 1.

    axes: dimensions of x, from the end if negative
    """
    return _one("squeeze", [x], {"axes": axes}, name)


def stop_gradient(x: Operand, *, name: str | None = None) -> Tensor:
    """y = x, through which no gradient flows."""
    return _one("stop_gradient", [x], {}, name)


def subtract(a: Operand, b: Operand, *, name: str | None = None) -> Tensor:
    """y = a - b, with numpy's broadcasting; integers wrap."""
    return _one("subtract", [a, b], {}, name)


def subtract_scalar(x: Operand, *, value: float, name: str | None = None) -> Tensor:
    """y = x - value.

    value: the number
    """
    return _one("subtract_scalar", [x], {"value": value}, name)


def sum_squares(x: Operand, *, name: str | None = None) -> Tensor:
    """F32 scalar: sum of x^2 over all elements."""
    return _one("sum_squares", [x], {}, name)


def swiglu(gate: Operand, up: Operand, *, name: str | None = None) -> Tensor:
    """y = silu(gate) * up, of one shape."""
    return _one("swiglu", [gate, up], {}, name)


def tan(x: Operand, *, name: str | None = None) -> Tensor:
    """y = tan(x)."""
    return _one("tan", [x], {}, name)


def tanh(x: Operand, *, name: str | None = None) -> Tensor:
    """y = tanh(x)."""
    return _one("tanh", [x], {}, name)


def thresholded_relu(x: Operand, *, alpha: float = 1, name: str | None = None) -> Tensor:
    """y = x where x > alpha, else 0.

    alpha: threshold
    """
    return _one("thresholded_relu", [x], {"alpha": alpha}, name)


def tile(x: Operand, *, repeats: Sequence[int], name: str | None = None) -> Tensor:
    """y = x repeated repeats[d] times along every dimension d.

    repeats: one number for each dimension
    """
    return _one("tile", [x], {"repeats": repeats}, name)


def top_k(
    x: Operand, *, k: int, axis: int = -1, largest: bool = True, sorted: bool = True, name: str | None = None
) -> tuple[Tensor, ...]:
    """The k largest or smallest elements along axis, from the most extreme on, and their places; of equal ones the
    first comes first, NaN counts as the largest.

    k: elements to pick from each line
    axis: along which to look, from the end if negative
    largest: the largest elements, otherwise the smallest
    sorted: whether the order matters; it is always the sorted one
    """
    return _many("top_k", [x], {"k": k, "axis": axis, "largest": largest, "sorted": sorted}, name, 2)


def top_k_accuracy(
    logits: Operand,
    labels: Operand,
    example_weights: Operand | None = None,
    *,
    ignore_index: int = -100,
    k: int = 5,
    name: str | None = None,
) -> Tensor:
    """Fraction of labels whose logit is among the k largest, the first ones where several are equal; NaN is wrong; the
    values of example n are multiplied by example_weights[n].

    ignore_index: a label that adds nothing to the sum
    k: at least 1; with k classes or fewer every label is right
    """
    return _one("top_k_accuracy", [logits, labels, example_weights], {"ignore_index": ignore_index, "k": k}, name)


def transpose(x: Operand, *, perm: Sequence[int], name: str | None = None) -> Tensor:
    """Dimension d of y is dimension perm[d] of x.

    perm: a permutation of the dimensions
    """
    return _one("transpose", [x], {"perm": perm}, name)


def triangle(x: Operand, *, upper: bool = False, k: int = 0, name: str | None = None) -> Tensor:
    """y[..., i, j] = x[..., i, j] where j - i <= k (upper: j - i >= k), otherwise 0.

    upper: keep what lies above the diagonal, otherwise what lies below it
    k: which diagonal; 0 is the main one, 1 the one above it
    """
    return _one("triangle", [x], {"upper": upper, "k": k}, name)


def unsqueeze(x: Operand, *, axes: Sequence[int], name: str | None = None) -> Tensor:
    """y = x with dimensions of size 1 put in, so that they are dimensions `axes` of y.

    axes: dimensions of y, from the end if negative
    """
    return _one("unsqueeze", [x], {"axes": axes}, name)


def where(condition: Operand, a: Operand, b: Operand, *, name: str | None = None) -> Tensor:
    """y = a where condition, else b; all with numpy's broadcasting."""
    return _one("where", [condition, a, b], {}, name)
