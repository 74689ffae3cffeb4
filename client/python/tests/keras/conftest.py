"""The real Keras on jax and the CPU. These tests spend most of their time in compiling: as little of it as possible."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
sys.path.insert(0, str(Path(__file__).absolute().parent))


@pytest.fixture
def numpy_initializers(monkeypatch):
    """Random weights of the real Keras from NumPy: jax would compile an initializer for every shape."""
    import keras

    rng = np.random.default_rng(3)

    def draw(self, shape, dtype=None, **_):
        return (rng.standard_normal(shape) / np.sqrt(max(np.prod(shape[:-1]), 1))).astype(dtype or "float32")

    for kind in (keras.initializers.VarianceScaling, keras.initializers.Orthogonal):
        monkeypatch.setattr(kind, "__call__", draw)
