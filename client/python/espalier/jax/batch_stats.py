"""Batch normalization with running statistics, as linen, nnx and haiku spell it out, becomes the daemon's batch_norm.

A training step reads running statistics only to move them: new = (1 - m) old + m batch. The operator batch_norm does
that in place. So the new state of a loss is matched with the moments of a tensor, and the normalization that reads the
same moments is replaced. State that is changed otherwise is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from espalier.errors import InvalidArgument
from espalier.jax.context import Context
from espalier.jax.ir import Node, Wire, product, same
from espalier.jax.passes import made_by, number_of

_VIEWS = ("unsqueeze", "reshape", "squeeze")


@dataclass
class _Average:
    """An exponential average: new = (1 - momentum) old + momentum batch."""

    name: str
    old: Wire
    batch: Wire
    momentum: float


@dataclass
class _Norm:
    """A normalization: output = (x - mean) / sqrt(variance + epsilon) * scale + bias."""

    output: Wire
    epsilon: float
    scale: Wire | None
    bias: Wire | None


def _plain(wire: Wire | None) -> Wire | None:
    """Past dimensions of size 1 that come and go."""
    while wire is not None and wire.node is not None and wire.node.op in _VIEWS:
        inner = wire.node.inputs[0]
        if inner is None or [d for d in inner.shape if not same(d, 1)] != [d for d in wire.shape if not same(d, 1)]:
            break
        wire = inner
    return wire


def _operands(wire: Wire | None, op: str) -> list[tuple[Wire, Wire]]:
    """Both orders of the operands of the node that makes a wire, without views."""
    node = made_by(_plain(wire), op)
    if node is None or len(node.inputs) != 2:
        return []
    a, b = _plain(node.inputs[0]), _plain(node.inputs[1])
    assert a is not None
    assert b is not None
    return [(a, b), (b, a)]


def _average(name: str, old: Wire, new: Wire) -> _Average | None:
    if new.node is not None and new.node.op == "stop_gradient" and new.node.inputs[0] is not None:
        new = new.node.inputs[0]  # nothing is differentiated by the new state
    for kept, added in _operands(new, "add"):
        first, second = made_by(kept, "multiply_scalar"), made_by(added, "multiply_scalar")
        if first is None or second is None or _plain(first.inputs[0]) is not old:
            continue
        decay, momentum = first.number("value"), second.number("value")
        batch = _plain(second.inputs[0])
        if batch is not None and abs(decay + momentum - 1) < 1e-6:
            return _Average(name, old, batch, momentum)
    # old - momentum * (old - batch)
    node = made_by(_plain(new), "subtract")
    moved = made_by(_plain(node.inputs[1]), "multiply_scalar") if node is not None else None
    step = made_by(_plain(moved.inputs[0]), "subtract") if moved is not None else None
    if node is not None and moved is not None and step is not None:
        batch = _plain(step.inputs[1])
        if _plain(node.inputs[0]) is old and _plain(step.inputs[0]) is old and batch is not None:
            return _Average(name, old, batch, moved.number("value"))
    return None


def _mean_of(wire: Wire) -> tuple[Wire, int] | None:
    """x and its channel dimension, if a wire is the mean of x over all others."""
    node = made_by(wire, "reduce_mean")
    if node is None or node.inputs[0] is None:
        return None
    x = node.inputs[0]
    axes = set(node.ints("axes"))
    channel = [i for i in range(len(x.shape)) if i not in axes]
    return (x, channel[0]) if len(channel) == 1 else None


def _is_variance(wire: Wire, x: Wire, mean: Wire, channel: int) -> bool:
    """Whether a wire is the biased variance of x over all but the channel."""
    for value, bound in _operands(wire, "maximum"):
        if number_of(bound) == 0:
            return _is_variance(value, x, mean, channel)
    found = _mean_of(wire)
    if found is not None and found[1] == channel:  # mean((x - mean)^2)
        for a, b in _operands(found[0], "multiply"):
            centred = made_by(a, "subtract")
            return (
                a is b and centred is not None and _plain(centred.inputs[0]) is x and _plain(centred.inputs[1]) is mean
            )
    node = made_by(wire, "subtract")  # mean(x^2) - mean^2
    if node is None:
        return False
    squares, of_mean = _plain(node.inputs[0]), _plain(node.inputs[1])
    found = _mean_of(squares) if squares is not None else None
    if found is None or found[1] != channel:
        return False
    return any(a is b is x for a, b in _operands(found[0], "multiply")) and any(
        a is b is mean for a, b in _operands(of_mean, "multiply")
    )


def _inverse_root(wire: Wire | None, variance: Wire) -> tuple[float, Wire | None] | None:
    """epsilon and scale of rsqrt(variance + epsilon) * scale."""
    node = made_by(_plain(wire), "rsqrt")
    if node is not None:
        shifted = made_by(_plain(node.inputs[0]), "add_scalar")
        if shifted is not None and _plain(shifted.inputs[0]) is variance:
            return shifted.number("value"), None
        return None
    for root, scale in _operands(wire, "multiply"):
        found = _inverse_root(root, variance)
        if found is not None and found[1] is None:
            return found[0], scale
    return None


def _norm(users: dict[int, list[Node]], x: Wire, mean: Wire, variance: Wire) -> _Norm | None:
    """The normalization of x by its moments."""
    for centred in users.get(id(x), []):
        if centred.op != "subtract" or centred.inputs[0] is not x or _plain(centred.inputs[1]) is not mean:
            continue
        for product_node in users.get(id(centred.outputs[0]), []):
            if product_node.op != "multiply":
                continue
            factor = next((w for w in product_node.inputs if w is not centred.outputs[0]), None)
            found = _inverse_root(factor, variance)
            if found is None:
                continue
            norm = _Norm(product_node.outputs[0], found[0], found[1], None)
            return _with_bias(users, norm, x)
    return None


def _with_bias(users: dict[int, list[Node]], norm: _Norm, x: Wire) -> _Norm:
    readers = users.get(id(norm.output), [])
    if len(readers) == 1 and readers[0].op == "add":
        other = next((w for w in readers[0].inputs if w is not norm.output), None)
        plain = _plain(other)
        if other is not None and plain is not None and len(plain.shape) == 1 and other is not x:
            norm.bias, norm.output = plain, readers[0].outputs[0]
    return norm


def fuse(context: Context, updates: list[tuple[str, Wire, Wire]]) -> None:
    """Replaces batch normalizations. InvalidArgument that names all state which is changed in another way."""
    program = context.program
    averages, refused = [], []
    for name, old, new in updates:
        average = _average(name, old, new)
        if average is None:
            refused.append(f"{name}: its new value is no running average of the batch's moments")
        else:
            averages.append(average)
    means = {id(a.batch): a for a in averages if _mean_of(a.batch) is not None}
    done: set[str] = set()
    for variance in averages:
        pair = next((m for m in means.values() if m.name != variance.name and _belongs(m, variance)), None)
        if pair is None or pair.momentum != variance.momentum:
            continue
        found = _mean_of(pair.batch)
        assert found is not None
        x, channel = found
        norm = _norm(program.users(), x, pair.batch, variance.batch)
        if norm is None:
            continue
        _replace(context, x, channel, norm, pair, variance)
        done |= {pair.name, variance.name}
    for average in averages:
        if average.name not in done:
            refused.append(f"{average.name}: no normalization by the moments that it averages was found")
    if refused:
        raise InvalidArgument(
            "state that the loss changes is only kept for batch normalization (biased variance over all dimensions but "
            "one); pass other state as a part of the batch, or leave it out: " + "; ".join(refused)
        )
    for name, _, _ in updates:
        del program.outputs[f"state:{name}"]


def _belongs(mean: _Average, variance: _Average) -> bool:
    found = _mean_of(mean.batch)
    return found is not None and _is_variance(variance.batch, found[0], mean.batch, found[1])


def _replace(context: Context, x: Wire, channel: int, norm: _Norm, mean: _Average, variance: _Average) -> None:
    """Puts batch_norm in."""
    program = context.program
    channels = int(x.shape[channel])
    node = norm.output.node
    assert node is not None
    program.source, program.scope = node.source, node.scope
    rank, data = len(x.shape), x
    order = [i for i in range(rank) if i != channel]
    order.insert(1, channel)
    if channel == rank - 1 and rank > 2:
        data = context.reshape(x, (product(x.shape[:-1]), channels))
    elif channel != 1:
        data = context.transpose(x, order)
    scale = norm.scale or program.constant(np.ones(channels, np.float32))
    bias = norm.bias or program.constant(np.zeros(channels, np.float32))
    stats = context.emit("batch_norm_stats", [data], (2, channels), "float32")
    attributes: dict[str, Any] = {"epsilon": norm.epsilon, "momentum": mean.momentum, "biased_running_var": True}
    made = context.emit(
        "batch_norm", [data, scale, bias, mean.old, variance.old, stats], data.shape, "float32", **attributes
    )
    if channel == rank - 1 and rank > 2:
        made = context.reshape(made, x.shape)
    elif channel != 1:
        made = context.transpose(made, [order.index(i) for i in range(rank)])
    program.replace(norm.output, made)
