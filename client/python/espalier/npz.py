"""Columns of examples on their way to an .npz file, without holding more than a batch of them in memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from espalier.errors import InvalidArgument

Array = np.ndarray[Any, Any]

_BLOCK_BYTES = 1 << 22
_DATE = (1980, 1, 1, 0, 0, 0)  # equal contents are equal files


def as_array(given: Any, where: str, *, keep_float64: bool = False) -> Array:
    """Any framework's tensor, or nested lists, as an array of a type that datasets can have.

    bfloat16 becomes float32, and so do float64 and longer floats, unless `keep_float64`: then longer ones become
    float64. InvalidArgument that begins with `where`, for texts, objects, and what is too large for a float32.
    """
    if hasattr(given, "detach"):  # torch
        given = given.detach().cpu()
        if str(given.dtype) == "torch.bfloat16":
            given = given.float()
    if hasattr(given, "numpy") and not isinstance(given, np.ndarray):
        given = given.numpy()
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise InvalidArgument(f"{where} is no array of one shape: {error}") from None
    if array.dtype.name == "bfloat16":
        return array.astype(np.float32)
    if array.dtype.kind == "f" and array.dtype.itemsize > 4:
        return array.astype(np.float64, copy=False) if keep_float64 else as_float32(array, where)
    if array.dtype.kind not in "fiub":
        raise InvalidArgument(
            f"{where} has elements of type {array.dtype}; accepted: numbers and bools (encode texts as integers first)"
        )
    return array


def as_float32(array: Array, where: str, first: int = 0) -> Array:
    """Floats as float32. InvalidArgument that begins with `where`, for one that is too large.

    first: the number of the first row, for the error.
    """
    try:
        with np.errstate(over="raise", under="ignore"):
            return array if array.dtype.itemsize <= 4 else array.astype(np.float32)
    except FloatingPointError:
        wrong = np.isfinite(array) & (np.abs(array) > np.finfo(np.float32).max)
        row, value = _first_of(array, wrong)
        raise InvalidArgument(f"{where} has {value!r} in row {first + row}, which no float32 can hold") from None


def as_integers(array: Array, says: str, first: int = 0) -> Array:
    """Floats of whole values as integers. InvalidArgument, "<says> 0.5 in row 3", for others, NaN, and too large ones.

    first: the number of the first row, for the error.
    """
    with np.errstate(invalid="ignore"):
        whole = array.astype(np.int64)
    wrong = (whole != array) | (array >= 2.0**63)
    if not wrong.any():
        return whole
    row, value = _first_of(array, wrong)
    says = f"{says} {value!r} in row {first + row}"
    if not np.isfinite(value):
        raise InvalidArgument(f"{says}; leave such rows out, or give them a value")
    raise InvalidArgument(f"{says}{', which no int64 can hold' if abs(value) >= 2.0**63 else ''}")


def _first_of(array: Array, wrong: Array) -> tuple[int, float]:
    """The first element that is `wrong`: its index in dimension 0, and it."""
    found = int(np.argmax(wrong))
    return found // max(1, array[:1].size), float(array.reshape(-1)[found])


def _write_member(file: zipfile.ZipFile, name: str, header: Mapping[str, Any], blocks: Iterator[Any]) -> None:
    info = zipfile.ZipInfo(f"{name}.npy", _DATE)
    with file.open(info, "w", force_zip64=True) as member:
        np.lib.format.write_array_header_1_0(member, dict(header))
        for block in blocks:
            member.write(block)


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> dict[str, Any]:
    return {
        "descr": np.lib.format.dtype_to_descr(dtype.newbyteorder("<")),
        "fortran_order": False,
        "shape": shape,
    }


def _blocks(array: Array) -> Iterator[bytes]:
    rows = max(1, _BLOCK_BYTES // max(1, array[:1].nbytes))
    for first in range(0, len(array), rows):
        part = array[first : first + rows]
        yield np.ascontiguousarray(part, part.dtype.newbyteorder("<")).tobytes()


def write_npz(path: str | os.PathLike[str], columns: Mapping[str, Array]) -> None:
    """Writes arrays as an .npz whose bytes depend on the arrays only, not on the time."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as file:
        for name, array in columns.items():
            _write_member(file, name, _header(array.dtype, array.shape), _blocks(array))


class Spool:
    """Columns that grow batch by batch, in files; `write` makes the .npz."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._files: dict[str, IO[bytes]] = {}
        self._types: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        self.examples = 0
        self._batches = 0

    @property
    def types(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Element type and shape of an example, by column."""
        return dict(self._types)

    def add(self, batch: Mapping[str, Array]) -> None:
        """Appends examples, dimension 0 of each array. InvalidArgument if they are not like those before."""
        where = f"batch {self._batches} of the data"
        counts = {name: len(array) for name, array in batch.items()}
        if len(set(counts.values())) > 1:
            raise InvalidArgument(f"{where} has columns of unequal length: {counts}")
        if self._batches and set(batch) != set(self._types):
            raise InvalidArgument(f"{where} has the columns {sorted(batch)}; those before had {sorted(self._types)}")
        for name, array in batch.items():
            kind = (array.dtype.newbyteorder("<"), array.shape[1:])
            if name not in self._files:
                self._files[name] = open(self._folder / f"column-{len(self._files)}", "w+b")  # noqa: SIM115
                self._types[name] = kind
            if kind != self._types[name]:
                was, shape = self._types[name]
                raise InvalidArgument(
                    f"{where}: column {name} has examples {kind[0].name}{list(kind[1])}; those before were "
                    f"{was.name}{list(shape)}. All examples need one shape and type: pad or resize them"
                )
            self._files[name].write(np.ascontiguousarray(array, kind[0]).tobytes())
        self.examples += next(iter(counts.values()), 0)
        self._batches += 1

    def write(self, path: Path) -> None:
        """Writes the .npz."""
        with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as npz:
            for name, file in self._files.items():
                file.flush()
                file.seek(0)
                dtype, shape = self._types[name]
                blocks = iter(lambda source=file: source.read(_BLOCK_BYTES), b"")  # type: ignore[misc]
                _write_member(npz, name, _header(dtype, (self.examples, *shape)), blocks)

    def close(self) -> None:
        """Closes the files of the columns."""
        for file in self._files.values():
            file.close()


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="espalier-data-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
