"""from_keras: what it takes over, and what it refuses."""

import json

import keras
import numpy as np
import pytest
from keras import layers as L  # noqa: N812
from test_layers import CASES

import espalier.keras as ours
from espalier.errors import InvalidArgument, UnsupportedOperators


def test_weights_and_names_both_ways():
    tower = keras.Sequential([L.Input((6,)), L.Dense(4, name="in"), L.BatchNormalization()], name="tower")
    a, b = L.Input((6,), name="a"), L.Input((6,), name="b")
    model = keras.Model({"a": a, "b": b}, L.Dense(2, name="out")(tower(a) - tower(b)), name="pair")
    made = ours.from_keras(model)
    assert (made.name, made.input_names, made.output_names) == ("pair", ["a", "b"], ["out"])
    for variable, array in zip(made.weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(variable.numpy(), array)
    assert [v.path for v in made.weights][:2] == ["tower/in/kernel", "tower/in/bias"]
    changed = [w + 1 for w in made.get_weights()]
    made.set_weights(changed)
    model.set_weights(made.get_weights())
    for have, want in zip(model.get_weights(), changed, strict=True):
        np.testing.assert_array_equal(have, want)


def test_frozen_parts_stay_frozen():
    inner = keras.Sequential([L.Input((6,)), L.Dense(4), L.Dense(3)])
    inner.layers[0].trainable = False
    begin = L.Input((6,))
    made = ours.from_keras(keras.Model(begin, L.Dense(1)(inner(begin))))
    assert [v.trainable for v in made.weights] == [False, False, True, True, True, True]
    assert len(made.trainable_weights) == 4


def test_all_that_is_not_supported_at_once():
    class Mine(L.Layer):
        def call(self, x):
            return x

    begin = L.Input((5, 4))
    x = L.Masking(name="mask")(begin)
    x = L.Lambda(lambda t: t * 2, name="twice")(x)
    x = L.Lambda(lambda t: t * 3)(x)
    x = Mine(name="mine")(L.LSTM(3, recurrent_dropout=0.5, name="memory")(x))
    with pytest.raises(UnsupportedOperators) as caught:
        ours.from_keras(keras.Model(begin, keras.ops.sort(x)))
    found = {o.op: (o.count, o.source, o.reason) for o in caught.value.operators}
    assert set(found) >= {"Masking", "Lambda", "Mine", "LSTM", "Sort"}  # and what makes the mask
    assert found["Lambda"][:2] == (2, "layer twice")
    assert "recurrent_dropout=0.5" in found["LSTM"][2]
    assert "a Python function cannot run in a job" in found["Lambda"][2]


def test_models_that_cannot_be_read():
    class Mine(keras.Model):
        def call(self, x):
            return x

    with pytest.raises(InvalidArgument, match="whose `call` is traced"):
        ours.from_keras(Mine())
    with pytest.raises(InvalidArgument, match="is not built"):
        ours.from_keras(keras.Sequential([L.Dense(3)]))


@pytest.mark.parametrize(("name", "make", "shape"), CASES, ids=[case[0] for case in CASES])
def test_configurations_of_all_layers_make_equal_graphs(name, make, shape):
    begin = keras.Input(shape)
    model = ours.from_keras(keras.Model(begin, make()(begin)))
    ours.backend.set_image_data_format("channels_first")
    again = ours.Model.from_config(json.loads(json.dumps(model.get_config())))
    ours.backend.set_image_data_format("channels_last")
    first, second = (m.to_graph()[0].graph.proto for m in (model, again))
    assert [(n.op, dict(n.attributes), list(n.inputs)) for n in first.nodes] == [
        (n.op, dict(n.attributes), list(n.inputs)) for n in second.nodes
    ]
    assert [v.name for v in first.values] == [v.name for v in second.values]


def test_operations_on_tensors():
    begin = L.Input((4, 6))
    x = keras.ops.transpose(begin[:, 1:, ::2], (0, 2, 1))
    x = keras.ops.exp(keras.ops.mean(x, axis=-1)) / 2 + keras.ops.maximum(begin[:, 0, :3], 0.1)
    made = ours.from_keras(keras.Model(begin, L.Dense(2)(keras.ops.expand_dims(x, 1) ** 2)))
    assert made.output_shape == (None, 1, 2)


def test_each_initializer_has_keras_moments():
    # The same numbers in each run: the largest of many differs by more from draw to draw.
    keras.utils.set_random_seed(1)
    ours.utils.set_random_seed(1)
    for name in (
        "glorot_uniform",
        "glorot_normal",
        "he_uniform",
        "he_normal",
        "lecun_normal",
        "lecun_uniform",
        "normal",
    ):
        theirs = np.asarray(keras.initializers.get(name)((3, 3, 40, 60)))
        mine = ours.initializers.get(name)((3, 3, 40, 60)) if name != "normal" else None
        if mine is None:
            theirs = np.asarray(keras.initializers.RandomNormal()((300, 100)))
            mine = ours.initializers.RandomNormal()((300, 100))
        assert mine.std() == pytest.approx(theirs.std(), rel=0.02), name
        assert np.abs(mine).max() == pytest.approx(np.abs(theirs).max(), rel=0.15), name
    square = ours.initializers.get("orthogonal")((40, 40))
    np.testing.assert_allclose(square @ square.T, np.eye(40), atol=1e-5)
