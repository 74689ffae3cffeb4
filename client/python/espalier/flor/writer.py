"""Writing checkpoints on a thread, one at a time; what happens when the disk is full.

The thread has the program's priority: with a lower one it would hold the interpreter's lock, for which the training
waits, while other programs compute.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from espalier.flor import store
from espalier.flor.adaptive import Costs
from espalier.flor.messages import say
from espalier.flor.trees import Node, State

FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass
class Order:
    """A checkpoint to write."""

    path: Path
    node: Node
    state: State
    costs: Costs


def thin_out(folder: Path) -> int:
    """Deletes every second checkpoint of each block in a folder, the newest excepted; returns how many."""
    count = 0
    for block in folder.iterdir() if folder.is_dir() else ():
        files = sorted(block.glob("*.safetensors"), key=lambda each: each.stat().st_mtime_ns)
        for path in files[-2::-2]:
            path.unlink(missing_ok=True)
            count += 1
    return count


class Writer:
    """One thread, one checkpoint in flight."""

    def __init__(self, checkpoints: Path, every_costs: Callable[[], list[Costs]]):
        self._checkpoints, self._every_costs = checkpoints, every_costs
        self._condition = threading.Condition()
        self._order: Order | None = None
        self._thread: threading.Thread | None = None
        self._said: set[str] = set()

    def submit(self, order: Order) -> None:
        """Hands a checkpoint over; waits until the one before is written."""
        with self._condition:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="flor-writer", daemon=True)
                self._thread.start()
            while self._order is not None:
                self._condition.wait()
            self._order = order
            self._condition.notify_all()

    def flush(self) -> None:
        """Waits until everything is written."""
        with self._condition:
            while self._order is not None:
                self._condition.wait()

    def _run(self) -> None:
        while True:
            with self._condition:
                while self._order is None:
                    self._condition.wait()
                order = self._order
            began = time.thread_time()
            try:
                self._write(order)
            except Exception as error:  # the training goes on, whatever the reason
                self._say(f"the checkpoint {order.path} was not written: {error}. Training goes on without it")
            order.costs.add(time.thread_time() - began)
            with self._condition:
                self._order = None
                self._condition.notify_all()

    def _write(self, order: Order) -> None:
        while True:
            try:
                store.write_checkpoint(order.path, order.node, order.state)
                return
            except OSError as error:
                if error.errno not in FULL:
                    raise
                if not self.make_room():
                    self._say(
                        f"the disk of {self._checkpoints} is full, and no more checkpoints can go: this one is left "
                        "out. Training goes on"
                    )
                    return

    def make_room(self) -> bool:
        """Thins the recording out; False if there is nothing to thin."""
        deleted = thin_out(self._checkpoints)
        if deleted:
            for costs in self._every_costs():
                costs.stride *= 2
            say(
                f"the disk of {self._checkpoints} is full: every second checkpoint was deleted ({deleted}), and fewer "
                "will follow. Training goes on"
            )
        return deleted > 0

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            say(text)


__all__ = ["Order", "Writer", "thin_out"]
