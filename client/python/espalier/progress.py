"""Progress of training, for terminals, notebooks and logs."""

from __future__ import annotations

import logging
import math
import shutil
import sys
import time
from collections.abc import Mapping
from typing import IO, Any

from espalier.errors import InvalidArgument
from espalier.notes import warn
from espalier.plan import seconds
from espalier.v1 import training_pb2

logger = logging.getLogger("espalier")
_TERMINAL_PAUSE = 0.1  # seconds between two drawings
_NOTEBOOK_PAUSE = 0.25
_LOG_PAUSE = 10.0
_NOT_SHOWN = ("learning_rate", "gradient_norm")


def number(value: float) -> str:
    """A loss or metric: "0.3146", "1.2e-05"."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:.4f}" if 1e-3 <= abs(value) < 1e4 else f"{value:.4g}"


def values_text(values: Mapping[str, float]) -> str:
    """ "loss 0.3146  accuracy 0.9010"."""
    names = sorted(values.keys() - set(_NOT_SHOWN), key=lambda name: (name != "loss", name))
    return "  ".join(f"{name} {number(values[name])}" for name in names)


def in_notebook() -> bool:
    """Whether output is shown by a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and getattr(shell, "kernel", None) is not None


class Printer:
    """Shows a job. `verbose`: 0 nothing but warnings, 1 a bar (in a log: a line every 10 s), 2 a line for each epoch.

    Notes and warnings of the coordinator are printed, or with verbose=0 become warnings (EspalierWarning).
    """

    def __init__(self, verbose: int = 1, out: IO[str] | None = None):
        if verbose not in (0, 1, 2):
            raise InvalidArgument(f"verbose is {verbose}; accepted: 0, 1 or 2")
        self.verbose = verbose
        self._out = sys.stdout if out is None else out
        self._terminal = hasattr(self._out, "isatty") and self._out.isatty()
        self._notebook: Any = None
        self._is_notebook = not self._terminal and out is None and in_notebook()
        self._drawn_at = -math.inf
        self._open = ""  # the line that is redrawn
        self._pending = ""
        self._pace = 0.0  # seconds a step, smoothed

    @property
    def unicode(self) -> bool:
        """Whether the output can show block characters."""
        return "utf" in (getattr(self._out, "encoding", "") or "").lower()

    def note(self, text: str, kind: str = "note") -> None:
        """Something that the user should know."""
        if self.verbose == 0:
            warn(text)
        else:
            self.message(f"{kind}: {text}")

    def message(self, text: str) -> None:
        """A line; nothing with verbose=0."""
        if self.verbose == 0:
            return
        line = self._open
        self._clear()
        print(text, file=self._out, flush=True)
        if line:
            self._draw(line)

    def job_message(self, job_id: str, message: training_pb2.JobMessage) -> None:
        """A message of the coordinator. Details go to the log "espalier" (INFO); with verbose=0 all but warnings do."""
        if message.level == training_pb2.JobMessage.WARNING:
            self.note(message.text, "warning")
        elif message.level == training_pb2.JobMessage.DETAIL or self.verbose == 0:
            logger.info("job %s: %s", job_id, message.text)
        else:
            self.message(message.text)

    def step(
        self, done: int, total: int, took: float, values: Mapping[str, float], epoch: str, unit: str = "step"
    ) -> None:
        """After each step: how many are done, seconds that it took, its values."""
        if self.verbose != 1:
            return
        self._pace = took if self._pace == 0 else 0.9 * self._pace + 0.1 * took
        pause = _TERMINAL_PAUSE if self._terminal else _NOTEBOOK_PAUSE if self._is_notebook else _LOG_PAUSE
        now = time.monotonic()
        if self._drawn_at == -math.inf and pause == _LOG_PAUSE:
            self._drawn_at = now
        line = self._line(done, total, values, f"{epoch}{unit}")
        self._pending = line
        if now - self._drawn_at >= pause or done == total:
            self._drawn_at = now
            self._draw(line)

    def epoch(self, number_: int, epochs: int, values: Mapping[str, float], took: float) -> None:
        """After each epoch, with the means of its steps' values."""
        if self.verbose == 2:
            self.message(f"epoch {number_}/{epochs}  {values_text(values)}  {seconds(took)}")

    def finish(self, text: str) -> None:
        """At the end: draws the last step and writes a line."""
        if self.verbose == 0:
            return
        if self._pending:
            self._draw(self._pending)
        if self._open:
            print(file=self._out)
        self._open, self._notebook = "", None
        self.message(text)

    def suspend(self) -> None:
        """Before something else writes to the terminal."""
        self._clear()

    def _line(self, done: int, total: int, values: Mapping[str, float], what: str) -> str:
        head = f"{what} {done:>{len(str(total))}}/{total} {100 * done // max(total, 1):3d}%"
        left = seconds(max(0.0, (total - done) * self._pace))
        tail = "".join(f"  {part}" for part in (values_text(values), f"{left} left") if part)
        width = shutil.get_terminal_size().columns if self._terminal else 100
        room = min(30, width - 1 - len(head) - len(tail) - 1)
        if not (self._terminal or self._is_notebook) or room < 5:
            return (head + tail)[: width - 1] if self._terminal else head + tail
        full = room * done // max(total, 1)
        bar = (
            ("\u2588" * full + " " * (room - full))
            if self.unicode or self._is_notebook
            else "#" * full + "." * (room - full)
        )
        return f"{head} {bar}{tail}"

    def _draw(self, line: str) -> None:
        if self._terminal:
            print(f"\r{line}\x1b[K", end="", file=self._out, flush=True)
            self._open = line
        elif self._is_notebook:
            self._show_in_notebook(line)
        else:
            print(line, file=self._out, flush=True)
        self._pending = ""

    def _show_in_notebook(self, line: str) -> None:
        from IPython.display import display

        bundle = {"text/plain": line}
        if self._notebook is None:
            self._notebook = display(bundle, raw=True, display_id=True)
        else:
            self._notebook.update(bundle, raw=True)

    def _clear(self) -> None:
        if self._open:
            print("\r\x1b[K", end="", file=self._out, flush=True)
            self._open = ""
