"""One operator for LSTM, GRU and RNN in a trace.

PyTorch's own rules unroll the steps while they are traced, and give the states of an LSTM a dimension too many where
the input has a gradient (torch/_decomp/decompositions.py, one_layer_lstm, up to 2.8 at least).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from espalier.errors import InvalidArgument

PACKED = (
    "packed sequences are not supported; give the padded tensor to the layer, and choose what counts by the lengths: "
    "y.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, y.shape[2])) has the last steps of y[batch, steps, hidden] "
    "(the backward direction of a bidirectional layer reads the padding first)"
)

_KINDS = {torch.lstm: "lstm", torch.gru: "gru", torch.rnn_tanh: "rnn_tanh", torch.rnn_relu: "rnn_relu"}


def _compute(
    x: torch.Tensor,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    kind: str,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[torch.Tensor]:
    """The sequence, and the states at the end. Arguments as those of torch.lstm and torch.gru."""
    initial = list(states) if kind == "lstm" else states[0]
    options = (has_biases, num_layers, dropout, train, bidirectional, batch_first)
    return [made.clone() for made in getattr(torch, kind)(x, initial, list(weights), *options)]


def _shapes(
    x: torch.Tensor,
    states: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor],
    kind: str,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> list[torch.Tensor]:
    hidden = states[0].shape[2] * (2 if bidirectional else 1)
    return [x.new_empty((*x.shape[:2], hidden)), *(state.new_empty(state.shape) for state in states)]


_recurrent: Any = torch.library.custom_op("espalier::recurrent", _compute, mutates_args=())
_recurrent.register_fake(_shapes)


class AsOneOperator(TorchFunctionMode):  # type: ignore[misc]
    """Calls of torch.lstm, torch.gru, torch.rnn_tanh and torch.rnn_relu become calls of one operator."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch._pack_padded_sequence, torch._pad_packed_sequence):
            raise InvalidArgument(PACKED)
        kind = _KINDS.get(func)
        if kind is None:
            return func(*args, **(kwargs or {}))
        if isinstance(args[2], torch.Tensor) or isinstance(args[3], (tuple, list)):  # (data, batch_sizes, ...)
            raise InvalidArgument(PACKED)
        x, initial, weights, *options = args
        states = list(initial) if kind == "lstm" else [initial]
        made = _recurrent(x, states, list(weights), kind, *options, **(kwargs or {}))
        return tuple(made)


def check_not_packed(item: Any) -> None:
    """InvalidArgument for a packed sequence among data."""
    if isinstance(item, torch.nn.utils.rnn.PackedSequence):
        raise InvalidArgument(PACKED)


__all__ = ["AsOneOperator", "check_not_packed"]
