#!/usr/bin/python3
"""Makes digits.npz from scikit-learn's built-in copy of the UCI handwritten digits (see digits.LICENSE).

    tests/data/make_digits.py tests/data/digits.npz      # needs scikit-learn

x: f32 [1797, 1, 8, 8] in 0..1, y: i64 [1797]. Shuffled once with a fixed seed, because the file's order
follows the writers: a held-out tail would otherwise hold other people's hands than the rest.
"""
import sys

import numpy as np
from sklearn.datasets import load_digits

digits = load_digits()
order = np.random.RandomState(0).permutation(len(digits.target))
np.savez_compressed(
    sys.argv[1],
    x=(digits.images[order, None] / 16).astype(np.float32),
    y=digits.target[order].astype(np.int64),
)
