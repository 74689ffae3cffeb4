"""Settings of the process: data format, random numbers for initial weights, names of layers."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from espalier.errors import InvalidArgument

DATA_FORMATS = ("channels_last", "channels_first")

_image_data_format = "channels_last"
_names: Counter[str] = Counter()
_generator: np.random.Generator = np.random.default_rng()


def image_data_format() -> str:
    """What layers take without `data_format`: "channels_last", unless it was set."""
    return _image_data_format


def set_image_data_format(data_format: str) -> None:
    """Sets what layers made from now on take without `data_format`."""
    global _image_data_format
    _image_data_format = data_format_of(data_format)


def data_format_of(data_format: str | None) -> str:
    """`data_format`, checked, or the process' setting for None."""
    if data_format is None:
        return _image_data_format
    if data_format not in DATA_FORMATS:
        raise InvalidArgument(f"data_format={data_format!r}: accepted are {', '.join(DATA_FORMATS)}")
    return data_format


def epsilon() -> float:
    """Keras' smallest probability in losses: 1e-7."""
    return 1e-7


def floatx() -> str:
    """Element type of weights: "float32". fit(precision=...) computes in 16 bits."""
    return "float32"


def clear_session() -> None:
    """Layers without a name are numbered from the beginning again."""
    _names.clear()


def set_random_seed(seed: int) -> None:
    """Seeds the initial weights that are made here, the weights that a job makes, and the order of examples."""
    global _generator
    _generator = np.random.default_rng(seed)


def generator() -> np.random.Generator:
    """Random numbers of initial weights and seeds of jobs."""
    return _generator


def snake_case(name: str) -> str:
    """Name of a class as layers have it: "Conv2D" gives "conv2d"."""
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


def automatic_name(prefix: str) -> str:
    """`prefix`, with a number from the second time on."""
    count = _names[prefix]
    _names[prefix] += 1
    return prefix if count == 0 else f"{prefix}_{count}"
