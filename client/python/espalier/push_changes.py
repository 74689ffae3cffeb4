"""What other callbacks have changed goes to the session before its next step."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from espalier.training import Callback, Run


class PushChanges(Callback):
    """Calls `push` after each hook that may have changed the model; stands behind the callbacks of the user."""

    def __init__(self, push: Callable[[], None]):
        self._push = push

    def on_begin(self, run: Run) -> None:
        """As Callback."""
        self._push()

    def before_step(self, run: Run, step: int) -> None:
        """As Callback."""
        self._push()

    def on_step(self, run: Run, step: int, values: Mapping[str, float]) -> None:
        """As Callback."""
        self._push()

    def on_epoch(self, run: Run, epoch: int, values: Mapping[str, float]) -> None:
        """As Callback."""
        self._push()


__all__ = ["PushChanges"]
