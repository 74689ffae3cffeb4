"""Datasets as FlexFlow's programs import them."""

from __future__ import annotations

import os
from typing import Any

from espalier.keras.datasets import cifar10 as _cifar10
from espalier.keras.datasets import mnist, reuters


class cifar10:  # noqa: N801
    """cifar10.load_data with the channels first."""

    @staticmethod
    def load_data(num_samples: int | None = None, path: str | os.PathLike[str] | None = None) -> Any:
        """(x_train, y_train), (x_test, y_test): uint8 images [N, 3, 32, 32], labels [N, 1]. NotFound without files."""
        return _cifar10.load_as(path, num_samples, "channels_first")


__all__ = ["cifar10", "mnist", "reuters"]
