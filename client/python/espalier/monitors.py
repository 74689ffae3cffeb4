"""What callbacks watch, compared with what a training will report, before it begins."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from typing import Any

from espalier.callback import Callback
from espalier.errors import InvalidArgument
from espalier.spelling import meant

# What the steps of a session report besides the losses and metrics of a graph.
_BESIDES = ("gradient_norm", "learning_rate", "loss_scale")

_GET_LOGS = ("on_epoch_end", "on_train_batch_end", "on_batch_end", "on_epoch", "on_step")


def check(callbacks: Sequence[Any], trained: Iterable[str], validated: Iterable[str] | None) -> None:
    """InvalidArgument for a callback that watches what there will not be.

    trained: names of the values of steps; validated: of a validation, without "val_"; None: not known. Where a callback
    of the user may add values to the logs, only the early stopping is checked, which reads no logs.
    """
    names = [*trained]
    if validated is not None:
        names += [f"val_{name}" for name in validated]
    adds = any(_may_add(callback) for callback in callbacks)
    for callback in callbacks:
        if adds and isinstance(callback, Callback):
            continue
        for what, name in _watched(callback):
            if name in names or name in _BESIDES or (validated is None and name.startswith("val_")):
                continue
            who = f"{type(callback).__name__}: {what} {name!r}"
            if name.startswith("val_") and not any(known.startswith("val_") for known in names):
                raise InvalidArgument(f"{who}, but there are no validation examples; give validation_split")
            known = names if validated is not None else [*names, *(f"val_{value}" for value in names)]
            raise InvalidArgument(
                f"{who}, which will not be reported, only {', '.join(sorted(names))}{meant(name, known)}"
            )


def _is_own(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("espalier.")


def _may_add(callback: Any) -> bool:
    return isinstance(callback, Callback) and not all(_is_own(getattr(callback, name)) for name in _GET_LOGS)


def _watched(callback: Any) -> list[tuple[str, str]]:
    # (how, name) of the values that a callback of this package reads.
    if not _is_own(type(callback)):
        return []
    found = []
    if isinstance(getattr(callback, "monitor", None), str) and getattr(callback, "save_best_only", True):
        found.append(("monitor is", callback.monitor))
    path = getattr(callback, "filepath", "")
    for _, field, _, _ in string.Formatter().parse(path):
        if field and field not in ("epoch", "batch"):
            found.append(("filepath names", field))
    return found


__all__ = ["check"]
