"""Arrays of lists in .npz files, which NumPy writes as pickles."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from espalier.errors import InvalidArgument


class _Lists(pickle.Unpickler):
    # An array of objects, lists and integers; nothing else is made.
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            return np.dtype
        if name == "_reconstruct" and module.startswith("numpy."):
            return np.zeros(0).__reduce__()[0]
        if name == "scalar" and module.startswith("numpy."):
            return np.int64(0).__reduce__()[0]
        if (module, name) == ("_codecs", "encode"):
            import codecs

            return codecs.encode
        raise InvalidArgument(f"the array holds {module}.{name}; accepted are lists of integers")


def lists_of(path: Path, member: str) -> list[list[int]]:
    """The lists of an array of lists in an .npz, without running what a pickle may name."""
    with zipfile.ZipFile(path) as archive:
        if f"{member}.npy" not in archive.namelist():
            raise InvalidArgument(f"{path} has no {member}")
        with archive.open(f"{member}.npy") as file:
            version = npy.read_magic(file)
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            _, _, dtype = read(file)
            if dtype != np.dtype(object):
                raise InvalidArgument(f"{path}: {member} is an array of {dtype}, expected lists")
            array = _Lists(file, encoding="latin1").load()
    return [[int(word) for word in text] for text in array]
