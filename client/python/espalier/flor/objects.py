"""Saving and restoring the objects that a program gives to SkipBlock.end.

Objects that can change are restored in place: modules, optimizers and whatever has a state dict, tensors, NumPy arrays,
random generators, lists, dicts, sessions. Numbers, texts, tuples, JAX's arrays and pytrees are made anew.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np

from espalier.errors import DataLoss, FailedPrecondition
from espalier.flor import sessions, trees
from espalier.flor.messages import say
from espalier.flor.trees import Node, State

_warned: set[str] = set()


def is_stateful(value: Any) -> bool:
    """Whether an object has a state dict that can be loaded."""
    return (
        not isinstance(value, type)
        and callable(getattr(value, "state_dict", None))
        and callable(getattr(value, "load_state_dict", None))
    )


def in_place(value: Any) -> bool:
    """Whether restoring changes the object itself, so that its variable need not be assigned."""
    torch = trees.torch_module()
    if type(value) is tuple:
        return all(in_place(item) for item in value)
    if torch is not None and isinstance(value, (torch.Tensor, torch.Generator)):
        return True
    kinds = (list, dict, set, deque, bytearray, np.ndarray, np.random.Generator, np.random.RandomState, random.Random)
    return value is None or isinstance(value, kinds) or is_stateful(value) or sessions.is_session(value)


def capture(value: Any, path: str, state: State) -> Node:
    """The node of an object, with copies of its arrays in `state`. InvalidArgument for what cannot be saved."""
    if is_stateful(value):
        return _capture_stateful(value, path, state)
    return trees.encode(value, path, state, lambda inner, where: _capture_other(inner, where, state))


def _capture_stateful(value: Any, path: str, state: State) -> Node:
    node: dict[str, Any] = {"$": "state_dict", "type": type(value).__name__}
    node["state"] = trees.encode(
        value.state_dict(), path, state, lambda inner, where: _capture_other(inner, where, state)
    )
    torch = trees.torch_module()
    if torch is not None and isinstance(value, torch.nn.Module):
        node["training"] = [module.training for module in value.modules()]
    return node


def _capture_other(value: Any, path: str, state: State) -> Node:
    torch, jax = trees.torch_module(), trees.jax_module()
    if is_stateful(value):
        return _capture_stateful(value, path, state)
    if torch is not None and isinstance(value, torch.Generator):
        return {"$": "torch_generator", "state": trees.tensor_node(value.get_state(), path, state)}
    if isinstance(value, np.random.Generator):
        return {"$": "numpy_generator", "state": trees.encode(value.bit_generator.state, path, state, trees.refuse)}
    if isinstance(value, np.random.RandomState):
        return {"$": "numpy_state", "state": trees.encode(value.get_state(legacy=False), path, state, trees.refuse)}
    if type(value) is random.Random:
        return {"$": "python_random", "state": trees.encode(value.getstate(), path, state, trees.refuse)}
    if sessions.is_session(value):
        return sessions.capture(value, path, state)
    if jax is not None:
        if isinstance(value, jax.Array):
            return _capture_jax(value, path, state)
        leaves, structure = jax.tree_util.tree_flatten_with_path(value)
        if not jax.tree_util.treedef_is_leaf(structure):
            names = [jax.tree_util.keystr(where) for where, _ in leaves]
            nodes = [capture(leaf, path + name, state) for name, (_, leaf) in zip(names, leaves, strict=True)]
            return {"$": "pytree", "paths": names, "leaves": nodes}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return {"$": "namedtuple", "items": [capture(item, f"{path}.{n}", state) for n, item in enumerate(value)]}
    return trees.refuse(value, path)


def _capture_jax(value: Any, path: str, state: State) -> Node:
    jax = trees.jax_module()
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        node = trees.array_node(np.array(jax.random.key_data(value)), path, state, "jax")
        return node | {"key_of": str(jax.random.key_impl(value))}
    node = trees.array_node(np.array(value), path, state, "jax")
    return node | {"weak": True} if value.weak_type else node


def _restore_jax(current: Any, node: Node, state: State) -> Any:
    jax = trees.jax_module()
    array = trees.array_of(node, state)
    if "key_of" in node:
        return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=node["key_of"])
    made = jax.numpy.asarray(array.item() if node.get("weak") and array.ndim == 0 else array)
    if isinstance(current, jax.Array) and current.shape == made.shape:
        return jax.device_put(made, current.sharding)
    return made


def restore(current: Any, node: Node, path: str, state: State) -> Any:
    """The object as it was saved: `current`, changed, wherever it can change. DataLoss if it is of another kind."""
    kind = node.get("$") if isinstance(node, dict) else None
    torch = trees.torch_module()
    if kind == "state_dict":
        _restore_stateful(current, node, path, state)
    elif kind == "session":
        _expect(sessions.is_session(current), current, node, path)
        sessions.restore(current, node, path, state)
    elif kind == "torch_generator":
        _expect(torch is not None and isinstance(current, torch.Generator), current, node, path)
        current.set_state(trees.tensor_of(node["state"], state))
    elif kind == "numpy_generator":
        _expect(isinstance(current, np.random.Generator), current, node, path)
        current.bit_generator.state = trees.decode(node["state"], state)
    elif kind == "numpy_state":
        _expect(isinstance(current, np.random.RandomState), current, node, path)
        current.set_state(trees.decode(node["state"], state))
    elif kind == "python_random":
        _expect(isinstance(current, random.Random), current, node, path)
        current.setstate(trees.decode(node["state"], state))
    elif kind == "jax":
        return _restore_jax(current, node, state)
    elif kind in ("pytree", "namedtuple", "tuple"):
        return _restore_immutable(current, node, path, state)
    else:
        return _restore_plain(current, node, path, state)
    return current


def _expect(right: bool, current: Any, node: Node, path: str) -> None:
    if not right:
        raise FailedPrecondition(
            f"{path} is a {type(current).__name__}; the recording has a {node.get('type', node['$'])} there. The "
            "program gives other objects to SkipBlock.end than when it was recorded"
        )


def _restore_stateful(current: Any, node: Node, path: str, state: State) -> None:
    _expect(is_stateful(current), current, node, path)
    current.load_state_dict(trees.decode(node["state"], state))
    torch = trees.torch_module()
    if torch is not None and isinstance(current, torch.nn.Module):
        for module, training in zip(current.modules(), node.get("training", ()), strict=False):
            module.training = training
        for parameter in current.parameters():
            parameter.grad = None  # gradients are not recorded: none is better than that of another epoch


def _restore_immutable(current: Any, node: Node, path: str, state: State) -> Any:
    kind = node["$"]
    if kind == "pytree":
        jax = trees.jax_module()
        _expect(jax is not None, current, node, path)
        leaves, structure = jax.tree_util.tree_flatten_with_path(current)
        names = [jax.tree_util.keystr(where) for where, _ in leaves]
        _expect(names == node["paths"], current, node, path)
        return jax.tree_util.tree_unflatten(
            structure,
            [
                restore(leaf, inner, path + name, state)
                for name, (_, leaf), inner in zip(names, leaves, node["leaves"], strict=True)
            ],
        )
    before = list(current) if isinstance(current, tuple) else []
    before += [None] * (len(node["items"]) - len(before))
    items = [restore(a, b, f"{path}.{n}", state) for n, (a, b) in enumerate(zip(before, node["items"], strict=False))]
    if kind == "namedtuple":
        _expect(hasattr(current, "_fields"), current, node, path)
        return type(current)(*items)
    if isinstance(current, tuple) and len(current) == len(items) and all(map(_is, current, items)):
        return current
    return tuple(items)


def _is(one: Any, other: Any) -> bool:
    return one is other


def _restore_plain(current: Any, node: Node, path: str, state: State) -> Any:
    kind = node.get("$") if isinstance(node, dict) else None
    torch = trees.torch_module()
    if kind == "array" and isinstance(current, np.ndarray):
        array = trees.array_of(node, state)
        same = current.shape == array.shape and current.dtype.newbyteorder("=") == array.dtype
        if same and current.flags.writeable:
            np.copyto(current, array)
            return current
        return array
    if kind == "tensor" and torch is not None and isinstance(current, torch.Tensor):
        tensor = trees.tensor_of(node, state)
        if current.shape == tensor.shape:
            with torch.no_grad():
                current.copy_(tensor)
            return current
        return tensor
    if kind in ("dict", "ordered", "counter"):
        before = dict(current) if isinstance(current, dict) else {}
        items = {}
        for key_node, inner in node["items"]:
            key = trees.decode(key_node, state)
            items[key] = restore(before.get(key), inner, f"{path}.{key}", state)
        if isinstance(current, dict):
            current.clear()
            current.update(items)
            return current
        return items
    if kind in ("list", "deque"):
        before_items = list(current) if isinstance(current, (list, deque)) else []
        made = []
        for number, inner in enumerate(node["items"]):
            old = before_items[number] if number < len(before_items) else None
            made.append(restore(old, inner, f"{path}.{number}", state))
        if isinstance(current, (list, deque)):
            current.clear()
            current.extend(made)
            return current
        return made if kind == "list" else deque(made)
    value = trees.decode(node, state)
    if kind == "set" and isinstance(current, set):
        current.clear()
        current.update(value)
        return current
    if kind == "bytearray" and isinstance(current, bytearray):
        current[:] = value
        return current
    return value


def uncovered(objects: list[Any]) -> list[tuple[int, list[Any]]]:
    """For each optimizer of PyTorch, by its place: the parameters that no given module or tensor has."""
    torch = trees.torch_module()
    if torch is None:
        return []
    covered: set[int] = set()
    for value in objects:
        if isinstance(value, torch.nn.Module):
            covered.update(id(parameter) for parameter in value.parameters())
        elif isinstance(value, torch.Tensor):
            covered.add(id(value))
        elif isinstance(value, (list, tuple)):
            for item in value:
                modules = item.parameters() if isinstance(item, torch.nn.Module) else [item]
                covered.update(id(parameter) for parameter in modules)
    found = []
    for place, value in enumerate(objects):
        if isinstance(value, torch.optim.Optimizer):
            tensors = [each for group in value.param_groups for each in group["params"] if id(each) not in covered]
            if tensors:
                found.append((place, tensors))
    return found


def warn_uncovered(name: str, block: str) -> None:
    """Says once that an optimizer came without its module."""
    if (key := f"{block}/{name}") not in _warned:
        _warned.add(key)
        say(
            f"block {block!r}: the optimizer {name} was given without its module. Its parameters are saved with it; "
            "what else the module has, such as the running statistics of a batch norm, is not: give it to end(), too"
        )


def first_difference(one: State, other: State) -> str:
    """The first array, by name, whose bits differ between two states; "" if there is none."""
    for name in [*one.arrays, *(name for name in other.arrays if name not in one.arrays)]:
        if name not in one.arrays or name not in other.arrays:
            return name
        a, b = one.arrays[name], other.arrays[name]
        if a.dtype != b.dtype or a.shape != b.shape or a.tobytes() != b.tobytes():
            return name
    return ""


__all__ = [
    "DataLoss",
    "capture",
    "first_difference",
    "in_place",
    "is_stateful",
    "restore",
    "uncovered",
    "warn_uncovered",
]
