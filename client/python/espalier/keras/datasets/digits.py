"""scikit-learn's handwritten digits: 8 x 8 pixels, 10 classes, 1797 examples. They come with that package."""

from __future__ import annotations

from typing import Any

import numpy as np

from espalier.errors import InvalidArgument
from espalier.keras import backend

Array = np.ndarray[Any, Any]


def load_data(
    test_split: float = 0.2, seed: int = 113, data_format: str | None = None
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """(x_train, y_train), (x_test, y_test): float32 images from 0 to 1 and integer labels [N].

    Images are [N, 8, 8, 1] or, with channels_first, [N, 1, 8, 8]. ImportError with the remedy without scikit-learn.
    """
    if not 0 <= test_split < 1:
        raise InvalidArgument(f"test_split={test_split}; accepted: from 0 to below 1")
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ImportError("the digits come with scikit-learn: pip install scikit-learn") from None
    found = load_digits()
    order = np.random.RandomState(seed).permutation(len(found.target))
    x = (found.images[order] / 16).astype(np.float32)
    x = x[:, None] if backend.data_format_of(data_format) == "channels_first" else x[..., None]
    y = found.target[order].astype(np.int64)
    at = int(len(x) * (1 - test_split))
    return (x[:at], y[:at]), (x[at:], y[at:])
