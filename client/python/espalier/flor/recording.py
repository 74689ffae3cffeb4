"""Recording: values to a journal, checkpoints of blocks in the background."""

from __future__ import annotations

import functools
import os
import platform
import sys
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from espalier.flor import checkpoints, randomness, sources, store, values, writer
from espalier.flor.adaptive import Costs, budget
from espalier.flor.command_line import Flags
from espalier.flor.messages import say
from espalier.flor.runtime import Working
from espalier.flor.spooler import Spooler
from espalier.flor.trees import Node, State

_LINES = 1000  # that the journal keeps in memory at most
_SECONDS = 1.0  # after which the next line writes those that are in memory

_quoted = functools.lru_cache(maxsize=1000)(store.one_line)  # names of logged values


@dataclass
class Block:
    """An open block."""

    label: str
    place: str  # the key of the place where it is
    at: list[Any]
    body: str
    began: float
    random: dict[str, tuple[Node, State]] | None = None  # generators as it began; None: not worth it


def describe(words: list[str], kwargs: dict[str, str]) -> dict[str, Any]:
    """What is run, for version.json."""
    script = Path(sys.argv[0]).absolute() if sys.argv and sys.argv[0] not in ("", "-c", "-m") else None
    text = ""
    if script is not None and script.is_file() and script.suffix == ".py":
        text = script.read_text(encoding="utf-8", errors="replace")
    return {
        "script": str(script or ""),
        "arguments": words,
        "kwargs": kwargs,
        "source": text,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
    }


