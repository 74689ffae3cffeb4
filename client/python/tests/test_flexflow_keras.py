"""FlexFlow's `keras.backend`, under its own name: what the functions compute, and how they train."""

import numpy as np
import pytest

import espalier.compat
from espalier.errors import InvalidArgument


@pytest.fixture(scope="module")
def flexflow():
    espalier.compat.install_flexflow()
    import flexflow.keras.backend.internal
    import flexflow.keras.layers
    import flexflow.keras.models
    import flexflow.keras.optimizers

    return flexflow.keras


def test_what_the_functions_compute(daemon, flexflow):
    K, Input = flexflow.backend, flexflow.layers.Input  # noqa: N806 (FlexFlow's programs call it so)
    rng = np.random.default_rng(0)
    x = rng.uniform(0.5, 2, (5, 3, 4)).astype(np.float32)
    y = rng.standard_normal((5, 4, 2)).astype(np.float32)
    where = rng.integers(0, 3, (5, 6, 4)).astype(np.int32)
    a, b, i = Input(shape=(3, 4), dtype="float32"), Input(shape=(4, 2)), Input(shape=(6, 4), dtype="int32")
    outputs = {
        "batch_dot": (K.batch_dot(a, b), x @ y),
        "sin": (K.sin(a), np.sin(x)),
        "cos": (K.cos(a), np.cos(x)),
        "exp": (K.exp(a), np.exp(x)),
        "pow": (K.pow(a, 2.5), x**2.5),
        "sum": (K.sum(a), x.sum((1, 2))),
        "sum of two": (K.sum(a, axis=[1, 2], keepdims=True), x.sum((1, 2), keepdims=True)),
        "rsqrt": (K.internal.rsqrt(a), 1 / np.sqrt(x)),
        "gather": (K.internal.gather(a, i, axis=1), np.take_along_axis(x, where, 1)),
    }
    model = flexflow.models.Model([a, b, i], [made for made, _ in outputs.values()])
    for name, have, (_, want) in zip(outputs, model.predict([x, y, where], verbose=0), outputs.values(), strict=True):
        np.testing.assert_allclose(have, want, rtol=2e-6, atol=1e-6, err_msg=name)
    model.release_workers()


def test_a_model_of_them_trains(daemon, flexflow):
    layers, rng = flexflow.layers, np.random.default_rng(1)
    x, where = layers.Input(shape=(10,)), layers.Input(shape=(6, 3), dtype="int32")
    hidden = layers.Reshape((20, 3))(layers.Dense(60, activation="relu")(x))
    taken = flexflow.backend.internal.gather(hidden, where, axis=1)
    model = flexflow.models.Model([x, where], flexflow.backend.sum(taken, axis=[1, 2]))
    with pytest.raises(InvalidArgument, match="call compile"):
        model.ffmodel.init_layers()
    model.compile(flexflow.optimizers.Adam(learning_rate=0.01), "mean_squared_error", ["mean_squared_error"])
    model.ffmodel.init_layers()
    inputs = [rng.standard_normal((320, 10)).astype(np.float32), rng.integers(0, 20, (320, 6, 3)).astype(np.int32)]
    history = model.fit(inputs, inputs[0].sum(1), epochs=8, batch_size=32, verbose=0).history
    assert history["loss"][-1] < 0.6 * history["loss"][0]


def test_refused(flexflow):
    K, Input = flexflow.backend, flexflow.layers.Input  # noqa: N806
    for make, message in [
        (lambda: K.batch_dot(Input(shape=(3,)), Input(shape=(3, 2))), "two tensors of 3 dimensions"),
        (lambda: K.internal.gather(Input(shape=(3, 4)), Input(shape=(6, 5)), axis=1), "differ beside axis 1"),
        (lambda: K.internal.gather(Input(shape=(3, 4)), Input(shape=(6, 4)), axis=0), "axis 0 is the batch"),
        (lambda: K.sum(Input(shape=(3,)), axis=0), "axis 0 is the batch"),
        (lambda: K.set_value(0.1, 0.2), r"assign instead, as model\.optimizer\.learning_rate"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            make()
