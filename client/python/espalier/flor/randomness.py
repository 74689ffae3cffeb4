"""The states of random generators: of Python, NumPy and torch, and of generators in variables of the program.

Of torch those of the CPU and of CUDA devices. What cannot be recorded or restored is said once.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, ModuleType
from typing import Any

import numpy as np

from espalier.flor import objects, trees, values
from espalier.flor.messages import say
from espalier.flor.trees import Node, State

_said: set[str] = set()


def capture_global(state: State, parts: Sequence[str] = ("python", "numpy", "torch", "cuda")) -> Node:
    """The generators that belong to the process."""
    node: dict[str, Node] = {}
    if "python" in parts:
        version, words, gauss = random.getstate()
        node["python"] = {
            "version": version,
            "words": state.add("random.python", np.array(words, np.uint32)),
            "gauss": trees.encode(gauss, "random.gauss", state, trees.refuse),
        }
    if "numpy" in parts:
        node["numpy"] = trees.encode(np.random.get_state(legacy=False), "random.numpy", state, trees.refuse)
    torch = trees.torch_module()
    if torch is not None and "torch" in parts:
        node["torch"] = trees.tensor_node(torch.get_rng_state(), "random.torch", state)
        if "cuda" in parts and torch.cuda.is_available() and torch.cuda.is_initialized():
            states = torch.cuda.get_rng_state_all()
            node["cuda"] = [trees.tensor_node(each, f"random.cuda.{n}", state) for n, each in enumerate(states)]
        accelerator = getattr(torch, "accelerator", None)
        if "cuda" in parts and accelerator is not None and accelerator.is_available():
            kind = accelerator.current_accelerator().type
            if kind != "cuda":
                _say_once(
                    f"the random states of {kind} devices are not recorded: a replay differs where the program draws "
                    "random numbers there, as dropout does"
                )
    return node


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        say(text)


def restore_global(node: Node, state: State) -> None:
    """Sets the generators of the process back."""
    if "python" in node:
        python = node["python"]
        words = tuple(int(word) for word in state.get(python["words"]))
        random.setstate((python["version"], words, trees.decode(python["gauss"], state)))
    if "numpy" in node:
        np.random.set_state(trees.decode(node["numpy"], state))
    torch = trees.torch_module()
    if torch is not None and "torch" in node:
        torch.set_rng_state(trees.tensor_of(node["torch"], state))
        recorded = node.get("cuda", ())
        here = torch.cuda.device_count() if torch.cuda.is_available() else 0
        for number, each in enumerate(recorded[:here]):
            torch.cuda.set_rng_state(trees.tensor_of(each, state), number)
        if len(recorded) > here:
            _say_once(
                f"WARNING: the recording has the random states of {len(recorded)} CUDA devices, and {here} are here: "
                "the replay differs where the program draws random numbers on the others, as dropout does"
            )


def snapshot() -> dict[str, tuple[Node, State]]:
    """The generators of the process by name. Those of devices are left out: reading them waits for the devices."""
    made = {}
    for part in ("python", "numpy", "torch"):
        state = State()
        if node := capture_global(state, (part,)):
            made[part] = (node, state)
    return made


def as_texts(taken: dict[str, tuple[Node, State]]) -> dict[str, str]:
    """The generators of a snapshot as texts: those of equal states are equal."""
    texts = {}
    for part, (node, state) in taken.items():
        arrays = {name: values.encode(array) for name, array in state.arrays.items()}
        texts[part] = json.dumps([node, arrays], separators=(",", ":"))
    return texts


def restore_text(text: str) -> None:
    """Sets a generator back to one of as_texts."""
    node, arrays = json.loads(text)
    restore_global(node, State({name: values.decode(array) for name, array in arrays.items()}))


def seed_devices() -> None:
    """Seeds CUDA's generators from the CPU's, which the recording has: an unseeded program repeats on devices, too.

    The generators of devices do not exist yet as the program begins.
    """
    torch = trees.torch_module()
    torch.cuda.manual_seed_all(torch.initial_seed())


def _generators(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Random generators in variables of a frame, and those of its data loaders, by name."""
    torch = trees.torch_module()
    loader = getattr(sys.modules.get("torch.utils.data"), "DataLoader", None)
    kinds: tuple[type, ...] = (np.random.Generator, np.random.RandomState, random.Random)
    if torch is not None:
        kinds += (torch.Generator,)
    scopes = [("local", frame.f_locals)]
    if frame.f_globals is not frame.f_locals:
        scopes.append(("global", frame.f_globals))
    for scope, variables in scopes:
        for name, value in list(variables.items()):
            if isinstance(value, kinds):
                if not isinstance(value, random.Random) or type(value) is random.Random:
                    yield f"{scope} {name}", value
            elif loader is not None and isinstance(value, loader):
                for attribute, owner in (("generator", value), ("sampler", getattr(value, "sampler", None))):
                    generator = getattr(owner, "generator", None)
                    if isinstance(generator, kinds):
                        yield f"{scope} {name}.{attribute}", generator


def capture_variables(frame: FrameType, state: State) -> Node:
    """The generators in variables of a frame."""
    nodes: dict[str, Node] = {}
    seen: dict[int, str] = {}
    for name, generator in _generators(frame):
        if id(generator) not in seen:
            seen[id(generator)] = name
            nodes[name] = objects.capture(generator, f"random.{name}", state)
    return nodes


def restore_variables(frame: FrameType, node: Node, state: State) -> list[str]:
    """Sets the generators in variables of a frame back; returns the names that it has no more."""
    missing = dict(node)
    for name, generator in _generators(frame):
        if name in missing:
            objects.restore(generator, missing.pop(name), name, state)
    return list(missing)


class _AfterImport(importlib.abc.MetaPathFinder):
    """Calls a function once a module has been imported."""

    def __init__(self, name: str, call: Callable[[], None]):
        self._name, self._call = name, call

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader, execute = spec.loader, spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                loader.exec_module = execute  # type: ignore[method-assign]
                execute(module)
                self._call()

            loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def once_imported(name: str, call: Callable[[], None]) -> None:
    """Calls now if a module is there, otherwise as soon as the program has imported it."""
    if name in sys.modules:
        call()
    else:
        sys.meta_path.insert(0, _AfterImport(name, call))


__all__ = [
    "as_texts",
    "capture_global",
    "capture_variables",
    "once_imported",
    "restore_global",
    "restore_text",
    "restore_variables",
    "seed_devices",
    "snapshot",
]
