"""LSTM, GRU and RNN, and their cells: one operator for each layer, whatever the number of steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from espalier.torch.convert_layers import dropout, matmul
from espalier.torch.emitter import Emitter
from espalier.torch.registry import handles
from espalier.torch.shapes import concat, sliced
from espalier.torch.values import CannotConvert, Value, constant


@dataclass(frozen=True)
class _Kind:
    """A recurrent operator. `gates`: its gates in their order, as places among PyTorch's."""

    op: str
    gates: tuple[int, ...]
    states: int = 1
    activation: str = ""  # empty: the operator's own
    linear_before_reset: bool = False

    def attributes(self, directions: int) -> dict[str, Any]:
        """The operator's attributes."""
        found: dict[str, Any] = {"direction": "bidirectional" if directions == 2 else "forward"}
        if self.activation:
            found["activations"] = ",".join([self.activation] * directions)
        if self.linear_before_reset:
            found["linear_before_reset"] = True
        return found


_LSTM = _Kind("lstm", (0, 3, 1, 2), states=2)  # i, o, f, c; PyTorch's are i, f, g, o
_GRU = _Kind("gru", (1, 0, 2), linear_before_reset=True)  # z, r, h; PyTorch's are r, z, n
_TANH = _Kind("rnn", (0,))
_RELU = _Kind("rnn", (0,), activation="relu")
_KINDS = {"lstm": _LSTM, "gru": _GRU, "rnn_tanh": _TANH, "rnn_relu": _RELU}


def _stacked(emit: Emitter, gates: Sequence[int], tensors: Sequence[Value], directions: int) -> Value:
    """Tensors of [gates * hidden, ...], some for each direction, as one of [directions, rows, ...] in order `gates`."""
    whole = concat(emit, [emit.whole(tensor) for tensor in tensors], 0)
    rows, *rest = emit.numbers(whole.shape)
    blocks = len(tensors) * len(gates)
    if len(gates) > 1:
        order = constant(torch.tensor([first + gate for first in range(0, blocks, len(gates)) for gate in gates]))
        shape = (blocks, rows // blocks, *rest)
        whole = emit.op("gather", [emit.reshape(whole, shape), order], {"axis": 0}, shape=shape, dtype=whole.dtype)
    return emit.reshape(whole, [directions, rows // directions, *rest])


def _given(emit: Emitter, state: Value, layer: int, directions: int) -> Value | None:
    """The initial state of a layer; None: zeros, which the operator takes by itself."""
    if isinstance(state.held, torch.Tensor) and not state.held.any():
        return None
    return sliced(emit, emit.whole(state), 0, layer * directions, (layer + 1) * directions)


def _layer(
    emit: Emitter, kind: _Kind, x: Value, states: Sequence[Value | None], weights: Sequence[Sequence[Value]]
) -> tuple[Value, list[Value]]:
    """y[S, N, directions * hidden] of x[S, N, I], and the states at the end. weights: those of each direction."""
    directions, first = len(weights), weights[0]
    projected = len(first) in (3, 5)
    biased = len(first) >= 4
    w = _stacked(emit, kind.gates, [of[0] for of in weights], directions)
    r = _stacked(emit, kind.gates, [of[1] for of in weights], directions)
    b = _stacked(emit, kind.gates, [bias for of in weights for bias in of[2:4]], directions) if biased else None
    projection: Value | None = None
    if projected:
        if states[0] is not None:
            raise CannotConvert("proj_size with an initial state is not supported: call it without (h_0, c_0)")
        # The state before the projection P is kept: (P h) R^T = h (R P)^T.
        projection = _stacked(emit, (0,), [of[-1] for of in weights], directions)
        r = matmul(emit, r, projection)
    steps, samples, hidden = emit.number(x.shape[0]), x.shape[1], r.shape[2]
    operands = [emit.whole(x), w, r, b, None, *states]
    while operands[-1] is None:
        operands.pop()
    shape = (directions, samples, hidden)
    results = [((steps, *shape), x.dtype), *[(shape, x.dtype)] * kind.states]
    y, *last = emit.ops(kind.op, operands, kind.attributes(directions), results)
    if projection is not None:
        y, last[0] = (matmul(emit, value, projection, transpose_b=True) for value in (y, last[0]))
    if directions > 1:
        y = emit.transpose(y, [0, 2, 1, 3])
    return emit.reshape(y, [steps, samples, directions * y.shape[3]]), last


@handles("espalier.recurrent.default")
def _sequence(
    emit: Emitter,
    x: Value,
    states: Sequence[Value],
    weights: Sequence[Value],
    kind: str,
    has_biases: bool,
    num_layers: int,
    rate: Any,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Value, ...]:
    directions = 2 if bidirectional else 1
    each = len(weights) // (num_layers * directions)
    parts = [weights[first : first + each] for first in range(0, len(weights), each)]
    if batch_first:
        x = emit.transpose(x, [1, 0, 2])
    if not isinstance(x.shape[0], int):
        raise CannotConvert(
            "its steps are the examples of a batch, dimension 0 of the data; use batch_first=True, or give it "
            "x.transpose(0, 1)"
        )
    ends: list[list[Value]] = []
    for layer in range(num_layers):
        if layer > 0 and train:
            x = dropout(emit, x, float(emit.scalar(rate)))
        given = [_given(emit, state, layer, directions) for state in states]
        x, last = _layer(emit, _KINDS[kind], x, given, parts[layer * directions : (layer + 1) * directions])
        ends.append(last)
    if batch_first:
        x = emit.transpose(x, [1, 0, 2])
    return (x, *(concat(emit, list(state), 0) for state in zip(*ends, strict=True)))


def _cell(kind: _Kind) -> Any:
    def handler(emit: Emitter, x: Value, initial: Value | Sequence[Value], *weights: Value | None) -> Any:
        states = [initial] if isinstance(initial, Value) else list(initial)
        raised = [emit.reshape(emit.whole(state), [1, *state.shape]) for state in states]
        given = [_given(emit, state, 0, 1) for state in raised]
        present = [weight for weight in weights if weight is not None]
        _, last = _layer(emit, kind, emit.reshape(x, [1, *x.shape]), given, [present])
        made = tuple(emit.reshape(state, state.shape[1:]) for state in last)
        return made if kind.states > 1 else made[0]

    return handler


handles("lstm_cell.default")(_cell(_LSTM))
handles("gru_cell.default")(_cell(_GRU))
handles("rnn_tanh_cell.default")(_cell(_TANH))
handles("rnn_relu_cell.default")(_cell(_RELU))
