"""FlexFlow's `flexflow.torch.model`: a PyTorch model, from a file or a module.

torch_model = PyTorchModel("mymodel.ff")
(output,) = torch_model.apply(ffmodel, [input_tensor])
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from espalier.errors import InvalidArgument
from espalier.graph import dtype_name
from espalier.torch import fx
from espalier.torch.module_graph import Columns, ModuleGraph, argument_names, to_graph

if TYPE_CHECKING:
    from espalier.core import FFModel, Tensor

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
        self._names = input_names
        self._applied: ModuleGraph | None = None
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

    def apply(self, ffmodel: FFModel, input_tensors: Tensor | Sequence[Tensor] | Mapping[str, Tensor]) -> list[Tensor]:
        """Adds the model to an FFModel as one layer and returns its outputs in order, of which losses take the first.

        input_tensors: in the order of the model's arguments, or by their names; of is_hf_model without input_names
        (input_ids, attention_mask, decoder_input_ids or labels). The parameters begin with the module's values; they
        have the names of its state_dict. Errors as espalier.torch.to_graph.
        """
        from espalier.core.module import add_module

        named = self._by_name(input_tensors)
        examples = {
            name: torch.zeros(tensor.dims, dtype=getattr(torch, tensor.dtype)) for name, tensor in named.items()
        }
        batch = ffmodel._batch_size
        for name, tensor in named.items():
            if tensor.dims[0] != batch or tensor.batch_dim != 0:
                raise InvalidArgument(f"input {name} {tensor!r}: dimension 0 must be the batch of {batch} examples")
        made = self.to_graph(examples, batch_size=batch)
        self._applied = made
        results = []
        for output, (shape, dtype) in made.outputs.items():
            free = [d for d, length in enumerate(shape) if getattr(length, "free_symbols", None)]
            if len(free) > 1:
                raise InvalidArgument(f"output {output}: more than one dimension follows the batch: {shape}")
            batch_dim = free[0] if free else 0 if made.fixed_batch and shape and shape[0] == batch else None
            dims = [int(n.subs(dict.fromkeys(n.free_symbols, batch))) if d in free else n for d, n in enumerate(shape)]
            results.append((output, dims, dtype_name(dtype), batch_dim))
        results.sort(key=lambda result: result[0] != "logits")
        kind = type(self.module).__name__.lower()
        return add_module(ffmodel, "module" if kind == "graphmodule" else kind, made.graph, named, results)

    def to_ff(self, ffmodel: FFModel, input_tensors: Any, verbose: bool = False) -> list[Tensor]:
        """As apply."""
        return self.apply(ffmodel, input_tensors)

    torch_to_ff = to_ff

    def torch_to_file(self, filename: str | os.PathLike[str]) -> None:
        """Writes the module to a file, as espalier.torch.fx.torch_to_flexflow."""
        fx.torch_to_flexflow(self.module, filename)

    @staticmethod
    def file_to_ff(filename: str | os.PathLike[str], ffmodel: FFModel, input_tensors: Any) -> list[Tensor]:
        """PyTorchModel(filename).apply(ffmodel, input_tensors)."""
        return PyTorchModel(filename).apply(ffmodel, input_tensors)

    def read_back(self, ffmodel: FFModel) -> None:
        """Writes the trained parameters and running statistics of an FFModel into the module.

        InvalidArgument if apply() did not add it to that model.
        """
        trained = ffmodel.parameters()
        if self._applied is None or any(name not in trained for name in self._applied.tensors):
            raise InvalidArgument("the module was not applied to this model")
        with torch.no_grad():
            for name, tensor in self._applied.tensors.items():
                tensor.copy_(torch.from_numpy(trained[name]))

    def _by_name(self, given: Any) -> dict[str, Tensor]:
        if isinstance(given, Mapping):
            return dict(given)
        tensors = list(given) if isinstance(given, (list, tuple)) else [given]
        names = self._names or argument_names(self.module)
        if self._tokens is not None and self._names is None:
            names = list(self._tokens)
            if len(tensors) == 3 and names[-1] == "labels":
                # FlexFlow's example feeds the decoder and computes the loss of the logits.
                names = [*names[:-1], "decoder_input_ids"]
        if len(tensors) > len(names):
            raise InvalidArgument(f"{len(tensors)} tensors for the arguments {', '.join(names)}")
        return dict(zip(names, tensors, strict=False))


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


file_to_ff = PyTorchModel.file_to_ff
