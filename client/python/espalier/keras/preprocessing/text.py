"""Texts as lists of word ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from espalier.errors import InvalidArgument

FILTERS = '!"#$%&()*+,-./:;<=>?@[\\]^_`{|}~\t\n'


def text_to_word_sequence(text: str, filters: str = FILTERS, lower: bool = True, split: str = " ") -> list[str]:
    """The words of a text, without the characters of `filters`."""
    if lower:
        text = text.lower()
    text = text.translate({ord(c): split for c in filters})
    return [word for word in text.split(split) if word]


class Tokenizer:
    """Gives words ids from 1 on, the most frequent ones first.

    num_words: only ids below it are used. oov_token: the word for unknown ones; without it they are left out.
    """

    def __init__(
        self,
        num_words: int | None = None,
        filters: str = FILTERS,
        lower: bool = True,
        split: str = " ",
        char_level: bool = False,
        oov_token: str | None = None,
    ):
        self.num_words, self.filters, self.lower, self.split = num_words, filters, lower, split
        self.char_level, self.oov_token = char_level, oov_token
        self.word_counts: Counter[str] = Counter()
        self.word_docs: Counter[str] = Counter()
        self.word_index: dict[str, int] = {}
        self.index_word: dict[int, str] = {}
        self.document_count = 0

    def _words(self, text: str | Sequence[str]) -> list[str]:
        if not isinstance(text, str):
            return [word.lower() if self.lower else word for word in text]
        if self.char_level:
            return list(text.lower() if self.lower else text)
        return text_to_word_sequence(text, self.filters, self.lower, self.split)

    def fit_on_texts(self, texts: Iterable[str | Sequence[str]]) -> None:
        """Counts the words of texts, and gives ids."""
        for text in texts:
            words = self._words(text)
            self.document_count += 1
            self.word_counts.update(words)
            self.word_docs.update(set(words))
        ranked = sorted(self.word_counts, key=lambda word: -self.word_counts[word])
        names = ([] if self.oov_token is None else [self.oov_token]) + ranked
        self.word_index = {word: i for i, word in enumerate(dict.fromkeys(names), 1)}
        self.index_word = {i: word for word, i in self.word_index.items()}

    def texts_to_sequences(self, texts: Iterable[str | Sequence[str]]) -> list[list[int]]:
        """The ids of the words of each text."""
        unknown = None if self.oov_token is None else self.word_index.get(self.oov_token)
        found = []
        for text in texts:
            ids = []
            for word in self._words(text):
                index = self.word_index.get(word)
                if index is None or (self.num_words is not None and index >= self.num_words):
                    index = unknown
                if index is not None:
                    ids.append(index)
            found.append(ids)
        return found

    def sequences_to_texts(self, sequences: Iterable[Sequence[int]]) -> list[str]:
        """The words of ids; those without a word are left out."""
        return [" ".join(self.index_word[i] for i in ids if i in self.index_word) for ids in sequences]

    def sequences_to_matrix(self, sequences: Sequence[Sequence[int]], mode: str = "binary") -> np.ndarray[Any, Any]:
        """[N, num_words]: for each text 1 where a word occurs, its count ("count"), or its frequency ("freq")."""
        if mode not in ("binary", "count", "freq"):
            raise InvalidArgument(f"sequences_to_matrix: mode={mode!r}; accepted are binary, count, freq")
        width = self.num_words or (len(self.word_index) + 1 if self.word_index else 0)
        if not width:
            raise InvalidArgument("sequences_to_matrix: give num_words, or call fit_on_texts first")
        made = np.zeros((len(sequences), width), np.float32)
        for row, ids in zip(made, sequences, strict=True):
            for index, count in Counter(i for i in ids if 0 <= i < width).items():
                row[index] = 1 if mode == "binary" else count if mode == "count" else count / len(ids)
        return made

    def texts_to_matrix(self, texts: Iterable[str | Sequence[str]], mode: str = "binary") -> np.ndarray[Any, Any]:
        """As sequences_to_matrix, of texts."""
        return self.sequences_to_matrix(self.texts_to_sequences(texts), mode)
