"""Replaying: blocks with a checkpoint are restored instead of executed, and values are compared with the record."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from espalier.errors import DataLoss, EspalierError, FailedPrecondition
from espalier.flor import checkpoints, fetching, objects, randomness, segments, sources, store, values
from espalier.flor import record as records
from espalier.flor.command_line import Flags
from espalier.flor.messages import say
from espalier.flor.runtime import Working
from espalier.flor.trees import Node, State

_LINES = 1000


class ReplayDiffers(EspalierError):
    """A replayed value is not the recorded one (raised with FLOR_STRICT=1 only)."""


@dataclass
class Block:
    """An open block: executed, or skipped."""

    label: str
    place: str
    at: list[Any]
    checkpoint: tuple[Node, State] | None  # None: it is executed


class Replayer(Working):
    """Replays one recording, or a segment of it."""

    def __init__(self, flags: Flags, version: store.Version):
        super().__init__(flags)
        self.version = version
        self.record = records.read(version)
        self._journal: store.Journal | None = None
        self._useless: set[tuple[str, str]] = set()  # checkpoints that are damaged, or that the spool did not give
        self._ended = False  # the replay could not go on
        self._stored: Path | None = None  # the file of the new values
        self._mode = "replay"  # of this epoch: see segments.Step
        self._outside = True  # outside of the main loop, values are stored by the segment that has the neighbour epoch
        self._last_segment = flags.SEGMENT[0] == flags.SEGMENT[1]
        self._looped = self._after_main = False
        self._entered: set[str] = set()  # blocks of this epoch
        self._equal = self._new = self._skipped = self._executed = 0
        self._diverged = False  # the state is known to be another one than was recorded
        self._differences: list[str] = []
        self._said: set[str] = set()
        self._restore_initial("process")
        early = "torch" in sys.modules
        randomness.once_imported("torch", lambda: self._restore_torch(early))
        k, n = flags.SEGMENT
        if n > 1 and not self.record.iterations:
            raise FailedPrecondition(
                f"--replay_flor {k}/{n}: the recording {version} has no finished iteration of a main loop (flor.it), "
                "so that it has no segments. Replay without k/n"
            )
        part = f", segment {k} of {n} (numbered from 1)" if n > 1 else ""
        say(f"replaying {version}{part}")
        if not self.record.complete:
            say(f"the recording {version} did not end: the process that made it was killed, or still runs")

    def _restore_initial(self, part: str) -> None:
        path = self.version.initial(part)
        if path.exists():
            randomness.restore_global(*store.read_checkpoint(path))

    def _restore_torch(self, early: bool) -> None:
        self._restore_initial("torch")
        if not early:
            randomness.seed_devices()

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            say(text)

    # Values.

    def arg(self, name: str, default: Any, required: bool) -> Any:
        """The recorded value of an argument."""
        if name not in self.record.args:
            self._say_once(f"flor.arg({name!r}) is not in the recording: its present value is taken")
            return super().arg(name, default, required)
        value = values.decode(self.record.args[name])
        if name in self.flags.KWARGS and super().arg(name, default, required) != value:
            self._say_once(
                f"--kwargs {name}={self.flags.KWARGS[name]} is left out: a replay takes the recorded {value!r}"
            )
        return tuple(value) if isinstance(default, tuple) and isinstance(value, list) else value

    def log(self, name: str, value: Any) -> None:
        """Compares a value with the record; one that the record lacks is stored."""
        encoded = values.encode(value)
        place, number = self.place.key, self.place.ordinal("log", name)
        if self._after_main and not self._last_segment:
            return  # the state behind the main loop is that of the last segment only
        found = self.record.values.get((place, name, number), self)
        if found is self:
            if self._mode == "replay" and (self.place.depth or self._after_main or self.flags.SEGMENT[0] == 1):
                self._new += 1
                self._store(name, number, encoded, differs=self._diverged)
        elif values.is_text_of_object(found) and values.is_text_of_object(encoded):
            return
        elif values.same(found, encoded):
            self._equal += 1
        else:
            self._differ(name, number, found, encoded)

    def _differ(self, name: str, number: int, before: Any, now: Any) -> None:
        where = ", ".join(f"{e[0]} {e[1]}" for e in self.place.at if isinstance(e, list)) or "outside of loops"
        text = f"{name} at {where}: recorded {values.shown(before)}, replayed {values.shown(now)}"
        if not self._differences:
            hint = ". A restored block changes only what SkipBlock.end was given" if self._skipped else ""
            say(f"WARNING: the replay differs from the recording {self.version}: {text}{hint}")
        self._differences.append(text)
        self._diverged = True
        if self._mode == "replay":
            self._store(name, number, now, differs=True)
        if self.flags.STRICT:
            raise ReplayDiffers(f"the replay differs from the recording {self.version}: {text}")

    def _store(self, name: str, number: int, encoded: Any, differs: bool) -> None:
        if self._journal is None:
            k, n = self.flags.SEGMENT
            stamp = f"{time.time_ns():020d}-{os.getpid()}-{k}of{n}"
            self._stored = self.version.folder / "replays" / f"{stamp}.jsonl"
            self._journal = store.Journal(self._stored)
        line = {"log": name, "at": self.place.at, "n": number, "value": encoded}
        self._journal.add(line | {"differs": True} if differs else line)
        if self._journal.pending >= _LINES:
            self._journal.flush()

    # Loops.

    def main_loop(self, name: str, iterable: Iterable[Any], frame: FrameType) -> Iterator[Any]:
        """The epochs of the segment, after what initialises it."""
        if self.main is not None or self.blocks:
            yield from self._plain_loop(name, iterable)
            return
        self._looped = True
        self.main = label = self.place.label("loop", name)
        depth = self.place.depth
        steps = self._steps(label)
        source = _Source(iterable)
        try:
            for step in steps:
                self._mode = step.kind
                self.place.enter_iteration(label, step.epoch, None)
                whole = self._load(f"@{label}", self.place.key) if self.objects and step.kind == "restore" else None
                if whole is None:
                    try:
                        value = source.item(step.epoch)
                    except (IndexError, StopIteration):
                        say(f"the program has only {step.epoch} iterations of {label!r}; more were recorded")
                        self.leave(depth)
                        return
                    self.leave(depth)
                    self.place.enter_iteration(label, step.epoch, value)
                    self.blocks_in_iteration = 0
                    self._entered = set()
                    if self.objects:
                        self._restore_random(f"@{label}", self.place.key)
                    yield value
                if self.objects:
                    self._set_or_compare(f"@{label}", step.kind, whole, frame)
                if step.kind == "restore":
                    self._check_restored(label, step.epoch)
                self.leave(depth)
                if self._journal is not None:
                    self._journal.flush()
            recorded = self.record.iterations[label]
            if steps and steps[-1].epoch == recorded - 1 and source.has(recorded):
                say(
                    f"WARNING: the program has more iterations of {label!r} than the {recorded} that were recorded: "
                    "a replay ends there. To train on, record"
                )
        finally:
            self.leave(depth)
            self.main, self._mode, self._after_main = None, "replay", True

    def _set_or_compare(self, label: str, kind: str, whole: tuple[Node, State] | None, frame: FrameType) -> None:
        """The objects of flor.checkpointing after an iteration; whole: its checkpoint, if it was not executed."""
        given, names = list(self.objects.values()), list(self.objects)
        if kind == "replay":
            self._compare(label, self.place.key, given, names, frame)
        elif saved := whole or self._load(label, self.place.key):
            self._restore(label, given, names, frame, saved)

    def _check_restored(self, loop: str, epoch: int) -> None:
        """Ends the replay if the program has not entered a block whose checkpoint the segment begins from."""
        for label, _ in self.record.blocks.get((loop, epoch), ()):
            if label not in self._entered and not label.startswith("@"):
                self._stop(
                    f"the segment begins from {loop} {epoch}, of which there is a checkpoint of block {label!r}, and "
                    "the program has not entered that block. Give it the recorded name, or replay without k/n"
                )

    def _steps(self, label: str) -> list[segments.Step]:
        count = self.record.iterations.get(label, 0)
        k, n = self.flags.SEGMENT
        if not count:
            raise FailedPrecondition(f"the recording {self.version} has no finished iteration of the loop {label!r}")
        if n > 1 and len(self.record.iterations) > 1:
            raise FailedPrecondition(
                f"the recording {self.version} has {len(self.record.iterations)} main loops; segments need a single "
                "one. Replay without k/n"
            )
        steps = segments.steps(count, k, n, self.record.restorable(label), self.flags.STRONG)
        mine = segments.segment(count, k, n)
        if not mine:
            say(f"segment {k} of {n} has no epoch: {count} were recorded")
        elif n > 1:
            again = [step.epoch for step in steps if step.kind == "again"]
            more = f"; epochs {again[0]} to {again[-1]} are executed again, as no checkpoint is nearer" if again else ""
            say(f"segment {k} of {n}: epochs {mine.start} to {mine.stop - 1} of 0 to {count - 1}{more}")
        return steps

    def _block_loop(self, name: str, iterable: Iterable[Any], probed: bool | None, frame: FrameType) -> Iterator[Any]:
        execute = self._enter(name, probed, sources.body_hash(frame, loop=True))
        try:
            if execute:
                yield from self._plain_loop(name, iterable)
        finally:
            self._end(list(self.objects.values()), list(self.objects), frame)

    # Blocks.

    def _enter(self, name: str, probed: bool | None, body: str) -> bool:
        place, at = self.place.key, self.place.at
        label = self.place.label("block", name)
        self._entered.add(label)
        if label not in self.record.names:
            known = ", ".join(sorted(each for each in self.record.names if not each.startswith("@"))) or "none"
            self._say_once(f"block {label!r} is not in the recording, so that it is executed; recorded are: {known}")
        wanted = bool(probed)
        if sources.changed(self.record.bodies.get(label, ""), body) and not probed:
            wanted = probed is None
            done = "executed again" if wanted else "skipped nevertheless, as probed=False says"
            self._say_once(f"block {label!r} has changed since the recording: it is {done}")
        checkpoint = None if wanted and self._mode == "replay" else self._load(label, place)
        if checkpoint is None:
            self._restore_random(label, place)
        self.place.enter_block(label)
        self.blocks.append(Block(label, place, at, checkpoint))
        return checkpoint is None

    def _restore_random(self, label: str, place: str) -> None:
        """Sets the random generators of the process as they were when the block began, if that is recorded."""
        recorded = self.record.random.get((label, place))
        if recorded is None:
            return
        now = randomness.as_texts(randomness.snapshot())
        moved = [part for part, text in recorded.items() if now.get(part, text) != text]
        for part in moved:
            randomness.restore_text(recorded[part])
        if moved:
            names = {"python": "Python", "numpy": "NumPy", "torch": "PyTorch"}
            self._say_once(
                f"block {label!r}: the program has drawn other random numbers of "
                f"{' and '.join(names[part] for part in moved)} than when it was recorded, as for what it logs now: "
                "the generator is set as it was"
            )

    def step_into(self, name: str, probed: bool | None, frame: FrameType) -> bool:
        """Whether to execute a block: if it is probed, has changed, or has no checkpoint."""
        executed = self._enter(name, probed, sources.body_hash(frame))
        if not executed and (stale := sources.stale(frame)):
            self._say_once(
                f"WARNING: block {name!r} is skipped, and what it assigns to {', '.join(stale)} is read behind it: "
                "give that to SkipBlock.end, or it is what it was before the block"
            )
        return executed

    def end(self, values: tuple[Any, ...], frame: FrameType) -> list[Any]:
        """Ends a block; a skipped one is restored from its checkpoint."""
        names = checkpoints.names_of(values, frame)
        checkpoints.check_assigned(values, names, frame)
        return self._end(list(values), names, frame)

    def _end(self, given: list[Any], names: list[str], frame: FrameType) -> list[Any]:
        block: Block = self.ended()
        self.place.close_to(len(block.at))
        self.blocks_in_iteration += 1
        if block.checkpoint is not None:
            return self._restore(block.label, given, names, frame, block.checkpoint)
        self._executed += 1
        self._compare(block.label, block.place, given, names, frame)
        return given

    def _load(self, label: str, place: str, executed: bool = False) -> tuple[Node, State] | None:
        """A checkpoint, fetched if a spool has it; None if there is none, or none that is of use, which is said.

        executed: its block has been executed, so that the state is there.
        """
        if (label, place) in self._useless:
            return None
        read = "fetched"
        try:
            if not self.version.fetched_checkpoint(label, place).exists():
                return None
            read = "read"
            return self._read(label, place)
        except (EspalierError, OSError) as error:
            self._useless.add((label, place))
            if self._mode == "restore" and not executed:  # the epochs before were not executed
                remedy = (
                    "" if self.flags.STRONG else ". Delete the file here, and it begins from the nearest one before"
                )
                self._stop(f"the segment begins from a checkpoint that cannot be {read}: {error}{remedy}")
            then = "the state is not compared with it" if executed else "its block is executed instead"
            self._say_once(f"WARNING: a checkpoint cannot be {read}, and {then}: {error}")
            return None

    def _stop(self, reason: str) -> NoReturn:
        """Ends the program, which is nowhere to go on from; what a program does after errors is not meant for that."""
        self._ended = True
        raise SystemExit(f"espalier.flor: the replay of {self.version} has ended: {reason}")

    def _read(self, label: str, place: str) -> tuple[Node, State]:
        """A checkpoint that is here; where it is damaged, that of the spool."""
        path = self.version.checkpoint(label, place)
        try:
            return store.read_checkpoint(path)
        except DataLoss:
            if self.version.elsewhere is None or not self.version.elsewhere.has(path):
                raise
            self._say_once(f"WARNING: {path} is damaged: it is fetched from the spool again")
            self.version.elsewhere.bring(path)
            return store.read_checkpoint(path)

    def _restore(
        self, label: str, given: list[Any], names: Sequence[str], frame: FrameType, checkpoint: tuple[Node, State]
    ) -> list[Any]:
        self._skipped += 1
        self._diverged = False
        return checkpoints.restore(label, given, names, frame, checkpoint)

    def _compare(self, label: str, place: str, given: list[Any], names: list[str], frame: FrameType) -> None:
        """Compares what an executed block has left with its checkpoint."""
        recorded = self._load(label, place, executed=True)
        if recorded is None:
            return
        before = recorded[0]["names"]  # arrays are compared by these names, also if the program has new ones
        now = checkpoints.capture(label, given, before if len(before) == len(given) else names, frame)
        array = objects.first_difference(recorded[1], now[1])
        self._diverged = bool(array)
        if array:
            text = f"the state after block {label!r} at {place}: {array} has other bits"
            if not self._differences:
                say(f"WARNING: the replay differs from the recording {self.version}: {text}")
            self._differences.append(text)
            if self.flags.STRICT:
                raise ReplayDiffers(f"the replay differs from the recording {self.version}: {text}")
        else:
            self._equal += 1

    # The end.

    def flush(self) -> None:
        """Writes the new values."""
        if self._journal is not None:
            self._journal.flush()

    def close(self) -> None:
        """Says what was found."""
        self.flush()
        if self._journal is not None:
            self._journal.close()
            self._send()
        if self._ended:
            return
        super().close()
        k, n = self.flags.SEGMENT
        if n > 1 and not self._looped:
            say(f"WARNING: the program has no main loop (flor.it) now: all of it ran, and not segment {k} of {n}")
        say(
            f"replayed {self.version}: {self._executed} blocks executed, {self._skipped} restored; {self._equal} "
            f"values and states equal the record to the bit, {len(self._differences)} differ, {self._new} are new"
        )
        if self._differences:
            say(f"WARNING: the first difference: {self._differences[0]}")

    def _send(self) -> None:
        """Copies the new values to the spool, for tables made from it."""
        if self._stored is not None and self.version.elsewhere is not None:
            try:
                self.version.elsewhere.send(self._stored)
            except (EspalierError, OSError) as error:
                say(f"WARNING: the new values are in {self._stored} only; the spool did not take them: {error}")


class _Source:
    """The items of an iterable by index, in ascending order."""

    def __init__(self, iterable: Iterable[Any]):
        self._items = iterable if isinstance(iterable, (range, list, tuple)) else None
        self._iterator = iter(iterable)
        self._next = 0

    def has(self, index: int) -> bool:
        """Whether there is an item, which counts as taken then."""
        try:
            self.item(index)
        except (IndexError, StopIteration):
            return False
        return True

    def item(self, index: int) -> Any:
        if self._items is not None:
            return self._items[index]
        value = next(itertools.islice(self._iterator, index - self._next, None))
        self._next = index + 1
        return value


def begin(flags: Flags) -> Replayer:
    """A replay of the version of the flags."""
    assert flags.NAME is not None
    if flags.SPOOL is None:
        return Replayer(flags, store.find_version(flags.NAME, flags.VERSION))
    return Replayer(flags, fetching.find_version(flags.SPOOL, flags.NAME, flags.VERSION))


__all__ = ["ReplayDiffers", "Replayer", "begin"]
