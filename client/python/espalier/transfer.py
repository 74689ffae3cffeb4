"""Files on their way to and from the coordinator: hashes, the messages of an upload, the folder of a download."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from espalier import errors
from espalier.external_data import files_of
from espalier.v1 import models_pb2

CHUNK_BYTES = 1 << 20
KINDS = {
    "dataset": models_pb2.Artifact.DATASET,
    "onnx": models_pb2.Artifact.ONNX,
    "model": models_pb2.Artifact.MODEL,
}
Progress = Callable[[int, int], None]  # bytes so far, and in total
PathLike = str | os.PathLike[str]


def kind_number(kind: str) -> int:
    """Number of a kind of artifact: "dataset", "onnx" or "model"."""
    if kind not in KINDS:
        raise errors.InvalidArgument(f"kind of artifact {kind!r}: accepted are {', '.join(KINDS)}")
    return int(KINDS[kind])


def kind_of(given: PathLike | Sequence[PathLike]) -> str:
    """The kind of what is uploaded, as the command line takes it: by its suffix; a folder is a model."""
    paths = [Path(given)] if isinstance(given, (str, os.PathLike)) else [Path(p) for p in given]
    if any(path.suffix == ".onnx" for path in paths):
        return "onnx"
    return "model" if any(path.suffix == ".gguf" or path.is_dir() for path in paths) else "dataset"


def local_files(given: PathLike | Sequence[PathLike], kind: str) -> dict[str, Path]:
    """Files by their names in the artifact: one file, all files beneath a folder, or several files.

    Of an ONNX model with those that hold its weights, and of its folder no others.
    """
    paths = [Path(given)] if isinstance(given, (str, os.PathLike)) else [Path(p) for p in given]
    files: dict[str, Path] = {}
    if kind == "onnx":
        models = paths if len(paths) == 1 else [path for path in paths if path.suffix == ".onnx"]
        for path in models:
            files |= files_of(path, paths)
        taken = [path.resolve() for path in files.values()]
        paths = [path for path in paths if path not in models and path.resolve() not in taken]
    for path in paths:
        if path.is_dir():
            found = {p.relative_to(path).as_posix(): p for p in sorted(path.rglob("*")) if p.is_file()}
        elif path.is_file():
            found = {path.name: path}
        else:
            raise errors.InvalidArgument(f"{path} is no file or folder that can be read")
        for name, file in found.items():
            if name in files:
                raise errors.InvalidArgument(f"{files[name]} and {file} would both be {name} in the artifact")
            files[name] = file
    if not files:
        raise errors.InvalidArgument(f"{', '.join(map(str, paths)) or 'nothing'} holds no files")
    return files


def stem(given: PathLike) -> str:
    """A name for an artifact from that of a file or folder: "king james.txt" gives "king-james"."""
    path = Path(given).resolve()
    name = (path.name if path.is_dir() else path.stem)[:80]
    kept = re.sub(r"[^A-Za-z0-9._-]" if path.is_dir() else r"[^A-Za-z0-9_-]", "-", name)
    return re.sub(r"^\.", "-", kept) or "file"


def sha256_of(path: Path) -> str:
    """Hash of a file, in hexadecimal."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while block := file.read(CHUNK_BYTES):
                digest.update(block)
    except OSError as error:
        raise errors.InvalidArgument(f"cannot read {path}: {error.strerror}") from error
    return digest.hexdigest()


def content_sha256(sums: Mapping[str, str]) -> str:
    """As Artifact.sha256: of the only file, or of the sorted "name sha256" lines."""
    if len(sums) == 1:
        return next(iter(sums.values()))
    lines = "".join(f"{name} {sums[name]}\n" for name in sorted(sums))
    return hashlib.sha256(lines.encode()).hexdigest()


def name_digest(salt: str, content: str) -> str:
    """What the name of an upload ends in. With the owner's salt, a name that is taken tells nothing of others."""
    return (hashlib.sha256(f"{salt} {content}".encode()).hexdigest() if salt else content)[:16]


