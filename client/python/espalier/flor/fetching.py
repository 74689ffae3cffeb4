"""Recordings of a spool, for a replay or a table on another machine: fetched when needed, and verified."""

from __future__ import annotations

import hashlib
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from espalier.errors import DataLoss, FailedPrecondition, NotFound
from espalier.flor import spooling, store, targets
from espalier.flor.messages import say
from espalier.flor.spooling import Entry, Index
from espalier.flor.targets import Target

_ATTEMPTS = 4
_REPLAY = re.compile(r"replays/[0-9a-zA-Z-]+\.jsonl")


def _receive(target: Target, name: str, file: IO[bytes], entry: Entry) -> None:
    """Writes a file of the spool. DataLoss if it is not what the index says."""
    found, size = hashlib.sha256(), 0
    for chunk in target.chunks(name):
        part = chunk[: entry.size - size]
        file.write(part)
        found.update(part)
        size += len(part)
        if size == entry.size:
            break
    if size != entry.size or found.hexdigest() != entry.sha256:
        raise DataLoss(f"{target.url}/{name} is damaged: it has {size} bytes of {entry.size}, or another hash")


def _to_disk(path: Path, write: Callable[[IO[bytes]], None]) -> None:
    """Makes a file of what `write` writes, tried several times; there is nothing under its name before it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(_ATTEMPTS):
        with tempfile.NamedTemporaryFile(prefix=".incomplete-", dir=path.parent, delete=False) as file:
            try:
                write(file)
                file.flush()
                store.put_in_place(path, file.name)
                return
            except BaseException as error:
                Path(file.name).unlink(missing_ok=True)
                again = isinstance(error, (DataLoss, *targets.FAILURES)) and not isinstance(error, NotFound)
                if not again or attempt + 1 == _ATTEMPTS or (isinstance(error, OSError) and error.errno is not None):
                    raise
        time.sleep(0.2 * 2**attempt)


class Remote:
    """One recording in a spool, and its folder here."""

    def __init__(self, target: Target, folder: Path, name: str, index: Index):
        self._target, self._here, self._name, self._index = target, folder, name, index

    def _inner(self, path: Path) -> str:
        return path.relative_to(self._here).as_posix()

    def has(self, path: Path) -> bool:
        """Whether the index has a file."""
        return self._inner(path) in self._index.files

    def bring(self, path: Path) -> None:
        """Fetches a file."""
        name = self._inner(path)
        entry = self._index.files[name]
        _to_disk(path, lambda file: _receive(self._target, f"{self._name}/{name}", file, entry))

    def bring_all(self) -> int:
        """Fetches all checkpoints that are not here; returns how many."""
        paths = [self._here / name for name in self._index.files]
        lacking = [path for path in paths if not path.exists()]
        for path in lacking:
            self.bring(path)
        return len(lacking)

    def bring_records(self) -> None:
        """Fetches all but checkpoints, if it is not here; the description last, which makes the folder a recording."""
        for name, entry in sorted(self._index.files.items(), key=lambda each: each[0] == "version.json"):
            path = self._here / name
            if name.startswith("checkpoints/"):
                continue
            if not path.exists() or (name == "log.jsonl" and path.stat().st_size < entry.size):
                self.bring(path)
        (self._here / "replays").mkdir(exist_ok=True)
        for name, size in self._target.sizes(f"{self._name}/replays").items():
            inner = name[len(self._name) + 1 :]
            path = self._here / inner
            if _REPLAY.fullmatch(inner) and (not path.exists() or path.stat().st_size < size):
                _to_disk(path, lambda file, name=name: file.writelines(self._target.chunks(name)))  # type: ignore[misc]

    def send(self, path: Path) -> None:
        """Copies the file of a replay to the spool."""
        self._target.expect(f"{self._name}/{spooling.INDEX}", self._index.beginning())
        self._target.put(f"{self._name}/{self._inner(path)}", path, path.stat().st_size)


def _bring(target: Target, experiment: str, number: int, local: dict[int, store.Version]) -> store.Version | None:
    """A recording of the spool, with its records here; None if the spool has nothing that can be replayed.

    FailedPrecondition if the one here is another.
    """
    name = f"{experiment}/{number}"
    index = spooling.read_index(target, name)
    if index is None or "version.json" not in index.files or "log.jsonl" not in index.files:
        return None
    if number in local and local[number].identity() != index.identity:
        raise FailedPrecondition(
            f"{experiment}@{number} in {store.home()} is another recording than that in {target.url}. For the one here "
            "leave the spool out; for the other set FLOR_HOME to an empty folder"
        )
    folder = store.home() / experiment / str(number)
    remote = Remote(target, folder, name, index)
    remote.bring_records()
    return store.Version(experiment, number, folder, remote)


def _unreachable(error: Exception) -> str:
    return f"WARNING: the spool cannot be reached, so that only recordings of {store.home()} are looked at: {error}"


def find_version(url: str, experiment: str, number: int = 0) -> store.Version:
    """One recording, of this machine or of the spool; 0: the newest. NotFound with what there is.

    If the spool cannot be reached, one of this machine will do, and that is said.
    """
    local = {version.number: version for version in store.versions(experiment)}
    try:
        target = targets.open_target(url)
        taken = spooling.numbers(target, experiment)
        for candidate in [number] if number else sorted({*taken, *local}, reverse=True):
            found = _bring(target, experiment, candidate, local) if candidate in taken else None
            found = found or local.get(candidate)
            if found is not None:
                return found
    except targets.FAILURES as error:
        if not local or (number and number not in local):
            raise
        say(_unreachable(error))
        return store.find_version(experiment, number)
    known = ", ".join(str(each) for each in sorted({*taken, *local})) or "none"
    wanted = f"{experiment}@{number}" if number else experiment
    raise NotFound(f"neither {store.home()} nor {url} has {wanted}; versions there are: {known}")


def experiments(url: str) -> list[str]:
    """The names of the experiments here and in the spool; if it cannot be reached, of those here, if there are any."""
    local = store.experiments()
    try:
        return sorted({*local, *targets.open_target(url).folders("")})
    except targets.FAILURES:
        if not local:
            raise
        return local  # reading them says that the spool cannot be reached


def bring_records(url: str, experiment: str, versions: Sequence[int] = ()) -> None:
    """Brings what a table needs of these versions (none: of all) here.

    If the spool cannot be reached, what is here will do, and that is said.
    """
    local = {version.number: version for version in store.versions(experiment)}
    try:
        target = targets.open_target(url)
        for number in spooling.numbers(target, experiment):
            if not versions or number in versions:
                _bring(target, experiment, number, local)
    except targets.FAILURES as error:
        if not local:
            raise
        say(_unreachable(error))


def bring_version(url: str, experiment: str, number: int) -> Iterator[tuple[store.Version, int]]:
    """Brings a version (0: all) here, with its checkpoints; yields each with the number of files that were fetched."""
    target = targets.open_target(url)
    local = {version.number: version for version in store.versions(experiment)}
    taken = spooling.numbers(target, experiment)
    chosen = [each for each in taken if number in (0, each)]
    for each in chosen:
        version = _bring(target, experiment, each, local)
        if version is not None:
            assert isinstance(version.elsewhere, Remote)
            yield version, version.elsewhere.bring_all()
    if not chosen:
        known = ", ".join(map(str, taken)) or "none"
        raise NotFound(f"{url} has no {experiment}{f'@{number}' if number else ''}; versions there are: {known}")


__all__ = ["Remote", "bring_records", "bring_version", "experiments", "find_version"]
