"""State as JSON and arrays: what a checkpoint consists of. Nothing is pickled.

A node is the JSON of one object: a number, text, or a dict whose "$" says its kind and which names its arrays.
"""

from __future__ import annotations

import base64
import math
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from espalier.errors import DataLoss, InvalidArgument

Array = np.ndarray[Any, Any]
Node = Any
_STORED = frozenset(["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "b1"])
_DICTS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
REMEDY = (
    "give an object with state_dict() and load_state_dict(), an array, a random generator, an Espalier session, or "
    "lists and dicts of these, numbers and texts"
)


def torch_module() -> Any:
    """PyTorch if the program has imported it."""
    return sys.modules.get("torch")


def jax_module() -> Any:
    """JAX if the program has imported it."""
    return sys.modules.get("jax")


@dataclass
class State:
    """The arrays of a checkpoint by name."""

    arrays: dict[str, Array] = field(default_factory=dict)

    def add(self, path: str, array: Array) -> str:
        """Keeps an array; returns the name it is found by."""
        name, number = path, 2
        while name in self.arrays:
            name, number = f"{path}~{number}", number + 1
        self.arrays[name] = array
        return name

    def get(self, name: str) -> Array:
        """An array by its name. DataLoss if the checkpoint lacks it."""
        if name not in self.arrays:
            raise DataLoss(f"the checkpoint lacks the array {name}")
        return self.arrays[name]


def array_node(array: Array, path: str, state: State, kind: str = "array") -> Node:
    """The node of a NumPy array, which is kept as it is: give a copy."""
    node: dict[str, Any] = {"$": kind}
    if array.dtype.hasobject or array.dtype.names:
        raise InvalidArgument(f"{path}: an array of {array.dtype} cannot be saved; accepted are arrays of numbers")
    if array.dtype.str[1:] not in _STORED and array.dtype.name != "bfloat16":
        node |= {"dtype": array.dtype.name if array.dtype.kind == "V" else array.dtype.str, "shape": list(array.shape)}
        array = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
    node["key"] = state.add(path, array.astype(array.dtype.newbyteorder("="), copy=False))
    return node


def array_of(node: Node, state: State) -> Array:
    """The array of a node."""
    array = state.get(node["key"])
    if "dtype" in node:
        name = node["dtype"]
        if name[0] in "<>|=":
            dtype = np.dtype(name)
        else:
            import ml_dtypes

            dtype = np.dtype(getattr(ml_dtypes, name))
        array = np.frombuffer(array.tobytes(), dtype).reshape(node["shape"]).copy()
    return array


def tensor_node(tensor: Any, path: str, state: State) -> Node:
    """The node of a torch tensor: a copy on the host, to the bit."""
    torch = torch_module()
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise InvalidArgument(f"{path}: a sparse or quantized tensor cannot be saved; give a dense one")
    if not tensor.dtype.is_complex and not tensor.dtype.is_floating_point:
        copied = tensor.detach().to("cpu", copy=True).contiguous()
        return array_node(copied.numpy(), path, state, "tensor") | {"torch": str(tensor.dtype)[6:]}
    copied = tensor.detach().resolve_conj().resolve_neg().to("cpu", copy=True).contiguous()
    bits = {1: torch.uint8, 2: torch.int16}.get(copied.element_size())
    if copied.dtype not in (torch.float64, torch.float32, torch.float16, torch.complex64, torch.complex128):
        if bits is None:
            raise InvalidArgument(f"{path}: a tensor of {tensor.dtype} cannot be saved")
        copied = copied.view(bits)
    return array_node(copied.numpy(), path, state, "tensor") | {"torch": str(tensor.dtype)[6:]}


def tensor_of(node: Node, state: State) -> Any:
    """The torch tensor of a node, on the host."""
    torch = torch_module()
    array = array_of(node, state)
    tensor = torch.from_numpy(np.array(array, copy=True).reshape(array.shape))
    dtype = getattr(torch, node["torch"])
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


def encode(value: Any, path: str, state: State, other: Callable[[Any, str], Node]) -> Node:
    """The node of a value. other: makes those of objects that are no plain data."""
    if value is None or isinstance(value, (bool, str)) or type(value) is int:
        return value
    if type(value) is float:
        return value if math.isfinite(value) else {"$": "float", "text": str(value)}
    if type(value) is complex:
        return {"$": "complex", "parts": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, (bytes, bytearray)):
        return {"$": type(value).__name__, "data": base64.b64encode(value).decode()}
    if type(value) in (list, tuple, set, frozenset, deque):
        items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        nodes = [encode(item, f"{path}.{number}", state, other) for number, item in enumerate(items)]
        return {"$": type(value).__name__, "items": nodes}
    kind = next((name for name, cls in _DICTS.items() if type(value) is cls), None)
    kind = "dict" if type(value) is defaultdict else kind
    if kind is not None:
        pairs = [
            [encode(key, f"{path}.key", state, other), encode(item, f"{path}.{key}", state, other)]
            for key, item in value.items()
        ]
        node = {"$": kind, "items": pairs}
        if getattr(value, "_metadata", None) is not None:
            node["metadata"] = encode(value._metadata, f"{path}.metadata", state, other)
        return node
    if isinstance(value, np.ndarray):
        return array_node(value.copy(), path, state)
    if isinstance(value, np.generic):
        return array_node(np.array(value), path, state, "scalar")
    torch = torch_module()
    if torch is not None:
        if isinstance(value, torch.Tensor):
            return tensor_node(value, path, state)
        if isinstance(value, (torch.dtype, torch.device, torch.Size)):
            return {
                "$": "torch",
                "type": type(value).__name__,
                "value": list(value) if isinstance(value, tuple) else str(value),
            }
    return other(value, path)


def refuse(value: Any, path: str) -> Node:
    """InvalidArgument: the object cannot be saved."""
    raise InvalidArgument(
        f"{path} is a {type(value).__module__}.{type(value).__name__}, which has no state dict: {REMEDY}"
    )


def decode(node: Node, state: State) -> Any:
    """The plain data of a node. DataLoss for a node of another kind."""
    if not isinstance(node, dict):
        return node
    kind = node.get("$")
    if kind == "float":
        return float(node["text"])
    if kind == "complex":
        return complex(*(float.fromhex(part) for part in node["parts"]))
    if kind in ("bytes", "bytearray"):
        data = base64.b64decode(node["data"])
        return data if kind == "bytes" else bytearray(data)
    if kind in ("list", "tuple", "set", "frozenset", "deque"):
        items = [decode(item, state) for item in node["items"]]
        return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}[kind](items)
    if kind in _DICTS:
        made = _DICTS[kind]()
        for key, item in node["items"]:
            made[decode(key, state)] = decode(item, state)
        if "metadata" in node:
            made._metadata = decode(node["metadata"], state)  # type: ignore[attr-defined]
        return made
    if kind == "array":
        return array_of(node, state)
    if kind == "scalar":
        return array_of(node, state)[()]
    if kind == "tensor":
        return tensor_of(node, state)
    if kind == "torch":
        torch, value = torch_module(), node["value"]
        return {"dtype": lambda: getattr(torch, value[6:]), "device": lambda: torch.device(value)}.get(
            node["type"], lambda: torch.Size(value)
        )()
    raise DataLoss(f"the checkpoint has a node of the kind {kind!r}, which is not plain data")


__all__ = [
    "REMEDY",
    "Array",
    "Node",
    "State",
    "array_node",
    "array_of",
    "decode",
    "encode",
    "jax_module",
    "refuse",
    "tensor_node",
    "tensor_of",
    "torch_module",
]
