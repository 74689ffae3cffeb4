"""espalier.keras.applications are Keras' own models: layers, names, shapes of weights, and a step's results."""

import keras
import numpy as np
import pytest
from against_keras import train_keras, train_ours

from espalier.errors import InvalidArgument
from espalier.keras import applications, backend

pytestmark = pytest.mark.usefixtures("numpy_initializers")
NAMES = ("ResNet50", "ResNet101", "ResNet152")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("options", [{}, {"include_top": False, "pooling": "max", "input_shape": (64, 48, 3)}])
def test_the_layers_are_keras(name, options):
    theirs = getattr(keras.applications, name)(weights=None, **options)
    mine = getattr(applications, name)(weights=None, **options)
    assert [layer.name for layer in mine.layers][1:] == [layer.name for layer in theirs.layers][1:]
    assert mine.count_params() == theirs.count_params()
    assert [tuple(v.shape) for v in mine.weights] == [tuple(v.shape) for v in theirs.weights]
    assert mine.output_shape == theirs.output_shape


def test_a_step_is_that_of_keras(daemon):
    """With Keras' weights: the loss, and what a step makes of the running statistics and of the last layer."""
    options = {"weights": None, "input_shape": (32, 32, 3), "classes": 5}
    theirs, mine = keras.applications.ResNet50(**options), applications.ResNet50(**options)
    mine.set_weights(theirs.get_weights())
    rng = np.random.default_rng(0)
    x, y = rng.random((16, 32, 32, 3), np.float32), rng.integers(0, 5, 16)
    loss = "sparse_categorical_crossentropy"
    losses, weights = train_keras(theirs, x, y, loss, 1, 16, 0.01)
    found, trained = train_ours(mine, x, y, loss, 1, 16, 0.01, 2)
    assert found == pytest.approx(losses, rel=1e-5)
    for variable, want, have in zip(theirs.weights, weights[0], trained, strict=True):
        if "predictions" in variable.path or "moving" in variable.path:
            np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-5, err_msg=variable.path)


def test_channels_first(monkeypatch):
    backend.set_image_data_format("channels_first")
    try:
        model = applications.ResNet50(weights=None, input_shape=(3, 32, 64), include_top=False)
    finally:
        backend.set_image_data_format("channels_last")
    assert model.output_shape == (None, 2048, 1, 2)


def test_weights_are_not_downloaded():
    with pytest.raises(InvalidArgument, match=r"weights='imagenet' is no file.*Nothing is downloaded"):
        applications.ResNet50(weights="imagenet")
    with pytest.raises(InvalidArgument, match="pooling='mean'"):
        applications.ResNet50(weights=None, include_top=False, pooling="mean")