class Recorder(Working):
    """Records one version of an experiment."""

    def __init__(self, flags: Flags, version: store.Version, spooler: Spooler | None = None):
        super().__init__(flags)
        self.version = version
        self._spooler = spooler
        self._journal = store.Journal(version.journal)
        self._costs: dict[str, Costs] = {}
        self._writer = writer.Writer(version.folder / "checkpoints", lambda: list(self._costs.values()))
        self._bookkeeping = 0.0  # seconds that the program has waited for logging and all else that is no checkpoint
        self._generators: dict[str, str] = {}  # the random states that the journal has
        self._random_seconds, self._random_count = 0.0, 0  # that writing them took, and how often
        self._iteration_random: dict[str, tuple[Node, State]] | None = None
        self._forced = False  # a block of this iteration has a checkpoint, so that the later ones get one
        self._said_full = self._closed = False
        self._iteration_began = 0.0
        self._loop_began = time.monotonic()
        self._said_text: set[str] = set()
        self._began = self._flushed = time.monotonic()
        self._save_initial("process", ("python", "numpy"))
        early = "torch" in sys.modules  # and the program may have seeded CUDA already
        randomness.once_imported("torch", lambda: self._save_torch(early))
        say(f"recording {version} in {version.folder}" + (f", copied to {flags.SPOOL}" if spooler else ""))
        if spooler is not None:
            spooler.follow(version)

    def _save_initial(self, part: str, parts: tuple[str, ...]) -> None:
        state = State()
        node = randomness.capture_global(state, parts)
        try:
            store.write_checkpoint(self.version.initial(part), node, state)
        except OSError as error:
            say(f"the random states of the beginning were not written: {error}")

    def _save_torch(self, early: bool) -> None:
        self._save_initial("torch", ("torch",))
        if not early:
            randomness.seed_devices()

    # The journal.

    def _add(self, line: dict[str, Any]) -> None:
        self._add_line(store.one_line(line))

    def _add_line(self, line: str) -> None:
        if self._closed:  # a generator that is closed as the interpreter ends
            return
        self._journal.add_text(line)
        now = time.monotonic()
        if self._journal.pending >= _LINES or now - self._flushed > _SECONDS:
            self._flushed = now
            self._flush_journal()

    def _flush_journal(self) -> None:
        if self._closed:
            return
        try:
            self._journal.flush()
        except OSError as error:
            if error.errno in writer.FULL and self._writer.make_room():
                self._flush_journal()
            elif not self._said_full:
                self._said_full = True
                say(f"the values of {self.version} cannot be written now: {error}. They are kept in memory")

    def log(self, name: str, value: Any) -> None:
        """Records a value at this place."""
        began = time.monotonic()
        encoded = values.encode(value)
        if values.is_text_of_object(encoded) and name not in self._said_text:
            self._said_text.add(name)
            say(f"log {name!r}: a {type(value).__name__} is stored as its text; log numbers, texts, arrays, lists")
        number = self.place.ordinal("log", name)
        text = store.one_line(encoded)
        self._add_line(f'{{"log":{_quoted(name)},"at":{self.place.text},"n":{number},"value":{text}}}')
        self._bookkeeping += time.monotonic() - began

    def arg(self, name: str, default: Any, required: bool) -> Any:
        """An argument of the program, recorded."""
        value = super().arg(name, default, required)
        self._add({"arg": name, "value": values.encode(value)})
        self._flush_journal()
        return value

    # Loops.

    def main_loop(self, name: str, iterable: Iterable[Any], frame: FrameType) -> Iterator[Any]:
        """The iterations of the main loop; within another one, an ordinary loop."""
        if self.main is not None or self.blocks:
            yield from self._plain_loop(name, iterable)
            return
        self.main = label = self.place.label("loop", name)
        depth = self.place.depth
        self._iteration_began = time.monotonic()
        if not self._costs:  # not what the program did before
            self._loop_began, self._bookkeeping = self._iteration_began, 0.0
        try:
            for index, value in enumerate(iterable):
                self.place.enter_iteration(label, index, value)
                self.blocks_in_iteration, self._forced = 0, False
                self._iteration_random = self._take_random(f"@{label}") if self.objects else None
                broken = True
                try:
                    yield value
                    broken = False
                finally:
                    if not (broken and self.blocks):  # an exception within a block: the iteration is not finished
                        self._finish_iteration(label, index, frame)
                    self.leave(depth)
        finally:
            self.main = None
            self._flush_journal()

    def _finish_iteration(self, label: str, index: int, frame: FrameType) -> None:
        if self.objects and not self.blocks_in_iteration and not self.blocks:
            random, began = self._iteration_random, self._iteration_began
            block = Block(f"@{label}", self.place.key, self.place.at, "", began, random)
            self._checkpoint(block, list(self.objects.values()), list(self.objects), frame, time.monotonic())
        self._add({"iteration": label, "index": index})
        began = time.monotonic()
        self._flush_journal()
        self._iteration_began = time.monotonic()
        self._bookkeeping += self._iteration_began - began

    def _block_loop(self, name: str, iterable: Iterable[Any], probed: bool | None, frame: FrameType) -> Iterator[Any]:
        self._enter(name, sources.body_hash(frame, loop=True))
        try:
            yield from self._plain_loop(name, iterable)
        finally:
            self._end(list(self.objects.values()), list(self.objects), frame, time.monotonic())

    # Blocks.

    def _enter(self, name: str, body: str) -> None:
        place, at = self.place.key, self.place.at
        label = self.place.label("block", name)
        self.place.enter_block(label)
        random = self._take_random(label)
        self.blocks.append(Block(label, place, at, body, time.monotonic(), random))

    def _take_random(self, label: str) -> dict[str, tuple[Node, State]] | None:
        """The random generators as a block begins, if writing them down takes little of its time.

        A replay sets them back: values that are logged only then may have drawn random numbers before the block.
        """
        costs = self._costs.get(label)
        seconds = self._random_seconds / max(self._random_count, 1)
        if costs is not None and seconds > self.flags.EPSILON * costs.compute:
            return None
        began = time.monotonic()
        taken = randomness.snapshot()
        self._random_seconds += time.monotonic() - began
        return taken

    def _changed_random(self, taken: dict[str, tuple[Node, State]]) -> dict[str, str]:
        """The texts of those that the journal does not have yet."""
        began = time.monotonic()
        texts = randomness.as_texts(taken)
        changed = {part: text for part, text in texts.items() if self._generators.get(part) != text}
        self._generators |= changed
        self._random_seconds += time.monotonic() - began
        self._random_count += 1
        return changed

    def step_into(self, name: str, probed: bool | None, frame: FrameType) -> bool:
        """A block begins."""
        began = time.monotonic()
        self._enter(name, sources.body_hash(frame))
        self._bookkeeping += time.monotonic() - began
        return True

    def end(self, values: tuple[Any, ...], frame: FrameType) -> list[Any]:
        """A block ends: its checkpoint, if it is worth it."""
        ended = time.monotonic()
        names = checkpoints.names_of(values, frame)
        checkpoints.check_assigned(values, names, frame)
        self._end(list(values), names, frame, ended)
        return list(values)

    def _end(self, objects: list[Any], names: list[str], frame: FrameType, ended: float) -> None:
        block: Block = self.ended()
        self.leave_block(block)
        counted = self._checkpoint(block, objects, names, frame, ended)
        self._bookkeeping += time.monotonic() - ended - counted

    def leave_block(self, block: Block) -> None:
        """Closes the scope of a block that has ended."""
        self.place.close_to(len(block.at))

    def _checkpoint(self, block: Block, objects: list[Any], names: list[str], frame: FrameType, ended: float) -> float:
        """Saves the block if it is worth it; returns the seconds that its costs count."""
        costs = self._costs.setdefault(block.label, Costs())
        costs.executed(ended - block.began)
        top_level = not self.blocks
        made, counted = None, 0.0
        if not costs.measured:  # the first time: only trying tells the cost, and whether the objects can be saved
            made, counted = self._timed_capture(block, objects, names, frame, costs)
        kept = self._wanted(costs, top_level)
        if kept:
            if made is None:
                made, counted = self._timed_capture(block, objects, names, frame, costs)
            path = self.version.checkpoint(block.label, block.place)
            began = time.monotonic()
            self._writer.submit(writer.Order(path, made[0], made[1], costs))
            waited = time.monotonic() - began
            costs.add(waited)
            costs.checkpoints += 1
            counted += waited
            if top_level:
                self._forced = True
        if top_level:
            self.blocks_in_iteration += 1
        line: dict[str, Any] = {
            "block": block.label,
            "at": block.at,
            "place": block.place,
            "seconds": ended - block.began,
        }
        if costs.executions == 1:
            line["body"] = block.body
        if block.random is not None:
            line["random"] = self._changed_random(block.random)
        self._add(line)
        return counted

    def _timed_capture(
        self, block: Block, objects: list[Any], names: list[str], frame: FrameType, costs: Costs
    ) -> tuple[tuple[Node, State], float]:
        began = time.monotonic()
        made = checkpoints.capture(block.label, objects, names, frame)
        took = time.monotonic() - began
        costs.took(took)
        return made, took

    def _wanted(self, costs: Costs, top_level: bool) -> bool:
        if self.flags.EVERY:
            return costs.executions % (self.flags.EVERY * costs.stride) == 0
        if costs.executions % costs.stride:
            return False
        aligned = top_level and self._forced and self.main is not None
        left = budget(self.flags.EPSILON, self._bookkeeping, time.monotonic() - self._loop_began)
        return aligned or costs.worthwhile(left, top_level)

    # The end.

    def flush(self) -> None:
        """Waits until everything is on disk."""
        self._flush_journal()
        self._writer.flush()

    def close(self) -> None:
        """Writes what is left."""
        super().close()
        self._add({"end": True, "seconds": time.monotonic() - self._began})
        self.flush()
        self._closed = True
        self._journal.close()
        count = sum(costs.checkpoints for costs in self._costs.values())
        executions = sum(costs.executions for costs in self._costs.values())
        if executions:
            say(f"recorded {self.version}: {count} checkpoints of {executions} executions of blocks")
        self._say_not_ended()
        if self._spooler is not None:
            self._spooler.finish(self.version)

    def _say_not_ended(self) -> None:
        """Says which blocks have no checkpoints, as the program has never ended them."""
        if self.failing.failed or hasattr(sys, "last_type"):  # an error has ended the program, perhaps within them
            return
        counts = dict(self.not_ended)
        for block in self.blocks:
            counts[block.label] = counts.get(block.label, 0) + 1
        for label, count in counts.items():
            if label not in self._costs:
                say(
                    f"WARNING: block {label!r} was entered {count} time{'s' if count > 1 else ''} and never ended: it "
                    "has no checkpoint, and a replay executes it each time. Call SkipBlock.end(objects) behind it, and "
                    "record again"
                )

    def abandon(self) -> None:
        """A child of the program lets go."""
        if self._spooler is not None:
            self._spooler.abandon()


def begin(flags: Flags, words: list[str]) -> Recorder:
    """A new version of the experiment of the flags."""
    assert flags.NAME is not None
    name, identity = flags.NAME, uuid.uuid4().hex
    about = describe(words, flags.KWARGS) | {"pid": os.getpid(), "id": identity}
    if flags.SPOOL is None:
        return Recorder(flags, store.new_version(name, about))
    spooler = Spooler(flags.SPOOL, flags.SPOOL_TIMEOUT)
    version = store.new_version(name, about, lambda least: spooler.claim(name, identity, least))
    return Recorder(flags, version, spooler)


__all__ = ["Block", "Recorder", "begin", "describe"]
