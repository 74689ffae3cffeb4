"""The files that an ONNX model consists of, found without the package onnx: a walk over protobuf's wire format.

Only lengths and names are read, so that the weights within a file of gigabytes stay on the disk.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path

from espalier.errors import InvalidArgument

# Of onnx.proto: the fields of each message on the way to its tensors.
_PARTS = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_GRAPH, _NODE = 7, 1  # of a model, of a graph
_EXTERNAL_DATA, _DATA_LOCATION = 13, 14  # of a tensor
_EXTERNAL = 1  # a data_location
_DEEPEST = 100  # as protobuf


class _Damaged(Exception):
    """The bytes are no message."""


_Bytes = mmap.mmap | bytes


def _varint(data: _Bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise _Damaged


def _fields(data: _Bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(number, begin, end) of each field with a length; (number, value, -1) of a varint. Others are skipped."""
    while at < end:
        key, at = _varint(data, at, end)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise _Damaged
        if wire == 0:
            value, at = _varint(data, at, end)
            yield number, value, -1
            continue
        if wire == 2:
            size, at = _varint(data, at, end)
            yield number, at, min(at + size, end)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise _Damaged
        at += size
        if at > end:
            raise _Damaged


def _location(data: _Bytes, begin: int, end: int) -> str | None:
    """The file in which a tensor lies; None: in the model itself."""
    external, location = False, ""
    for number, first, last in _fields(data, begin, end):
        if number == _DATA_LOCATION and last < 0:
            external = first == _EXTERNAL
        elif number == _EXTERNAL_DATA and last >= 0:
            entry = {n: bytes(data[a:b]) for n, a, b in _fields(data, first, last) if b >= 0}
            if entry.get(1) == b"location":
                location = entry.get(2, b"").decode(errors="replace")
    return location if external else None


def _locations(data: _Bytes) -> list[str]:
    found: dict[str, None] = {}
    nodes = 0
    waiting = [("model", 0, len(data), 0)]
    while waiting:
        kind, begin, end, depth = waiting.pop()
        if depth > _DEEPEST:
            raise _Damaged
        if kind == "tensor":
            location = _location(data, begin, end)
            if location is not None:
                found[location] = None
            continue
        for number, first, last in _fields(data, begin, end):
            part = _PARTS[kind].get(number)
            if part is not None and last >= 0:
                nodes += part == "node"
                waiting.append((part, first, last, depth + 1))
    if not nodes:
        raise _Damaged
    return sorted(found)


def _external(file: Path) -> list[str]:
    """The files that a model keeps weights in, as it names them. InvalidArgument if it is none."""
    try:
        with open(file, "rb") as opened:
            if file.stat().st_size == 0:
                raise InvalidArgument(f"{file} is empty; accepted: an ONNX model")
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _locations(data)
    except OSError as error:
        raise InvalidArgument(f"cannot read {file}: {error.strerror}") from error
    except _Damaged:
        raise InvalidArgument(
            f"{file} holds no ONNX model with nodes: it is cut short, damaged or of another format"
        ) from None


def _model_in(path: Path) -> Path:
    if not path.is_dir():
        if not path.is_file():
            raise InvalidArgument(f"{path} is no file or folder that can be read")
        return path
    found = sorted(path.glob("*.onnx"))
    if len(found) != 1:
        raise InvalidArgument(
            f"the folder {path} holds {len(found)} files that end in .onnx"
            f"{': ' if found else ''}{', '.join(p.name for p in found)}; give one of its files"
        )
    return found[0]


def files_of(path: Path, given: Sequence[Path] = ()) -> dict[str, Path]:
    """A model's file, which comes first, and those that hold its weights, by their names in an artifact.

    path: of the file, or of a folder that holds one. given: files that are taken for those of their names, if there are
    none beneath its folder. InvalidArgument says what is missing.
    """
    file = _model_in(path)
    files = {file.name: file}
    for location in _external(file):
        says = f"{file} keeps weights in the file {location!r}"
        parts = location.split("/")
        if any(part in ("", ".", "..") for part in parts):
            raise InvalidArgument(f"{says}, which is no path beneath its folder")
        beside = file.parent.joinpath(*parts)
        if not beside.is_file():
            beside = next((other for other in given if other.name == location and other.is_file()), beside)
        if not beside.is_file():
            raise InvalidArgument(f"{says}, and there is no {beside}")
        files[location] = beside
    return files


__all__ = ["files_of"]
