"""Newswires as lists of word ids, 46 topics."""

from __future__ import annotations

import json
import os
from typing import Any

import numpy as np

from espalier.errors import InvalidArgument
from espalier.keras.datasets import files
from espalier.keras.datasets.object_arrays import lists_of

Array = np.ndarray[Any, Any]


def load_data(
    path: str | os.PathLike[str] = "reuters.npz",
    num_words: int | None = None,
    skip_top: int = 0,
    maxlen: int | None = None,
    test_split: float = 0.2,
    seed: int = 113,
    start_char: int | None = 1,
    oov_char: int | None = 2,
    index_from: int = 3,
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """(x_train, y_train), (x_test, y_test) of Keras' reuters.npz: lists of ids, and topics.

    num_words: ids from here on become oov_char (None: are left out); skip_top: also the most frequent ones. maxlen:
    texts as long or longer are left out. Every text begins with start_char; ids are raised by index_from. NotFound
    without the file.
    """
    found = files.find(path, ("reuters.npz",), "Reuters")
    with np.load(found, allow_pickle=False) as archive:
        labels = np.asarray(archive["y"])
    texts = lists_of(found, "x")
    if len(texts) != len(labels):
        raise InvalidArgument(f"{found} has {len(texts)} texts and {len(labels)} topics")
    order = np.arange(len(texts))
    np.random.RandomState(seed).shuffle(order)
    texts, labels = [texts[i] for i in order], labels[order]
    if start_char is not None:
        texts = [[start_char, *(word + index_from for word in text)] for text in texts]
    elif index_from:
        texts = [[word + index_from for word in text] for text in texts]
    if maxlen is not None:
        kept = [i for i, text in enumerate(texts) if len(text) < maxlen]
        texts, labels = [texts[i] for i in kept], labels[kept]
    most = num_words or max(max(text) for text in texts)  # as Keras: the last word is left out then
    if oov_char is not None:
        texts = [[word if skip_top <= word < most else oov_char for word in text] for text in texts]
    else:
        texts = [[word for word in text if skip_top <= word < most] for text in texts]
    x = np.empty(len(texts), dtype=object)
    x[:] = texts
    at = int(len(texts) * (1 - test_split))
    return (x[:at], labels[:at]), (x[at:], labels[at:])


def get_word_index(path: str | os.PathLike[str] = "reuters_word_index.json") -> dict[str, int]:
    """Words and their ids, before index_from, of Keras' reuters_word_index.json. NotFound without the file."""
    with open(files.find(path, ("reuters_word_index.json",), "Reuters' words"), encoding="utf-8") as file:
        words: dict[str, int] = json.load(file)
    return words
