"""FlexFlow's `flexflow.torch.fx`: a PyTorch module as a file.

    import espalier.torch.fx as fx

    fx.torch_to_flexflow(model, "mymodel.ff")

The file is not FlexFlow's text format. It is a safetensors file: the module's parameters and buffers, and in the header
the calls that torch.fx traced and the settings of the layers. It holds no code, and reading it runs none but PyTorch's
own layers and functions. `espalier.torch.model.PyTorchModel` reads it.
"""

from __future__ import annotations

import builtins
import json
import math
import operator
import os
import struct
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx, nn

from espalier import safetensors_io
from espalier.errors import InvalidArgument

_FORMAT = "espalier.torch.fx 1"
# Where functions of a file may come from; `_is_allowed` says which.
_SPACES: dict[str, Any] = {
    "torch": torch,
    "functional": nn.functional,
    "operator": operator,
    "math": math,
    "builtins": builtins,
}
_BUILTINS = {"getattr", "len", "int", "float", "max", "min", "abs", "sum", "tuple", "list"}
# Not among them: what calls functions that it is given.
_OPERATORS = {"add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "matmul", "getitem", "invert"}
_OPERATORS |= {"iadd", "isub", "imul", "itruediv", "eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "xor", "not_"}
_DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}


def _is_allowed(space: str, name: str) -> bool:
    """Whether a file may call a function: one that computes with tensors or numbers."""
    if space == "torch":
        return hasattr(torch._C._VariableFunctions, name) or name in torch.functional.__all__
    if space == "functional":
        return name in _FUNCTIONAL
    return name in {"operator": _OPERATORS, "math": vars(math), "builtins": _BUILTINS}.get(space, ())


_FUNCTIONAL = {
    name
    for name, value in vars(nn.functional).items()
    if name.isidentifier()
    and not name.startswith("_")
    and callable(value)
    and not isinstance(value, type)
    and str(getattr(value, "__module__", None) or "torch._C").startswith(
        ("torch.nn.functional", "torch._C", "torch._jit")
    )
}


def _is_layer(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.") and not list(module.children())


class _Tracer(fx.Tracer):  # type: ignore[misc]
    """Traces through everything but layers of torch.nn."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return _is_layer(m)


def torch_to_flexflow(model: nn.Module, filename: str | os.PathLike[str]) -> None:
    """Writes a module to a file that PyTorchModel reads; see above for its format.

    InvalidArgument for a module that torch.fx cannot trace (control flow that depends on data), or whose calls are not
    PyTorch's; PyTorchModel takes such a module itself.
    """
    graph = trace(model)
    calls = [_call(node) for node in graph.nodes]
    layers: dict[str, Any] = {}
    tensors: dict[str, torch.Tensor] = {}
    tied: dict[str, str] = {}
    seen: dict[int, str] = {}
    frozen = []
    for node in graph.nodes:
        if node.op == "call_module":
            layer = model.get_submodule(node.target)
            layers[node.target] = _settings(node.target, layer)
            prefixed = {f"{node.target}.{key}": t for key, t in _tensors(layer)}
        elif node.op == "get_attr":
            prefixed = {node.target: _attribute(model, node.target)}
        else:
            continue
        for key, tensor in prefixed.items():
            first = seen.setdefault(id(tensor), key)
            if first != key:
                tied[key] = first
                continue
            tensors[key] = tensor.detach().cpu()
            if isinstance(tensor, nn.Parameter) and not tensor.requires_grad:
                frozen.append(key)
    buffers = [key for key, tensor in tensors.items() if not _is_parameter(model, key)]
    described = {"calls": calls, "layers": layers, "tied": tied, "frozen": frozen, "buffers": buffers}
    metadata = {"format": _FORMAT, "graph": json.dumps(described, separators=(",", ":"))}
    safetensors_io.save_file({key: tensor.numpy() for key, tensor in tensors.items()}, filename, metadata)


def trace(model: nn.Module) -> fx.Graph:
    """The calls of a module, by torch.fx. InvalidArgument if they depend on data."""
    try:
        return _Tracer().trace(model)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InvalidArgument(
            f"torch.fx cannot trace {type(model).__name__}: {reason}; give the module itself: PyTorchModel(module)"
        ) from error


def _is_parameter(model: nn.Module, key: str) -> bool:
    return isinstance(_attribute(model, key), nn.Parameter)


def _attribute(model: nn.Module, path: str) -> Any:
    found: Any = model
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _tensors(layer: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*layer.named_parameters(remove_duplicate=False), *layer.named_buffers(remove_duplicate=False)]


def _settings(name: str, layer: nn.Module) -> dict[str, Any]:
    """Class and plain attributes of a layer."""
    plain = {}
    for key, value in vars(layer).items():
        if key.startswith("_") and key not in ("_reversed_padding_repeated_twice", "_qkv_same_embed_dim"):
            continue
        plain[key] = _encoded(value, f"layer {name}: its attribute {key}")
    absent = [key for key, value in {**layer._parameters, **layer._buffers}.items() if value is None]
    return {"class": f"{type(layer).__module__}.{type(layer).__name__}", "settings": plain, "absent": absent}


def _call(node: fx.Node) -> dict[str, Any]:
    what = f"call {node.name}"
    target = _function_name(node.target, what) if node.op == "call_function" else node.target
    made = {"name": node.name, "op": node.op, "target": target}
    made["args"] = _encoded(node.args, what)
    made["kwargs"] = _encoded(node.kwargs, what)
    return made


def _function_name(function: Callable[..., Any], what: str) -> str:
    name = getattr(function, "__name__", "")
    for space, module in _SPACES.items():
        if getattr(module, name, None) is function and _is_allowed(space, name):
            return f"{space}.{name}"
    raise InvalidArgument(f"{what}: the function {name or function} is not PyTorch's; give the module to PyTorchModel")


def _encoded(value: Any, what: str) -> Any:
    """A value as JSON."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, (list, tuple)):
        return {"list" if isinstance(value, list) else "tuple": [_encoded(item, what) for item in value]}
    if isinstance(value, slice):
        return {"slice": [_encoded(item, what) for item in (value.start, value.stop, value.step)]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value)}
    if value is Ellipsis:
        return {"ellipsis": True}
    if isinstance(value, Mapping):
        return {"dict": {str(key): _encoded(item, what) for key, item in value.items()}}
    if callable(value):
        return {"function": _function_name(value, what)}
    raise InvalidArgument(f"{what} is a {type(value).__name__}, which a file cannot hold; give the module itself")


def read(path: str | os.PathLike[str]) -> fx.GraphModule:
    """The module in a file of torch_to_flexflow, in training mode. InvalidArgument for another file."""
    wrong = f"{os.fspath(path)} is no file of espalier.torch.fx.torch_to_flexflow; FlexFlow's own files are not read"
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            metadata = json.loads(file.read(min(length, 1 << 28))).get("__metadata__", {})
    except FileNotFoundError:
        raise InvalidArgument(f"{os.fspath(path)}: there is no such file; torch_to_flexflow writes one") from None
    except (ValueError, struct.error, AttributeError):
        raise InvalidArgument(wrong) from None
    if metadata.get("format") != _FORMAT:
        raise InvalidArgument(wrong)
    described = json.loads(metadata["graph"])
    tensors = {key: torch.from_numpy(array.copy()) for key, array in safetensors_io.load_file(path).items()}
    return _Reader(described, tensors).module()


class _Reader:
    """Builds the module that a file describes."""

    def __init__(self, described: dict[str, Any], tensors: dict[str, torch.Tensor]):
        self._described = described
        self._nodes: dict[str, fx.Node] = {}
        buffers, frozen = set(described["buffers"]), set(described["frozen"])
        self._tensors = {
            key: tensor if key in buffers else nn.Parameter(tensor, requires_grad=key not in frozen)
            for key, tensor in tensors.items()
        }
        for key, first in described["tied"].items():
            self._tensors[key] = self._tensors[first]

    def module(self) -> fx.GraphModule:
        root = nn.Module()
        for name, layer in self._described["layers"].items():
            self._place(root, name, self._layer(name, layer))
        graph = fx.Graph()
        for call in self._described["calls"]:
            if call["op"] == "get_attr":
                self._place(root, call["target"], self._tensors[call["target"]])
            target = self._function(call["target"]) if call["op"] == "call_function" else call["target"]
            self._check_call(call)
            node = graph.create_node(
                call["op"], target, self._decoded(call["args"]), self._decoded(call["kwargs"]), call["name"]
            )
            self._nodes[call["name"]] = node
        return fx.GraphModule(root, graph).train()

    @staticmethod
    def _check_call(call: dict[str, Any]) -> None:
        """torch.fx makes a program of the calls, so names must be nothing else."""
        words = [*str(call["target"]).lstrip("*").split("."), *call["kwargs"].get("dict", {})]
        attribute = call["args"].get("tuple", []) if call["target"] == "builtins.getattr" else []
        words += [item for item in attribute if isinstance(item, str)]
        private = any(word.startswith("_") for word in words) and call["op"] in ("call_method", "call_function")
        # Names of layers may have dashes, which torch.fx writes in quotes: "block1-0".
        layer = call["op"] in ("call_module", "get_attr")
        if private or not all(
            (word.replace("-", "_") if layer else word).isidentifier() or word.isdecimal() for word in words
        ):
            raise InvalidArgument(f"the file has a call of {call['target']!r}, which torch_to_flexflow does not write")

    @staticmethod
    def _place(root: nn.Module, path: str, value: Any) -> None:
        *parents, last = path.split(".")
        for part in parents:
            if not hasattr(root, part):
                root.add_module(part, nn.Module())
            root = getattr(root, part)
        if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
            root.register_buffer(last, value)
        else:
            setattr(root, last, value)

    def _layer(self, name: str, described: dict[str, Any]) -> nn.Module:
        space, _, kind = described["class"].rpartition(".")
        cls = getattr(nn, kind, None)
        if not space.startswith("torch.nn.") or not isinstance(cls, type) or not issubclass(cls, nn.Module):
            raise InvalidArgument(f"layer {name} of the file is a {described['class']}, which is none of torch.nn")
        layer: Any = object.__new__(cls)
        nn.Module.__init__(layer)
        for key, value in described["settings"].items():
            setattr(layer, key, self._decoded(value))
        for key in described["absent"]:
            layer.register_parameter(key, None)
        for key, tensor in self._tensors.items():
            if key.rpartition(".")[0] == name:
                self._place(layer, key.rpartition(".")[2], tensor)
        return layer

    @staticmethod
    def _function(name: str) -> Any:
        space, _, function = name.partition(".")
        found = getattr(_SPACES.get(space), function, None)
        if found is None or not _is_allowed(space, function):
            raise InvalidArgument(f"the file calls {name}, which is no function of PyTorch")
        return found

    def _decoded(self, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        ((kind, inner),) = value.items()
        if kind == "node":
            return self._nodes[inner]
        if kind in ("list", "tuple", "slice"):
            items = [self._decoded(item) for item in inner]
            return items if kind == "list" else tuple(items) if kind == "tuple" else slice(*items)
        if kind == "dict":
            return {key: self._decoded(item) for key, item in inner.items()}
        if kind == "dtype":
            return _DTYPES[inner]
        return ... if kind == "ellipsis" else self._function(inner)
