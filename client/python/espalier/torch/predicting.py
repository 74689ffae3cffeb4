"""The outputs of a module, of examples of any number, by a session."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from espalier.data import is_numbers
from espalier.errors import InvalidArgument
from espalier.npz import as_array
from espalier.torch.module_graph import Columns, ModuleGraph, argument_names, to_graph
from espalier.v1 import graph_pb2

if TYPE_CHECKING:
    from espalier.session import Session

_OUTPUT = "prediction"


class _Predicting(nn.Module):  # type: ignore[misc]
    """A module beside a loss that is never trained, as every graph of a session has one."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module
        self.one = nn.Parameter(torch.ones(()))

        @functools.wraps(module.forward)  # it says which arguments there are
        def forward(*args: Any, **kwargs: Any) -> dict[str, Any]:
            outputs = module(*args, **kwargs)
            return {_OUTPUT: outputs, "loss": _first(outputs).float().mean() * self.one}

        self.forward = forward


def _first(outputs: Any) -> torch.Tensor:
    if isinstance(outputs, torch.Tensor):
        return outputs
    items = outputs.values() if isinstance(outputs, Mapping) else outputs if isinstance(outputs, (list, tuple)) else ()
    found = [item for item in items if isinstance(item, (torch.Tensor, Mapping, list, tuple))]
    if not found:
        raise InvalidArgument(f"the module returns {type(outputs).__name__}, which holds no tensor")
    return _first(found[0])


def predicting_graph(module: nn.Module, arguments: Columns, batch_size: int) -> ModuleGraph:
    """The graph of a module's outputs."""
    return to_graph(_Predicting(module), arguments, batch_size=batch_size, name=type(module).__name__)


def columns_of(module: nn.Module, data: Any) -> Columns:
    """The arguments of a module that `data` holds: a tensor, a tuple, a dict, or an iterable of such batches.

    Labels behind the arguments that the module needs are left out.
    """
    if isinstance(data, (torch.Tensor, np.ndarray)) or (isinstance(data, list) and is_numbers(data)):
        return [_tensor(data)]
    if isinstance(data, Mapping):
        names = argument_names(module)
        found = {name: _tensor(value) for name, value in data.items() if name in names}
        if not found:
            raise InvalidArgument(
                f"the data has the columns {', '.join(map(str, data))}, none of which is an argument of the module: "
                f"{', '.join(names)}"
            )
        return found
    arrays = isinstance(data, (tuple, list)) and all(hasattr(item, "shape") or is_numbers(item) for item in data)
    # A list of more arrays than arguments and labels holds batches.
    if arrays and data and (isinstance(data, tuple) or len(data) <= len(argument_names(module)) + 1):
        return [_tensor(item) for item in data[: max(1, _needed(module))]]
    if not isinstance(data, Iterable):
        raise InvalidArgument(
            f"data is a {type(data).__name__}; accepted: tensors, a tuple or dict of them, or an iterable of batches"
        )
    parts: list[Any] = [columns_of(module, element) for element in data]
    if not parts:
        raise InvalidArgument("data has no batches; was an iterator used up before?")
    if isinstance(parts[0], Mapping):
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return [torch.cat(list(column)) for column in zip(*parts, strict=True)]


def _needed(module: nn.Module) -> int:
    import inspect

    parameters = inspect.signature(module.forward).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.default is inspect.Parameter.empty and p.kind in positional for p in parameters)


def _tensor(item: Any) -> torch.Tensor:
    tensor = item if isinstance(item, torch.Tensor) else torch.as_tensor(as_array(item, "data"))
    if tensor.dim() == 0:
        raise InvalidArgument("a single number; dimension 0 must be the examples")
    return tensor.float() if tensor.dtype == torch.float64 else tensor


def named(columns: Columns, converted: ModuleGraph) -> dict[str, np.ndarray[Any, Any]]:
    """Columns by the names of the graph's inputs."""
    if isinstance(columns, Mapping):
        return {name: tensor.detach().cpu().numpy() for name, tensor in columns.items()}
    tensors = [columns] if isinstance(columns, torch.Tensor) else list(columns)
    return {n: t.detach().cpu().numpy() for n, t in zip(converted.inputs, tensors, strict=False)}


def predict(session: Session, converted: ModuleGraph, columns: Columns) -> dict[str, np.ndarray[Any, Any]]:
    """The outputs of the module, in its order."""
    return outputs_of(session, converted, named(columns, converted))


def outputs_of(
    session: Session,
    converted: ModuleGraph,
    arrays: Mapping[str, np.ndarray[Any, Any]],
    names: Mapping[str, str] | None = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """Outputs of the module, in its order, but its loss. `arrays`: by column; `names`: input -> its column.

    InvalidArgument for an output that does not have the examples in dimension 0.
    """
    there = {name for kind, name, _ in session.tensors if kind == "output"}
    passed = {}  # an output that is an input
    for output in converted.graph.proto.outputs:
        value = converted.graph.proto.values[output.value]
        if value.kind == graph_pb2.INPUT:
            passed[output.name] = arrays[(names or {}).get(value.name, value.name)]
    wanted = [name for name in converted.outputs if name != "loss"]
    missing = [name for name in wanted if name not in there and name not in passed]
    if missing:
        raise InvalidArgument(
            f"the module's output {missing[0].removeprefix(_OUTPUT).lstrip('.')} does not have the examples in "
            "dimension 0, so it is not that of any number of them; wrap the module in one that leaves it out"
        )
    found = session.predict(arrays, [name for name in wanted if name in there])
    return {name: found[name] if name in found else passed[name] for name in wanted}


def result(arrays: Mapping[str, np.ndarray[Any, Any]], prefix: str = _OUTPUT) -> Any:
    """Outputs as a module returns them: a tensor, a tuple, or a dict by "logits" or "past.0"."""
    found = {name[len(prefix) :].lstrip("."): torch.from_numpy(np.array(a)) for name, a in arrays.items()}
    if list(found) == [""]:
        return found[""]
    if all(name.isdigit() for name in found):
        return tuple(found[name] for name in sorted(found, key=int))
    return found


__all__ = ["columns_of", "outputs_of", "predict", "predicting_graph", "result"]
