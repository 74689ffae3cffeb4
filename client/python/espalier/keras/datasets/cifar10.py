"""Photographs: 32 x 32 pixels of 3 colours, 10 classes."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from espalier.errors import InvalidArgument, NotFound
from espalier.keras import backend
from espalier.keras.datasets import files

Array = np.ndarray[Any, Any]


class _Arrays(pickle.Unpickler):
    # The batches of CIFAR-10 are pickles of dicts, byte strings, lists and an array of bytes; nothing else is made.
    def find_class(self, module: str, name: str) -> Any:
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if name == "_reconstruct" and module.startswith("numpy."):
            return np.zeros(0).__reduce__()[0]
        if (module, name) == ("_codecs", "encode"):
            import codecs

            return codecs.encode
        raise InvalidArgument(f"a batch of CIFAR-10 holds {module}.{name}, which is not read")


def _batch(path: Path) -> tuple[Array, Array]:
    if not path.is_file():
        raise NotFound(f"CIFAR-10: there is no file {path}; unpack cifar-10-python.tar.gz of its authors")
    with open(path, "rb") as file:
        batch: dict[Any, Any] = _Arrays(file, encoding="bytes").load()
    data = np.asarray(batch[b"data"], np.uint8).reshape(-1, 3, 32, 32)
    return data, np.asarray(batch[b"labels"], np.uint8).reshape(-1, 1)


def load_data(
    path: str | os.PathLike[str] | None = None, num_samples: int | None = None
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """(x_train, y_train), (x_test, y_test): uint8 images and labels [N, 1].

    Images are [N, 32, 32, 3] or, with channels_first (espalier.keras.backend), [N, 3, 32, 32]. `path` is the unpacked
    folder (data_batch_1 to 5, test_batch), or an .npz with x_train, y_train, x_test, y_test, channels first or last.
    num_samples: only so many of the training examples, as in FlexFlow. NotFound without the files.
    """
    return load_as(path, num_samples, backend.image_data_format())


def load_as(
    path: str | os.PathLike[str] | None, num_samples: int | None, data_format: str
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """As load_data, in a data format."""
    found = files.find(path, ("cifar-10-batches-py", "cifar-10-batches-py-target/cifar-10-batches-py"), "CIFAR-10")
    if found.suffix == ".npz":
        with np.load(found) as archive:
            x, y, x_test, y_test = (archive[name] for name in ("x_train", "y_train", "x_test", "y_test"))
        if x.shape[-1] == 3:
            x, x_test = (a.transpose(0, 3, 1, 2) for a in (x, x_test))
    else:
        parts = [_batch(found / f"data_batch_{i}") for i in range(1, 6)]
        x, y = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        x_test, y_test = _batch(found / "test_batch")
    if num_samples is not None:
        x, y = x[:num_samples], y[:num_samples]
    if data_format == "channels_last":
        x, x_test = (a.transpose(0, 2, 3, 1) for a in (x, x_test))
    return (x, y.reshape(-1, 1)), (x_test, y_test.reshape(-1, 1))