def upload_messages(
    header: models_pb2.UploadHeader, files: Mapping[str, Path], progress: Progress | None
) -> Iterator[models_pb2.UploadRequest]:
    """The messages of Models.Upload. InvalidArgument for a file that cannot be read."""
    total = sum(path.stat().st_size for path in files.values())
    done = 0
    yield models_pb2.UploadRequest(header=header)
    for name, path in files.items():
        yield models_pb2.UploadRequest(file=models_pb2.UploadFile(name=name))
        digest = hashlib.sha256()
        try:
            with open(path, "rb") as file:
                while block := file.read(CHUNK_BYTES):
                    digest.update(block)
                    yield models_pb2.UploadRequest(chunk=block)
                    done += len(block)
                    if progress is not None:
                        progress(done, total)
        except OSError as error:
            raise errors.InvalidArgument(f"cannot read {path}: {error.strerror}") from error
        yield models_pb2.UploadRequest(sha256=digest.hexdigest())


def upload_timeout(files: Mapping[str, Path], call_timeout: float) -> float:
    """Seconds: long enough for a slow link, short enough for a dead one."""
    return call_timeout + sum(path.stat().st_size for path in files.values()) / (256 << 10)


class FolderWriter:
    """Writes a downloaded artifact's files to a folder; each appears under its name once it is complete."""

    def __init__(self, folder: Path, progress: Progress | None = None):
        self.folder = folder
        self.artifact = models_pb2.Artifact()
        self._progress = progress
        self._name = ""
        self._file: IO[bytes] | None = None
        self._digest: Any = None
        self._sums: dict[str, str] = {}
        self._done = 0

    def _part(self) -> Path:
        return self.folder / (self._name + ".part")

    def take(self, reply: models_pb2.DownloadReply) -> None:
        """Takes the next message. DataLoss for a name outside of the folder, FailedPrecondition if it cannot write."""
        kind = reply.WhichOneof("part")
        if kind == "artifact":
            self.artifact = reply.artifact
            return
        try:
            if kind == "file":
                self._finish_file()
                self._start_file(reply.file.name)
            elif self._file is None:
                raise errors.DataLoss("the coordinator sent bytes before any file name")
            else:
                self._file.write(reply.chunk)
                self._digest.update(reply.chunk)
                self._done += len(reply.chunk)
                if self._progress is not None:
                    self._progress(self._done, self.artifact.bytes)
        except OSError as error:
            raise errors.FailedPrecondition(
                f"cannot write {self._part()}: {error.strerror}; choose another folder"
            ) from error

    def _start_file(self, name: str) -> None:
        parts = name.split("/")
        if not name or name.startswith("/") or ".." in parts or "" in parts:
            raise errors.DataLoss(f'the coordinator sent a file named "{name}", which lies outside the folder')
        self._name = name
        self._part().parent.mkdir(parents=True, exist_ok=True)
        self._file = open(self._part(), "wb")  # noqa: SIM115 (closed by _finish_file or abandon)
        self._digest = hashlib.sha256()

    def _finish_file(self) -> None:
        if self._file is None:
            return
        self._file.close()
        self._file = None
        os.replace(self._part(), self.folder / self._name)
        self._sums[self._name] = self._digest.hexdigest()

    def finish(self) -> None:
        """Completes the last file. DataLoss if the content does not have the artifact's hash."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._finish_file()
        except OSError as error:
            raise errors.FailedPrecondition(
                f"cannot write {self.folder}: {error.strerror}; choose another folder"
            ) from error
        lines = "".join(f"{name} {self._sums[name]}\n" for name in sorted(self._sums))
        whole = hashlib.sha256(lines.encode()).hexdigest()
        if self.artifact.sha256 not in (whole, content_sha256(self._sums) if self._sums else whole):
            raise errors.DataLoss(
                f"artifact {self.artifact.name}: what arrived has sha256 {whole}, the coordinator says "
                f"{self.artifact.sha256}; download it again"
            )

    def abandon(self) -> None:
        """Removes the file that is not complete, if there is one."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._part().unlink(missing_ok=True)
