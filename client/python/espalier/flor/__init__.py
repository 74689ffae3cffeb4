"""Hindsight logging for loops of one's own: record cheaply, and ask later what nobody logged.

    import espalier.flor as flor

    for epoch in flor.it(range(epochs)):
        if flor.SkipBlock.step_into("training_loop"):
            for batch in loader:
                ...
        flor.SkipBlock.end(net, optimizer)
        flor.log("accuracy", evaluate(net))

`python train.py --flor NAME` records, `python train.py --flor NAME --replay_flor [k/n]` replays; with
`--flor_spool URL` the recording is copied to a folder or S3, and replayed from there. Without these flags the script
runs as if flor were not there. docs/guide/flor.md.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from espalier.errors import EspalierError, FailedPrecondition, InvalidArgument
from espalier.flor import command_line, fetching, recording, replaying, store, table
from espalier.flor.command_line import Flags
from espalier.flor.replaying import ReplayDiffers
from espalier.flor.runtime import Runtime
from espalier.flor.table import Row

if TYPE_CHECKING:
    from espalier.client import Client

T = TypeVar("T")
_NOTHING: Any = object()

flags = Flags()
_runtime = Runtime(flags)


def begin(words: Sequence[str]) -> list[str]:
    """Ends what runs, and begins as if the command line had these words; returns those that are not flor's.

    For notebooks: flor.begin(["--flor", "digits"]).
    """
    global flags, _runtime
    chosen, left = command_line.parse(list(words), os.environ)
    _runtime.close()
    flags, _runtime = chosen, Runtime(chosen)
    if flags.NAME is None:
        return left
    if int(os.environ.get("WORLD_SIZE") or 1) > 1:
        raise FailedPrecondition(
            f"--flor: {os.environ['WORLD_SIZE']} processes train together (WORLD_SIZE); a recording is of one process"
        )
    _runtime = replaying.begin(flags) if flags.REPLAY else recording.begin(flags, left)
    return left


def _close() -> None:
    global _runtime
    runtime, _runtime = _runtime, Runtime(flags)
    runtime.close()


def _after_fork() -> None:
    """A child, such as a worker of a data loader, records nothing."""
    global _runtime
    _runtime.abandon()
    _runtime = Runtime(flags)


def it(iterable: Iterable[T], name: str = "epoch") -> Iterator[T]:
    """The iterations of the main loop; a replay has those of its segment only.

    InvalidArgument for what is no iterable, such as the condition of a while loop.
    """
    if not isinstance(iterable, Iterable):
        raise InvalidArgument(f"flor.it({iterable!r}): give an iterable, as in flor.it(range(epochs))")
    return _runtime.main_loop(name, iterable, sys._getframe(1))


def loop(name: str, iterable: Iterable[T], probed: bool | None = None) -> Iterator[T]:
    """A named loop: its name and index are the place of what is logged in it.

    The outermost one is the main loop, as `it`. Within `checkpointing`, a loop directly in the main one is a block:
    a replay skips it, unless it is probed or its body has changed.
    """
    return _runtime.loop(name, iterable, probed, sys._getframe(1))


class SkipBlock:
    """A block that a replay may skip: `if SkipBlock.step_into(name): ...`, then `SkipBlock.end(objects)`."""

    @staticmethod
    def step_into(name: str = "block", probed: bool | None = None) -> bool:
        """Whether to execute the block.

        probed: True: a replay executes it; False: it skips it wherever there is a checkpoint; None: it skips it,
        unless its statements have changed since the recording.
        """
        with _runtime.failing:
            return _runtime.step_into(str(name), probed, sys._getframe(1))

    start = step_into

    @staticmethod
    def end(*objects: Any) -> Any:
        """Ends the block: saves what it has changed, or restores it where the block was skipped.

        Returns the object, or a tuple of them. Objects that cannot change in place have to be assigned:
        `params, state = flor.SkipBlock.end(params, state)`. InvalidArgument, naming it, for an object without a state
        dict.
        """
        with _runtime.failing:
            done = _runtime.end(objects, sys._getframe(1))
        return (done[0] if len(done) == 1 else tuple(done)) if done else None


def log(name: str, value: T) -> T:
    """Logs a value at this place; returns it. A replay compares it with the record."""
    with _runtime.failing:
        _runtime.log(str(name), value)
    return value


def arg(name: str, default: Any = _NOTHING) -> Any:
    """An argument: from `--kwargs name=value`, else the default; in a replay as it was recorded."""
    required = default is _NOTHING
    _runtime.asked.add(name)
    return _runtime.arg(name, None if required else default, required)


@contextlib.contextmanager
def checkpointing(**objects: Any) -> Iterator[None]:
    """The objects that flor.loop saves and restores. InvalidArgument for one that cannot be restored in place."""
    from espalier.flor.objects import in_place

    for name, value in objects.items():
        if _runtime.active and not in_place(value):
            raise InvalidArgument(
                f"flor.checkpointing: {name} is a {type(value).__name__}, which cannot be restored in place: use "
                f"{name} = flor.SkipBlock.end({name}), or keep it in a dict"
            )
    _runtime.set_objects(objects)
    try:
        yield
    finally:
        _runtime.set_objects({})


def _experiment(given: str | None, url: str | None) -> str:
    name = given or flags.NAME or os.environ.get("FLOR_NAME")
    if not name:
        known = fetching.experiments(url) if url else store.experiments()
        if len(known) != 1:
            listed = ", ".join(known) or "none"
            raise InvalidArgument(f"which experiment? Give experiment=NAME, or FLOR_NAME; recorded are: {listed}")
        name = known[0]
    return command_line.check_name(name)


def rows(
    *names: str,
    experiment: str | None = None,
    versions: Sequence[int] = (),
    client: Client | None = None,
    spool: str | None = None,
) -> list[Row]:
    """The logged values of these names (none: of all), recorded and replayed.

    experiment: if None: that of --flor, else FLOR_NAME, else the only one there is; InvalidArgument for several.
    spool: a folder or s3://BUCKET/PREFIX, whose recordings are looked at, too; if None: --flor_spool or FLOR_SPOOL.
    client: the values are those of a coordinator's jobs of this name, whose loop is `step`; a name has its reduction,
    as "norm(grad(dense/kernel))".
    """
    if client is not None:
        from espalier.flor import coordinator

        if not experiment:
            raise InvalidArgument("which experiment? Give experiment=NAME, the name of the coordinator's jobs")
        return coordinator.rows(client, experiment, names, versions)
    _runtime.flush()
    url = spool or flags.SPOOL or os.environ.get("FLOR_SPOOL")
    name = _experiment(experiment, url)
    if url:
        fetching.bring_records(url, name, versions)
    return table.rows(name, names, versions)


def dataframe(
    *names: str,
    experiment: str | None = None,
    versions: Sequence[int] = (),
    client: Client | None = None,
    spool: str | None = None,
) -> Any:
    """A table of pandas: a row for each version and place, a column for each name, `source` and `differs`.

    experiment, client, spool: as for `rows`.
    """
    return table.dataframe(rows(*names, experiment=experiment, versions=versions, client=client, spool=spool), names)


def flush() -> None:
    """Waits until everything is on disk. The end of the program does that, too."""
    _runtime.flush()


def _start() -> None:
    """Takes flor's flags out of sys.argv."""
    if not any(
        word.partition("=")[0] in ("--flor", "--replay_flor", "--flor_spool", "--kwargs") for word in sys.argv[1:]
    ):
        return
    try:
        sys.argv[1:] = begin(sys.argv[1:])
    except (EspalierError, OSError) as error:
        sys.exit(f"espalier.flor: {error}")


atexit.register(_close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
_start()

__all__ = [
    "Flags",
    "ReplayDiffers",
    "Row",
    "SkipBlock",
    "arg",
    "begin",
    "checkpointing",
    "dataframe",
    "flags",
    "flush",
    "it",
    "log",
    "loop",
    "rows",
]
