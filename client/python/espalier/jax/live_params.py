"""The parameters of a Trainer while a session trains them: callbacks see and change them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from espalier.errors import EspalierError
from espalier.jax.convert import Converted
from espalier.push_changes import PushChanges
from espalier.training import Callback, Run, TrainingResult

if TYPE_CHECKING:
    from espalier.jax.trainer import Trainer


class Following:
    """`first` and `last` stand around the callbacks of a fit."""

    def __init__(self, trainer: Trainer, converted: Converted):
        self.trainer, self.converted = trainer, converted
        self.run: Run | None = None
        self.first: Callback = _First(self)
        self.last: Callback = PushChanges(self.push)
        self._updates = 0
        self._seen: tuple[Any, Any] = (None, None)

    def begin(self, run: Run) -> None:
        """The training begins."""
        self.run = run
        self._seen = (self.trainer.params, self.trainer.state)
        if run.session is not None:
            self._updates = run.session.updates
            run.refresh_model = self.read

    def read(self, found: Mapping[str, np.ndarray[Any, Any]] | None = None) -> None:
        """Gives the trainer the session's parameters, if there were steps since. found: them, if they are known."""
        session = None if self.run is None else self.run.session
        if session is None or (found is None and session.updates == self._updates):
            return
        self._updates = session.updates
        self.trainer._take(self.converted, session.parameters() if found is None else found)
        self._seen = (self.trainer.params, self.trainer.state)

    def push(self) -> None:
        """Sends parameters and state that callbacks have replaced."""
        session = None if self.run is None else self.run.session
        if session is None:
            return
        changed = {}
        now = (self.trainer.params, self.trainer.state)
        for tree, seen, names in zip(now, self._seen, (self.converted.params, self.converted.state), strict=True):
            if tree is not seen:
                for leaf, name in zip(jax.tree_util.tree_leaves(tree), names, strict=True):
                    if name:
                        changed[name] = self.converted.stored(name, np.asarray(leaf))
        there = {name for kind, name, _ in session.tensors if kind == "parameter"}
        changed = {name: array for name, array in changed.items() if name in there}
        if changed:
            session.set_parameters(changed)
        self._seen = now


class _First(Callback):
    def __init__(self, following: Following):
        self._following = following

    def on_begin(self, run: Run) -> None:
        self._following.begin(run)

    def on_epoch(self, run: Run, epoch: int, values: Mapping[str, float]) -> None:
        self._following.read()

    def on_end(self, run: Run, result: TrainingResult) -> None:
        if run.session is not None:
            self._following.read(result.weights())  # maybe those of the best validation

    def on_failure(self, run: Run) -> None:
        with contextlib.suppress(EspalierError):
            self._following.read()


__all__ = ["Following"]
