"""Copying recordings to a spool: the same names, and an index that is written after what it names."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from espalier.errors import DataLoss, EspalierError, FailedPrecondition
from espalier.flor.store import FORMAT, Version
from espalier.flor.targets import Target

INDEX = "spool.json"
_FILE = re.compile(r"(version\.json|log\.jsonl|(initial|checkpoints/[^/.\\\0][^/\\\0]*)/[^/.\\\0][^/\\\0]*)")
_HASH = re.compile(r"[0-9a-f]{64}")
_PACE = 5.0  # seconds between two indices at least
_RARE = 20  # times as long as writing journal and index takes, at least


@dataclass(frozen=True)
class Entry:
    """A file as it is in the spool: of one that grows, its beginning."""

    size: int
    sha256: str


@dataclass
class Index:
    """What of a recording is in the spool."""

    identity: str
    files: dict[str, Entry] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The index as JSON."""
        files = {name: [entry.size, entry.sha256] for name, entry in sorted(self.files.items())}
        return json.dumps({"format": FORMAT, "id": self.identity, "files": files}, separators=(",", ":")).encode()

    def beginning(self) -> bytes:
        """What each index of this recording begins with."""
        return Index(self.identity).encode()[:-2]


def decode(data: bytes, where: str) -> Index:
    """An index. DataLoss, naming the place, for what is none: no name in it leads out of the recording's folder."""
    try:
        given = json.loads(data)
        files = {}
        for name, (size, sha256) in given["files"].items():
            if not _FILE.fullmatch(name) or not isinstance(size, int) or size < 0 or not _HASH.fullmatch(sha256):
                raise ValueError(f"it names {name!r}")
            files[name] = Entry(size, sha256)
        if given["format"] != FORMAT or not isinstance(given["id"], str):
            raise ValueError(f"its format is {given['format']!r}, not {FORMAT}")
        return Index(given["id"], files)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataLoss(f"{where} is no index of a recording: {error}") from None


def read_index(target: Target, folder: str) -> Index | None:
    """The index of a recording in a spool; None: there is none. DataLoss if it is damaged."""
    data = target.read(f"{folder}/{INDEX}")
    return None if data is None else decode(data, f"{target.url}/{folder}/{INDEX}")


def numbers(target: Target, experiment: str) -> list[int]:
    """The numbers of an experiment that are taken in a spool, ascending."""
    return sorted(int(name) for name in target.folders(experiment) if name.isdigit())


def claim(target: Target, experiment: str, identity: str, least: int) -> int:
    """Takes the first number that is free in the spool, from a least one on."""
    target.prepare()
    number = max([least, *(number + 1 for number in numbers(target, experiment))])
    while not target.create(f"{experiment}/{number}/{INDEX}", Index(identity).encode()):
        number += 1
    target.expect(f"{experiment}/{number}/{INDEX}", Index(identity).beginning())
    return number


