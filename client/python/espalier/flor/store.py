"""The recordings on disk: ~/.flor/NAME/VERSION, in JSON and safetensors.

version.json    what was run; written first
log.jsonl       arguments, logged values, blocks and finished iterations, a line each
checkpoints/BLOCK/PLACE.safetensors
initial/        random states as the program began
replays/        new and differing values, a file for each replay
spool.json      in a spool only, which has the same names: what of these files is there, with their hashes

A file appears under its name when it is complete: written under another name, synchronised, renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np

from espalier.errors import DataLoss, EspalierError, NotFound
from espalier.flor.trees import Array, Node, State
from espalier.safetensors_io import load_file, save_file

FORMAT = 1
one_line = json.JSONEncoder(separators=(",", ":")).encode


def home() -> Path:
    """The folder of all experiments: FLOR_HOME, else ~/.flor."""
    return Path(os.environ.get("FLOR_HOME") or Path.home() / ".flor")


def file_name(text: str) -> str:
    """A text as the name of a file: nothing in it leads elsewhere."""
    quoted = quote(text, safe="=#+ ").replace(".", "%2E") or "%"
    if len(quoted) > 120:
        quoted = f"{quoted[:80]}~{hashlib.sha256(text.encode()).hexdigest()[:32]}"
    return quoted


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(structure: str, arrays: Mapping[str, Array]) -> str:
    digest = hashlib.sha256(structure.encode())
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def put_in_place(path: Path, temporary: str) -> None:
    """Synchronises a file and gives it its name."""
    handle = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(temporary, path)
    _sync_folder(path.parent)


def write_checkpoint(path: Path, node: Node, state: State) -> None:
    """Writes a file of safetensors with the structure in its metadata. OSError if the disk does not take it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    structure = json.dumps(node, separators=(",", ":"))
    metadata = {"flor": str(FORMAT), "structure": structure, "sha256": _digest(structure, state.arrays)}
    handle, temporary = tempfile.mkstemp(prefix=".incomplete-", dir=path.parent)
    os.close(handle)
    try:
        save_file(state.arrays, temporary, metadata)
        put_in_place(path, temporary)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def read_checkpoint(path: Path) -> tuple[Node, State]:
    """The structure and the arrays of a checkpoint. DataLoss, naming the file, if it is not what was written."""
    try:
        with open(path, "rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > os.path.getsize(path):
                raise ValueError("its header is longer than the file")
            metadata = json.loads(file.read(length))["__metadata__"]
        structure, digest = metadata["structure"], metadata["sha256"]
        state = State(load_file(path))
        if _digest(structure, state.arrays) != digest:
            raise ValueError("its contents do not have the recorded hash")
        return json.loads(structure), state
    except (ValueError, KeyError, TypeError, struct.error, EspalierError) as error:
        raise DataLoss(f"checkpoint {path} is damaged: {error}") from None


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file, whole or not at all."""
    handle, temporary = tempfile.mkstemp(prefix=".incomplete-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
        put_in_place(path, temporary)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


class Journal:
    """Lines of JSON that are appended to a file. What a full disk does not take is kept and tried again."""

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._lines: list[str] = []
        self._rest = b""

    def add(self, line: Mapping[str, Any]) -> None:
        """Adds a line, which flush writes."""
        self.add_text(one_line(line))

    def add_text(self, line: str) -> None:
        """Adds a line that is JSON already."""
        self._lines.append(line)

    @property
    def pending(self) -> int:
        """Number of lines that are not written yet."""
        return len(self._lines)

    def flush(self) -> None:
        """Writes what was added. OSError if the disk does not take it; it is kept then."""
        if self._lines:
            self._rest += ("\n".join(self._lines) + "\n").encode()
            self._lines = []
        while self._rest:
            self._rest = self._rest[self._write(self._rest) :]

    def _write(self, data: bytes) -> int:
        return os.write(self._file, data)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The complete lines of a journal: a last one that was cut off is left out."""
    try:
        with open(path, "rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    return
                try:
                    found = json.loads(line)
                except ValueError:
                    raise DataLoss(f"{path} is damaged: a line is not JSON") from None
                if isinstance(found, dict):
                    yield found
    except FileNotFoundError:
        return


class Elsewhere(Protocol):
    """A spool that has files of a recording, too."""

    def has(self, path: Path) -> bool:
        """Whether it has the file that belongs at a path of the recording's folder."""

    def bring(self, path: Path) -> None:
        """Fetches the file, verified. EspalierError or OSError if that is not possible."""

    def send(self, path: Path) -> None:
        """Copies the file of a replay there. EspalierError or OSError if that is not possible."""


class Version:
    """The folder of one recording. elsewhere: a spool, from which the folder gets what it lacks."""

    def __init__(self, experiment: str, number: int, folder: Path, elsewhere: Elsewhere | None = None):
        self.experiment, self.number, self.folder, self.elsewhere = experiment, number, folder, elsewhere

    def __str__(self) -> str:
        return f"{self.experiment}@{self.number}"

    @property
    def journal(self) -> Path:
        """The file of the recorded values."""
        return self.folder / "log.jsonl"

    def description(self) -> dict[str, Any]:
        """What was run."""
        try:
            found: dict[str, Any] = json.loads((self.folder / "version.json").read_text(encoding="utf-8"))
            return found
        except ValueError:
            raise DataLoss(f"{self.folder / 'version.json'} is damaged") from None

    def checkpoint(self, block: str, place: str) -> Path:
        """The file of a block's checkpoint."""
        return self.folder / "checkpoints" / file_name(block) / f"{file_name(place.lstrip('/') or 'main')}.safetensors"

    def has_checkpoint(self, block: str, place: str) -> bool:
        """Whether the checkpoint is here, or can be fetched."""
        path = self.checkpoint(block, place)
        return path.exists() or (self.elsewhere is not None and self.elsewhere.has(path))

    def fetched_checkpoint(self, block: str, place: str) -> Path:
        """The file of a checkpoint, fetched if it is not here. EspalierError or OSError if that is not possible."""
        path = self.checkpoint(block, place)
        if self.elsewhere is not None and not path.exists() and self.elsewhere.has(path):
            self.elsewhere.bring(path)
        return path

    def identity(self) -> str:
        """What tells this recording from others of its name and number."""
        found = self.description().get("id")
        if isinstance(found, str):
            return found
        return hashlib.sha256((self.folder / "version.json").read_bytes()).hexdigest()

    def initial(self, part: str) -> Path:
        """The file of the random states with which the program began."""
        return self.folder / "initial" / f"{part}.safetensors"

    def replays(self) -> list[Path]:
        """The files of the replays, oldest first."""
        return sorted((self.folder / "replays").glob("*.jsonl"))


def experiments() -> list[str]:
    """The names of the experiments there are."""
    folder = home()
    return sorted(each.name for each in folder.iterdir() if versions(each.name)) if folder.is_dir() else []


def versions(experiment: str) -> list[Version]:
    """The recordings of an experiment, oldest first."""
    folder = home() / experiment
    if not folder.is_dir():
        return []
    numbers = sorted(
        int(each.name) for each in folder.iterdir() if each.name.isdigit() and (each / "version.json").exists()
    )
    return [Version(experiment, number, folder / str(number)) for number in numbers]


def find_version(experiment: str, number: int = 0) -> Version:
    """One recording; 0: the newest. NotFound with what there is."""
    found = versions(experiment)
    if not found:
        known = ", ".join(experiments()) or "none"
        raise NotFound(
            f"{home()} has no recording of {experiment!r}; recorded are: {known}. Record with --flor {experiment}"
        )
    if not number:
        return found[-1]
    for version in found:
        if version.number == number:
            return version
    raise NotFound(f"{experiment} has no version {number}; it has {', '.join(str(each.number) for each in found)}")


def new_version(
    experiment: str, description: Mapping[str, Any], claim: Callable[[int], int] = lambda number: number
) -> Version:
    """Makes the folder of a new recording. claim: gives a number that is free elsewhere, too, from a least one."""
    folder = home() / experiment
    folder.mkdir(parents=True, exist_ok=True)
    number = max((int(each.name) for each in folder.iterdir() if each.name.isdigit()), default=0)
    while True:
        number = claim(number + 1)
        try:
            (folder / str(number)).mkdir()
            break
        except FileExistsError:  # another process records, too
            continue
    version = Version(experiment, number, folder / str(number))
    for name in ("checkpoints", "initial", "replays"):
        (version.folder / name).mkdir()
    write_json(version.folder / "version.json", {"format": FORMAT, **description})
    return version


__all__ = [
    "Elsewhere",
    "Journal",
    "Version",
    "experiments",
    "file_name",
    "find_version",
    "home",
    "new_version",
    "one_line",
    "put_in_place",
    "read_checkpoint",
    "read_lines",
    "versions",
    "write_checkpoint",
    "write_json",
]
