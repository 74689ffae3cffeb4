"""Reading and writing safetensors files as NumPy arrays.

bfloat16 needs the package ml_dtypes, as NumPy has no such type.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from espalier.errors import InvalidArgument

Array = np.ndarray[Any, Any]

_DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}
_NAMES = {np.dtype(code).newbyteorder("="): name for name, code in _DTYPES.items()}
_LARGEST_HEADER = 100_000_000  # as the format's own library


def _dtype(name: str, where: str) -> Any:
    if name == "BF16":
        try:
            import ml_dtypes
        except ImportError:
            raise InvalidArgument(f"{where} is bfloat16, which NumPy lacks: pip install ml_dtypes") from None
        return np.dtype(ml_dtypes.bfloat16)
    if name not in _DTYPES:
        raise InvalidArgument(f"{where} has the element type {name}; known are {', '.join(_DTYPES)}, BF16")
    return np.dtype(_DTYPES[name])


def load_file(path: str | os.PathLike[str]) -> dict[str, Array]:
    """Tensors by name. InvalidArgument for a file that is not safetensors, with the place."""
    size = os.path.getsize(path)
    tensors: dict[str, Array] = {}
    with open(path, "rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else size
        if length > min(size - 8, _LARGEST_HEADER):
            raise InvalidArgument(f"{path} is no safetensors file: its header would have {length} bytes")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise InvalidArgument(f"{path} is no safetensors file: its header is no JSON ({error})") from None
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            where = f"{path}: tensor {name}"
            dtype = _dtype(entry["dtype"], where)
            shape = tuple(entry["shape"])
            begin, end = entry["data_offsets"]
            count = int(np.prod(shape, dtype=np.int64))
            if begin < 0 or end - begin != count * dtype.itemsize or 8 + length + end > size:
                raise InvalidArgument(f"{where} of shape {shape} cannot lie at bytes {begin} to {end}")
            file.seek(8 + length + begin)
            tensors[name] = np.fromfile(file, dtype, count).reshape(shape)
    return tensors


def load_folder(folder: str | os.PathLike[str]) -> dict[str, Array]:
    """Tensors of all *.safetensors files in a folder. InvalidArgument if there are none."""
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise InvalidArgument(f"{folder} holds no .safetensors files")
    return {name: array for file in files for name, array in load_file(file).items()}


def save_file(
    tensors: Mapping[str, Array], path: str | os.PathLike[str], metadata: Mapping[str, str] | None = None
) -> None:
    """Writes tensors by name. InvalidArgument for an element type that the format lacks."""
    header: dict[str, Any] = {"__metadata__": dict(metadata or {"format": "pt"})}
    arrays: list[Array] = []
    offset = 0
    for name, given in tensors.items():
        array = np.ascontiguousarray(given).reshape(np.shape(given))
        kind = "BF16" if array.dtype.name == "bfloat16" else _NAMES.get(array.dtype.newbyteorder("="))
        if kind is None:
            raise InvalidArgument(f"tensor {name} has the element type {array.dtype}, which safetensors lacks")
        if kind != "BF16":
            array = array.astype(_DTYPES[kind], copy=False)
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
        arrays.append(array)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for array in arrays:
            file.write(array.tobytes())
