"""The process that copies a recording to a spool while the program trains.

A process of its own: it takes no time of the training's interpreter, and copies what is left when the program is
killed. It reads orders from its standard input, a line of JSON each, and ends after the order "end" or with the
program.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from espalier.errors import FailedPrecondition, NotFound, PermissionDenied
from espalier.flor import spooling, targets
from espalier.flor.messages import say
from espalier.flor.store import Version

_CLAIM_SECONDS = 10.0  # that the program waits for a number at its beginning
_POLL = 1.0
_SAY_SECONDS = 3.0  # after which the end of the program says why it waits
_LONGEST_PAUSE = 60.0
_LEFT = 3  # the exit status if something is not copied
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from espalier.flor import spooler; spooler.main()"
)


class Spooler:
    """The program's side of the process."""

    def __init__(self, url: str, timeout: float):
        """timeout: seconds that the end waits for a spool that does not answer."""
        targets.check_for_writing(url)
        self._url = url
        command = [sys.executable, "-c", _START, json.dumps(sys.path), url, str(timeout)]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
        self._answers: queue.Queue[str] = queue.Queue()
        self._silent = False
        threading.Thread(target=self._read, name="flor-spooler", daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            for line in self._process.stdout:
                self._answers.put(line)
        self._answers.put("")

    def _order(self, **order: Any) -> bool:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            return True
        except (OSError, ValueError):
            return False

    def claim(self, experiment: str, identity: str, least: int) -> int:
        """A number for a new recording, from `least` on, that the spool lacks; `least` if it does not answer."""
        if not self._silent and self._order(claim=experiment, id=identity, least=least):
            with contextlib.suppress(queue.Empty, ValueError):
                return int(self._answers.get(timeout=_CLAIM_SECONDS))
        if not self._silent:
            self._silent = True  # a late answer would be taken for that to another question
            say(f"{self._url} gave no number: {experiment}@{least} may be another recording there")
        return least

    def follow(self, version: Version) -> None:
        """Copies this recording from now on."""
        if not self._order(experiment=version.experiment, number=version.number, folder=str(version.folder)):
            say(f"the process that copies to {self._url} has ended; nothing of {version} is copied")

    def finish(self, version: Version) -> None:
        """Waits until everything is copied, or the spool has not answered for too long."""
        self._order(end=True)
        try:
            try:
                status = self._process.wait(_SAY_SECONDS)
            except subprocess.TimeoutExpired:
                say(f"copying what is left of {version} to {self._url}; Ctrl-C leaves it here")
                status = self._process.wait()
        except KeyboardInterrupt:
            self._process.terminate()
            status = self._process.wait()
        if status not in (0, _LEFT):  # otherwise it has said what is left
            say(
                f"the process that copied to {self._url} was ended by {status}. What is left is copied by "
                f"python -m espalier.flor spool {version.experiment} {self._url}"
            )

    def abandon(self) -> None:
        """Lets go of the process, in a child of the program: the program alone gives orders."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()


class _Stopped(BaseException):
    """A signal has ended the process."""


class _Copying:
    """What the process does."""

    def __init__(self, url: str, timeout: float):
        self._url, self._timeout = url, timeout
        self._target: targets.Target | None = None
        self._version: Version | None = None
        self._copier: spooling.Copier | None = None
        self._said: set[str] = set()
        self._error = ""
        self._refused = False  # the spool has another recording of this number
        self._hopeless = False  # the last error will not pass within a minute
        self._failures = 0
        self._not_before = 0.0
        self._ending = False
        self._moved, self._moved_at = 0, time.monotonic()  # bytes, and when there were more

    def _opened(self) -> targets.Target:
        if self._target is None:
            self._target = targets.open_target(self._url)
        return self._target

    def claim(self, experiment: str, identity: str, least: int) -> str:
        """The answer to an order for a number: "" if the spool does not answer."""
        until = time.monotonic() + _CLAIM_SECONDS
        while True:
            try:
                return str(spooling.claim(self._opened(), experiment, identity, least))
            except Exception as error:
                self._failed(error)
                if self._hopeless or time.monotonic() + 1 > until:
                    return ""
                time.sleep(1)

    def follow(self, version: Version) -> None:
        """Copies a recording from now on."""
        if self._version is None:  # not before: the program waits for its number
            with contextlib.suppress(OSError, AttributeError):
                os.nice(10)
        self._version, self._copier = version, spooling.Copier(self._opened, version)

    def _failed(self, error: Exception) -> None:
        self._error, self._failures = str(error), self._failures + 1
        self._refused = isinstance(error, FailedPrecondition)
        self._hopeless = isinstance(error, (FailedPrecondition, PermissionDenied, NotFound))
        self._not_before = time.monotonic() + min(2.0 ** min(self._failures, 10), _LONGEST_PAUSE)
        kind = f"{type(error).__name__} {getattr(error, 'errno', '')}"
        if kind not in self._said:
            self._said.add(kind)
            then = "" if self._refused else ": it is tried again"
            say(f"WARNING: cannot copy to {self._url}: {error}. Training goes on{then}")

    def round(self, last: bool = False) -> bool:
        """Copies what is new, unless the spool shall rest; whether that has worked."""
        if self._copier is None or self._refused or (time.monotonic() < self._not_before and not last):
            return False
        try:
            self._copier.round(last)
        except Exception as error:  # whatever it is, later rounds may do better
            self._failed(error)
            return False
        if self._failures:
            self._failures, self._not_before = 0, 0.0
            say(f"copying to {self._url} works again")
        return True

    def end_soon(self) -> None:
        """From now on copying ends when nothing has been copied for too long."""
        self._moved_at = time.monotonic()
        self._ending = True

    def watch(self, *_: Any) -> None:
        """Called now and then by a timer: ends what waits for a spool that does not answer."""
        now = self._target.moved if self._target is not None else 0
        if now != self._moved:
            self._moved, self._moved_at = now, time.monotonic()
        elif self._ending and time.monotonic() - self._moved_at >= self._timeout:
            raise _Stopped("" if self._failures else f"nothing was copied for {self._timeout:g} s")

    def finish(self) -> None:
        """Copies what is left."""
        if self._version is None:
            return
        while not self.round(last=True) and not self._hopeless:
            self.watch()
            time.sleep(min(1.0, self._timeout / 10))

    def say_what_is_left(self, reason: str) -> bool:
        """Says what could not be copied, and why; whether all is there."""
        if (copier := self._copier) is None or (version := self._version) is None:
            return True
        left, checkpoints = copier.left()
        if not left:
            say(f"copied {version} to {self._url}: {copier.there()} checkpoints")
            return True
        remedy = (
            ""
            if self._refused
            else f". Copy the rest by python -m espalier.flor spool {version.experiment} {self._url}"
        )
        say(
            f"WARNING: {checkpoints} of {copier.there() + checkpoints} checkpoints of {version} are not copied to "
            f"{self._url}: {reason or self._error}{remedy}"
        )
        return False


def _stop(*_: Any) -> None:
    raise _Stopped("it was interrupted")


def _follow_orders(copying: _Copying) -> None:
    orders: queue.Queue[dict[str, Any]] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            order = json.loads(line)
            if "end" in order:
                break
            orders.put(order)
        copying.end_soon()  # also what is under way now
        orders.put({})

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            order = orders.get(timeout=_POLL)
        except queue.Empty:
            copying.round()
            continue
        if not order:
            copying.finish()
            return
        if "claim" in order:
            print(copying.claim(order["claim"], order["id"], order["least"]), flush=True)
        else:
            copying.follow(Version(order["experiment"], order["number"], Path(order["folder"])))


def main() -> None:
    """Runs the process: URL, TIMEOUT."""
    copying, reason = _Copying(sys.argv[1], float(sys.argv[2])), ""
    try:
        signal.signal(signal.SIGTERM, _stop)
        if hasattr(signal, "setitimer"):
            signal.signal(signal.SIGALRM, copying.watch)
            signal.setitimer(signal.ITIMER_REAL, 0.5, 0.5)
        _follow_orders(copying)
    except _Stopped as stopped:
        reason = str(stopped)
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0)
    done = copying.say_what_is_left(reason)
    os._exit(0 if done else _LEFT)  # a thread may wait for standard input, and the interpreter for it


__all__ = ["Spooler", "main"]
