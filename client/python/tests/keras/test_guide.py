"""The Python of docs/guide/keras.md runs as it stands there."""

import keras
import numpy as np
from pages import run


def test_the_guide_runs(daemon, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10, activation="softmax")]
    )
    before = [array.copy() for array in model.get_weights()]
    names = run("keras.md", {"keras_model": model})
    assert names["history"].history["val_accuracy"][-1] > 0.8
    assert (tmp_path / "digits.safetensors").is_file()
    assert names["accuracy"] > 0.8
    assert np.array_equal(names["same"], names["probabilities"])
    assert (tmp_path / "3.npz").is_file()
    for old, new in zip(before, model.get_weights(), strict=True):
        assert not np.array_equal(old, new)
