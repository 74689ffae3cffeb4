"""Where in the user's program something is: the line, and the layer as a path from the module."""

from __future__ import annotations

import os
import re
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import fx, nn

import espalier

# PyTorch's own files, and this package's, are not the user's program.
_HIDDEN = tuple(os.path.dirname(os.path.abspath(str(package.__file__))) + os.sep for package in (torch, espalier))
_LIBRARIES = ("/site-packages/", "/dist-packages/", sysconfig.get_paths()["stdlib"].replace(os.sep, "/") + "/")
_FRAME = re.compile(r'File "(.+?)", line (\d+)')


def _lines(frames: Iterable[tuple[str, int]]) -> tuple[str, str]:
    """The innermost line of the user's program, and that of a library on PyTorch; empty where there is none."""
    user = library = ""
    for path, line in frames:
        whole = os.path.abspath(path)
        if whole.startswith(_HIDDEN) or not os.path.isabs(path):
            continue
        if any(part in whole.replace(os.sep, "/") for part in _LIBRARIES):
            library = f"{path}:{line}"
        else:
            user = f"{path}:{line}"
    return user, library


def line_of(node: fx.Node, caller: str = "") -> str:
    """ "net.py:12": the user's line behind a traced node, else a library's, else `caller`, else PyTorch's."""
    frames = [(path, int(line)) for path, line in _FRAME.findall(node.meta.get("stack_trace") or "")]
    user, library = _lines(frames)
    return user or library or caller or (":".join(map(str, frames[-1])) if frames else "")


def library_line_of(node: fx.Node) -> str:
    """The line of a library that the user's line called, if it called one; otherwise empty."""
    frames = [(path, int(line)) for path, line in _FRAME.findall(node.meta.get("stack_trace") or "")]
    user, library = _lines(frames)
    return library if user else ""


def layer_path(node: fx.Node) -> tuple[str, str]:
    """Path of the layer of a traced node, as in state_dict, and its class; empty outside of the module's layers."""
    stack = node.meta.get("nn_module_stack") or {}
    named = [(path, kind) for path, kind in stack.values() if path and kind != path]
    if not named:
        return "", ""
    path, kind = named[-1]
    return _stripped(path), str(kind if isinstance(kind, str) else kind.__name__).rpartition(".")[2]


def layer_of(node: fx.Node) -> str:
    """ "self.encoder.layers.0 (TransformerEncoderLayer)"; empty outside of layers."""
    return _shown(*layer_path(node))


def _stripped(path: str) -> str:
    return "" if path == "module" else path.removeprefix("module.")


def _shown(path: str, kind: str) -> str:
    return f"self.{path} ({kind})" if path else kind


def of_error(error: BaseException, module: nn.Module) -> str:
    """ "; at net.py:12, in self.head (Linear)": where in the user's program a trace has failed; empty if unknown."""
    names = {id(part): (_stripped(path), type(part).__name__) for path, part in module.named_modules() if path}
    for cause in _causes(error):
        frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
        lines = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(cause.__traceback__)]
        user, library = _lines(lines)
        parts = [f"at {user or library}"] if user or library else []
        layers = [names[id(layer)] for frame in frames if (layer := _layer(frame)) is not None and id(layer) in names]
        parts += [f"in {_shown(*layers[-1])}"] if layers else []
        if parts:
            return "; " + ", ".join(parts)
    return ""


def _layer(frame: FrameType) -> Any:
    return frame.f_locals.get("self") if frame.f_code.co_name == "forward" else None


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


__all__ = ["layer_of", "layer_path", "library_line_of", "line_of", "of_error"]
