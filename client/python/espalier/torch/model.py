"""FlexFlow's `flexflow.torch.model`: a PyTorch model, from a file or a module."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from espalier.errors import InvalidArgument
from espalier.torch import fx
from espalier.torch.module_graph import Columns, ModuleGraph, argument_names, to_graph

# Arguments of transformers models that hold token ids; the others hold masks.
_IDS = ("input_ids", "decoder_input_ids", "labels")


class PyTorchModel:
    """A PyTorch model to be trained: a file of torch_to_flexflow, or a module.

    is_hf_model: a model of transformers, which takes token ids of batch_size x seq_length; of a list as seq_length the
    last is that of the decoder and the labels. input_names: its arguments, by default the token ids and their mask, and
    the labels of encoder-decoder models, as in FlexFlow's mT5 example.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | nn.Module,
        is_hf_model: bool = False,
        batch_size: int | None = None,
        seq_length: int | list[int] | tuple[int, ...] | None = None,
        *,
        input_names: list[str] | None = None,
    ):
        self.module: nn.Module = model if isinstance(model, nn.Module) else fx.read(model)
        self.batch_size = batch_size
        self._tokens: dict[str, torch.Tensor] | None = None
        if is_hf_model:
            self._tokens = _token_inputs(self.module, batch_size, seq_length, input_names)

    @property
    def input_names(self) -> list[str]:
        """Names of the model's inputs, in order."""
        return list(self._tokens) if self._tokens is not None else argument_names(self.module)

    def to_graph(self, example_inputs: Columns | None = None, **options: Any) -> ModuleGraph:
        """The graph of the model; its arguments and errors are those of espalier.torch.to_graph.

        `example_inputs` may be left out with is_hf_model.
        """
        if example_inputs is None:
            example_inputs = self._tokens
        if example_inputs is None:
            raise InvalidArgument("give example_inputs: the shapes and types of what the model takes")
        training = self.module.training
        self.module.train()
        try:
            return to_graph(self.module, example_inputs, **{"batch_size": self.batch_size, **options})
        finally:
            self.module.train(training)


def _token_inputs(
    model: nn.Module, batch_size: int | None, seq_length: Any, input_names: list[str] | None
) -> dict[str, torch.Tensor]:
    """Token ids for the arguments of a transformers model."""
    if not batch_size or not seq_length:
        raise InvalidArgument(
            "is_hf_model needs batch_size and seq_length: of the input, or [of the input, the labels]"
        )
    lengths = list(seq_length) if isinstance(seq_length, (list, tuple)) else [seq_length]
    known = argument_names(model)
    if input_names is None:
        encoder_decoder = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
        input_names = ["input_ids", "attention_mask"] + (["labels"] if encoder_decoder else [])
    made = {}
    for name in input_names:
        if name not in known:
            raise InvalidArgument(f"input {name}: the module takes {', '.join(known)}")
        length = lengths[-1] if name.startswith("decoder") or name == "labels" else lengths[0]
        value = torch.zeros if name in _IDS else torch.ones
        made[name] = value(batch_size, length, dtype=torch.int64)
    return made
