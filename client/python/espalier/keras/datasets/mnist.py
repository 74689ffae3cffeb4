"""Handwritten digits: 28 x 28 pixels, 10 classes."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from espalier.errors import InvalidArgument
from espalier.keras.datasets import files

Array = np.ndarray[Any, Any]


def load_data(path: str | os.PathLike[str] = "mnist.npz") -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """(x_train, y_train), (x_test, y_test) of Keras' mnist.npz: uint8 images [N, 28, 28] and labels [N].

    NotFound without the file.
    """
    found = files.find(path, ("mnist.npz",), "MNIST")
    with np.load(found) as archive:
        missing = {"x_train", "y_train", "x_test", "y_test"} - set(archive.files)
        if missing:
            raise InvalidArgument(f"{found} has no {', '.join(sorted(missing))}; it is not Keras' mnist.npz")
        return (archive["x_train"], archive["y_train"]), (archive["x_test"], archive["y_test"])
