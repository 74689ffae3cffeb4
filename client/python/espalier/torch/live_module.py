"""A module and a session that trains it: the same elements on both sides."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from espalier.errors import EspalierError, FailedPrecondition
from espalier.push_changes import PushChanges
from espalier.training import Callback, Run, TrainingResult

if TYPE_CHECKING:
    from espalier.session import Session
    from espalier.torch.module_graph import ModuleGraph


def write_back(converted: ModuleGraph, weights: Mapping[str, np.ndarray[Any, Any]], steps: int) -> None:
    """Puts trained elements into the module's tensors, and advances its counters by `steps`."""
    with torch.no_grad():
        for name, tensor in converted.tensors.items():
            if name in weights:
                tensor.copy_(torch.from_numpy(np.array(weights[name])).to(tensor.dtype))
        for tensor, step in converted.counters.values():
            tensor.add_(step * steps)


class LiveModule:
    """Keeps a module like the parameters of a session."""

    def __init__(self, session: Session, converted: ModuleGraph):
        self.session, self.converted = session, converted
        self._counted = int(session.forwards)
        self._read_at = self._counted, session.updates
        self._versions = self._now()

    def _now(self) -> dict[str, int]:
        return {name: tensor._version for name, tensor in self.converted.tensors.items()}

    def read(self, found: Mapping[str, np.ndarray[Any, Any]] | None = None) -> None:
        """Puts the session's parameters into the module, if there were steps since; counters count those.

        found: the parameters, if they are known.
        """
        at = self.session.forwards, self.session.updates
        if at == self._read_at and found is None:
            return
        write_back(self.converted, self.session.parameters() if found is None else found, at[0] - self._counted)
        self._counted, self._read_at, self._versions = at[0], at, self._now()

    def push(self) -> None:
        """Sends tensors of the module that were changed in place since they were read."""
        now = self._now()
        changed = [name for name, version in now.items() if version != self._versions[name]]
        if changed:
            tensors = self.converted.tensors
            self.session.set_parameters({name: tensors[name].detach().cpu().float().numpy() for name in changed})
            self._versions = now


class Following:
    """`first` and `last` stand around the callbacks of a fit: in a session they see the module as it is."""

    def __init__(self, converted: ModuleGraph, optimizer: Any):
        self.converted = converted
        self._groups = optimizer.param_groups if isinstance(optimizer, torch.optim.Optimizer) else []
        self.run: Run | None = None
        self.live: LiveModule | None = None
        self._rates: list[float] = []
        self.first: Callback = _First(self)
        self.last: Callback = PushChanges(self.push)

    def begin(self, run: Run) -> None:
        """The training begins."""
        self.run, self._rates = run, self._now()
        if run.session is not None:
            self.live = LiveModule(run.session, self.converted)
            run.refresh_model = self.live.read
            run.rate_observer = self._rate_is

    def _now(self) -> list[float]:
        return [float(group["lr"]) for group in self._groups]

    def _rate_is(self, rate: float) -> None:
        for group in self._groups:
            group["lr"] = rate
        self._rates = self._now()

    def push(self) -> None:
        """Sends what callbacks have set: learning rate, elements of the module."""
        rates = self._now()
        if rates != self._rates:
            assert self.run is not None
            if self.run.session is None:
                with contextlib.suppress(EspalierError):
                    self.run.job.cancel()
                raise FailedPrecondition(
                    "a callback has set the optimizer's learning rate, but a job trains by itself. Its class has "
                    "needs_session = True; or call fit(execution='session')"
                )
            self.run.set_learning_rate(rates[0])
        if self.live is not None:
            self.live.push()


class _First(Callback):
    def __init__(self, following: Following):
        self._following = following

    def on_begin(self, run: Run) -> None:
        self._following.begin(run)

    def on_epoch(self, run: Run, epoch: int, values: Mapping[str, float]) -> None:
        if self._following.live is not None:
            self._following.live.read()

    def on_end(self, run: Run, result: TrainingResult) -> None:
        if self._following.live is not None:
            self._following.live.read(result.weights())  # maybe those of the best validation

    def on_failure(self, run: Run) -> None:
        if self._following.live is not None:
            with contextlib.suppress(EspalierError):
                self._following.live.read()


__all__ = ["Following", "LiveModule", "write_back"]
