"""What a Trainer is given, checked before anything is traced or trained."""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from espalier.errors import InvalidArgument
from espalier.session_callbacks import ModelCheckpoint
from espalier.spelling import meant
from espalier.torch.module_graph import METRICS

# Names of losses in Keras and FlexFlow that are not those of torch.nn.
_OTHER_NAMES = {
    "categorical_crossentropy": "CrossEntropyLoss",
    "sparse_categorical_crossentropy": "CrossEntropyLoss",
    "binary_crossentropy": "BCELoss",
    "mean_squared_error": "MSELoss",
    "mean_absolute_error": "L1Loss",
    "mae": "L1Loss",
}
# Files in which other programs would not look for what torch.save writes.
_OTHER_FILES = (".keras", ".h5", ".hdf5", ".npz", ".safetensors", ".onnx", ".zip")


def check_module(module: Any) -> None:
    """InvalidArgument unless it is a module."""
    if isinstance(module, type) and issubclass(module, nn.Module):
        raise InvalidArgument(f"the module is the class {module.__name__}; give an object: {module.__name__}(...)")
    if not isinstance(module, nn.Module):
        raise InvalidArgument(f"the module is a {type(module).__name__}; a torch.nn.Module is needed")


def check_loss(loss: Any) -> None:
    """InvalidArgument unless it is a loss of torch.nn, a function, or None."""
    if isinstance(loss, str):
        names = [name for name in dir(nn) if name.endswith("Loss")]
        plain = {name.removesuffix("Loss"): name for name in names}
        name = loss.lower().replace("_loss", "")
        hint = f"; did you mean nn.{_OTHER_NAMES[name]}()?" if name in _OTHER_NAMES else meant(name, plain)
        for short, full in plain.items():
            hint = hint.replace(f"'{short}'", f"nn.{full}()")
        raise InvalidArgument(
            f"loss={loss!r} is a name; accepted: a loss of torch.nn, as nn.CrossEntropyLoss(), a function of (outputs, "
            f"labels), or None for a module that returns its own loss{hint}"
        )
    if isinstance(loss, type):
        raise InvalidArgument(f"loss is the class {loss.__name__}; give an object: {loss.__name__}()")
    if loss is not None and not callable(loss):
        raise InvalidArgument(
            f"loss is a {type(loss).__name__}; accepted: a loss of torch.nn, a function of (outputs, labels), or None"
        )


def check_metrics(metrics: Sequence[str]) -> tuple[str, ...]:
    """The metrics. InvalidArgument for one that is unknown."""
    if isinstance(metrics, str):
        raise InvalidArgument(f"metrics={metrics!r}; give a list: metrics=[{metrics!r}]")
    for metric in metrics:
        if metric not in METRICS:
            raise InvalidArgument(
                f"metric {metric!r}: accepted are {', '.join(METRICS)}{meant(str(metric), METRICS)}; a callback can "
                "compute others from Trainer.predict"
            )
    return tuple(metrics)


def check_callbacks(callbacks: Iterable[Any]) -> None:
    """InvalidArgument for one that could not do its work at the end of an epoch."""
    for callback in callbacks:
        if inspect.isclass(callback):
            raise InvalidArgument(f"callbacks holds the class {callback.__name__}; give an object of it")
        if isinstance(callback, ModelCheckpoint):
            suffix = os.path.splitext(callback.filepath)[1].lower()
            if suffix in _OTHER_FILES and not callback.filepath.startswith("artifact:"):
                raise InvalidArgument(
                    f"ModelCheckpoint: {callback.filepath}: of a torch module the state_dict is written, as torch.save "
                    f"does, which is no {suffix} file; name it .pt or .pth, or artifact:NAME for a model at the "
                    "coordinator"
                )


__all__ = ["check_callbacks", "check_loss", "check_metrics", "check_module"]
