"""What `compile` was told, and the state of the optimizer, in files of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from espalier.keras.serialization import named, of_keras, serialize
from espalier.session_state import SessionState

if TYPE_CHECKING:
    from espalier.keras.models import Model
    from espalier.npz import Array

_GIVEN = ("loss", "loss_weights", "metrics", "weighted_metrics")


def config(model: Model) -> dict[str, Any]:
    """The arguments of compile as plain values, and how far the optimizer is."""
    compiled = model._compiled
    assert compiled is not None
    found = {name: _plain(getattr(compiled, name)) for name in _GIVEN}
    state = model._optimizer_state()
    done = None if state is None else {"updates": state.updates, "forwards": state.forwards}
    optimizer = compiled.optimizer
    return {
        **found,
        "optimizer": serialize(optimizer),
        "no_weight_decay": {"paths": list(optimizer.no_decay_paths), "names": list(optimizer.no_decay_names)},
        "trained": model._trained_before or state is not None,
        "state": done,
    }


def _plain(given: Any) -> Any:
    if isinstance(given, Mapping) and named(given) is None:
        return {str(key): _plain(item) for key, item in given.items()}
    if isinstance(given, (list, tuple)):
        return [_plain(item) for item in given]
    given = of_keras(given)
    if callable(given) and hasattr(given, "__name__"):
        return given.__name__  # a function or class of Keras, which compile knows by its name
    return serialize(given)


def restore(model: Model, saved: Mapping[str, Any], optimizer: Mapping[str, Array] | None) -> None:
    """Compiles a model as `config` tells; `optimizer` has the tensors of the optimizer's state, if there are any."""
    model.compile(saved["optimizer"], **{name: saved[name] for name in _GIVEN})
    made = model.optimizer
    made.no_decay_paths = tuple(saved["no_weight_decay"]["paths"])
    made.no_decay_names = tuple(saved["no_weight_decay"]["names"])
    model._trained_before = bool(saved["trained"])
    if optimizer is not None and saved["state"] is not None:
        model._state = SessionState(dict(optimizer), **saved["state"])


__all__ = ["config", "restore"]