def digest(path: Path, size: int) -> str:
    """The SHA-256 of the beginning of a file."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while size > 0 and (chunk := file.read(min(size, 1 << 20))):
            found.update(chunk)
            size -= len(chunk)
    return found.hexdigest()


class Copier:
    """Copies one recording, which may still grow."""

    def __init__(self, opened: Callable[[], Target], version: Version):
        self._opened, self._version = opened, version
        self._folder = f"{version.experiment}/{version.number}"
        self._index: Index | None = None  # what the spool has, by the index that it has or will have next
        self._listed: dict[str, int] = {}  # what was really there at the beginning, by its name in the folder
        self._published: dict[str, Entry] = {}  # by the index that the spool has
        self._next = 0.0
        self.copied = 0  # files: tells whether it goes on

    @functools.cached_property
    def _target(self) -> Target:
        return self._opened()

    def _begin(self) -> Index:
        if self._index is None:
            identity = self._version.identity()
            self._target.prepare()
            found = read_index(self._target, self._folder)
            if found is None:
                self._target.create(f"{self._folder}/{INDEX}", Index(identity).encode())
                found = read_index(self._target, self._folder) or Index(identity)
            if found.identity != identity:
                raise FailedPrecondition(
                    f"{self._target.url}/{self._folder} is another recording, of another machine or folder; "
                    f"{self._version} is not copied. Rename {self._version.folder} to a number that is free, and copy "
                    f"it by python -m espalier.flor spool {self._version.experiment} {self._target.url}"
                )
            skip = len(self._folder) + 1
            self._listed = {name[skip:]: size for name, size in self._target.sizes(self._folder).items()}
            self._published = dict(found.files)
            self._target.expect(f"{self._folder}/{INDEX}", found.beginning())
            self._index = Index(identity, {name: each for name, each in found.files.items() if self._has(name, each)})
        return self._index

    def _has(self, name: str, entry: Entry) -> bool:
        """Whether a file that the index names is really there, as whole as the index says."""
        size = self._listed.get(name, -1)
        return size >= entry.size if name == self._version.journal.name else size == entry.size

    def _files(self) -> Iterator[tuple[str, Path]]:
        """The files that do not change any more, oldest first."""
        found = []
        for pattern in ("initial/*", "checkpoints/*/*"):
            for path in self._version.folder.glob(pattern):
                if not path.name.startswith("."):
                    try:
                        found.append((path.stat().st_mtime_ns, path))
                    except FileNotFoundError:  # thinned out
                        continue
        for _, path in sorted(found):
            yield path.relative_to(self._version.folder).as_posix(), path

    def round(self, last: bool = False) -> None:
        """Copies what is new. last: also what is due only now and then. EspalierError or OSError if it fails."""
        if last:
            self._index = None  # what is said to be there at the end is looked at
        try:
            self._round(self._begin(), last)
        except (EspalierError, OSError):
            self._index = None  # what is there is looked at again: a spool that was away may have come back with less
            raise

    def _round(self, index: Index, last: bool) -> None:
        for name, path in self._files():
            if name in index.files:
                continue
            try:
                size = path.stat().st_size
                entry = Entry(size, digest(path, size))
                if self._listed.get(name) != size:
                    self._target.put(f"{self._folder}/{name}", path, size)
            except (EspalierError, OSError) as error:
                if isinstance(error, FileNotFoundError) and not path.exists():
                    continue  # thinned out
                if index.files != self._published:  # what was copied before, or a disk that is full for this file only
                    with contextlib.suppress(EspalierError, OSError):
                        self._publish(index)
                raise
            index.files[name] = entry
            self.copied += 1
            if time.monotonic() >= self._next:
                self._publish(index)
        if last or time.monotonic() >= self._next:
            self._publish(index)
        self._copy_replays()

    def _publish(self, index: Index) -> None:
        """Copies the journal and the description, if they are new, and the index after them."""
        began = time.monotonic()
        for path in (self._version.journal, self._version.folder / "version.json"):
            size = path.stat().st_size
            before = index.files.get(path.name)
            if before is None or before.size < size:
                entry = Entry(size, digest(path, size))
                self._target.put(f"{self._folder}/{path.name}", path, size)
                index.files[path.name] = entry
                self.copied += 1
        if index.files != self._published:
            self._target.put_bytes(f"{self._folder}/{INDEX}", index.encode())
            self._published = dict(index.files)
        now = time.monotonic()
        self._next = now + max(_PACE, _RARE * (now - began))

    def _copy_replays(self) -> None:
        for path in self._version.replays():
            name, size = f"replays/{path.name}", path.stat().st_size
            if self._listed.get(name) != size:
                self._target.put(f"{self._folder}/{name}", path, size)
                self._listed[name] = size
                self.copied += 1

    def there(self) -> int:
        """How many checkpoints the index of the spool has, with those that are here no more."""
        return sum(name.startswith("checkpoints/") for name in self._published)

    def left(self) -> tuple[int, int]:
        """How many files are not in the index of the spool, and how many of them are checkpoints."""
        names = [name for name, _ in self._files() if name not in self._published]
        journal = self._published.get(self._version.journal.name)
        whole = journal is not None and journal.size >= self._version.journal.stat().st_size
        return len(names) + (not whole), sum(name.startswith("checkpoints/") for name in names)


__all__ = ["INDEX", "Copier", "Entry", "Index", "claim", "decode", "digest", "numbers", "read_index"]
