"""The weights of a model while a session trains it or computes with it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from espalier.errors import EspalierError
from espalier.keras.variable import Array, Variable

if TYPE_CHECKING:
    from espalier.session import Session

_FEW = 4  # weights that are fetched one by one; then all that are left


class _Snapshot:
    """The parameters of a session as they are now, fetched when somebody reads them."""

    def __init__(self, live: LiveWeights, found: Mapping[str, Array] | None = None):
        self._live = live
        self._found: dict[str, Array] = dict(found or {})
        self._whole = found is not None
        self._error: EspalierError | None = None

    def get(self, name: str) -> Array:
        """One of them. Unavailable if the session was lost before it was read."""
        with self._live.lock:
            if name not in self._found:
                if self._error is not None:
                    raise self._lost(name, self._error) from None
                try:
                    if len(self._found) < _FEW:
                        self._found[name] = self._live.session.get(name)
                    else:
                        self.load()
                except EspalierError as error:
                    if self._live.session.ended:
                        raise self._lost(name, error) from None
                    raise
            return self._found[name]

    @staticmethod
    def _lost(name: str, error: EspalierError) -> EspalierError:
        return type(error)(
            f"weight {name} is lost with the session that trained it: set the weights again, by set_weights or "
            f"load_weights of a checkpoint ({error})"
        )

    def load(self) -> None:
        """Fetches all of them."""
        if not self._whole:
            self._found, self._whole = self._live.session.parameters(), True

    def keep(self) -> None:
        """As load, before the session ends; an error is raised when somebody reads."""
        try:
            self.load()
        except EspalierError as error:
            self._error = error


class LiveWeights:
    """Keeps the variables of a model and the parameters of a session the same.

    `push` sends what was set here; after a command that changed parameters, `moved` lets the variables read them. Used
    under `lock`.
    """

    def __init__(self, session: Session, variables: Mapping[str, Variable], *, sent: bool):
        # sent: whether the session began with the elements that the variables have.
        self.session = session
        self.lock = threading.RLock()
        self._variables = dict(variables)
        self._snapshot = _Snapshot(self)
        self._versions: dict[str, int] = {}
        for name, variable in self._variables.items():
            if not variable.known:
                variable.assign_later(partial(self._snapshot.get, name))
                self._versions[name] = variable.version
            elif sent:
                self._versions[name] = variable.version

    def push(self) -> None:
        """Sends the weights that changed here."""
        changed = {n: v for n, v in self._variables.items() if self._versions.get(n) != v.version}
        if not changed:
            return
        self.session.set_parameters({n: v.layout.to_graph(v.numpy()) for n, v in changed.items()})
        self._versions.update({n: v.version for n, v in changed.items()})
        # Those that were not read yet are read from parameters of which some are other ones now: no matter.

    def moved(self, found: Mapping[str, Array] | None = None) -> None:
        """The parameters have changed there: whoever reads a weight from now on gets the present one.

        found: all of them, if they are known.
        """
        self._snapshot = _Snapshot(self, found)
        for name, variable in self._variables.items():
            variable.assign_later(partial(self._snapshot.get, name))
            self._versions[name] = variable.version

    def detach(self) -> None:
        """Before the session ends: fetches what the variables would read from it."""
        if any(self._versions.get(n) == v.version and not v.fetched for n, v in self._variables.items()):
            self._snapshot.keep()


__all__ = ["LiveWeights"]
