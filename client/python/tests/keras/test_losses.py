"""Losses, metrics, optimizers, weights of examples: as the real Keras computes them."""

import warnings

import keras
import numpy as np
import pytest
from against_keras import LOSSES, compare_step, relative
from keras import layers as L  # noqa: N812

import espalier.keras as ours

pytestmark = pytest.mark.usefixtures("numpy_initializers")
COUNT = 16


def model_of(outputs, activation=None, inner=()):
    keras.utils.set_random_seed(2)
    x = begin = keras.Input((5,))
    if inner:
        return keras.Model(begin, L.Dense(outputs, activation)(L.RepeatVector(inner[0])(x)))
    return keras.Model(begin, L.Dense(outputs, activation, bias_initializer="random_normal")(x))


def data(rng, outputs, kind):
    x = rng.standard_normal((COUNT, 5)).astype(np.float32)
    y = {
        "real": rng.standard_normal((COUNT, outputs)),
        "positive": rng.random((COUNT, outputs)) + 0.1,
        "distribution": rng.dirichlet(np.ones(outputs), COUNT),
        "one-hot": np.eye(outputs)[rng.integers(0, outputs, COUNT)],
        "binary": rng.integers(0, 2, (COUNT, outputs)),
        "signs": 2 * rng.integers(0, 2, (COUNT, outputs)) - 1,
        "labels": rng.integers(0, outputs, COUNT),
    }[kind]
    return x, y.astype(np.int64 if kind == "labels" else np.float32)


K = keras.losses
LOSS_CASES = [
    (K.MeanSquaredError(), None, "real"),
    (K.MeanSquaredError(reduction="sum"), None, "real"),
    (K.MeanAbsoluteError(), None, "real"),
    (K.MeanAbsolutePercentageError(), None, "positive"),
    (K.MeanSquaredLogarithmicError(), "sigmoid", "positive"),
    (K.Huber(delta=0.5), None, "real"),
    (K.LogCosh(), None, "real"),
    (K.Hinge(), None, "signs"),
    (K.SquaredHinge(), None, "binary"),
    (K.CategoricalHinge(), None, "one-hot"),
    (K.KLDivergence(), "softmax", "distribution"),
    (K.Poisson(), "softplus", "positive"),
    (K.CosineSimilarity(), None, "real"),
    (K.CategoricalCrossentropy(), "softmax", "distribution"),
    (K.CategoricalCrossentropy(label_smoothing=0.2), "softmax", "one-hot"),
    (K.CategoricalCrossentropy(from_logits=True, reduction="sum", label_smoothing=0.1), None, "one-hot"),
    (K.CategoricalCrossentropy(), "sigmoid", "one-hot"),
    (K.SparseCategoricalCrossentropy(), "softmax", "labels"),
    (K.SparseCategoricalCrossentropy(from_logits=True), None, "labels"),
    (K.SparseCategoricalCrossentropy(reduction="sum"), "softmax", "labels"),
    (K.SparseCategoricalCrossentropy(), "sigmoid", "labels"),
    (K.BinaryCrossentropy(), "sigmoid", "binary"),
    (K.BinaryCrossentropy(label_smoothing=0.2), "sigmoid", "binary"),
    (K.BinaryCrossentropy(from_logits=True, reduction="sum"), None, "binary"),
    (K.BinaryCrossentropy(), "softmax", "binary"),
]


@pytest.mark.parametrize(
    ("loss", "activation", "kind"), LOSS_CASES, ids=[f"{c[0].name}-{c[1]}-{c[2]}" for c in LOSS_CASES]
)
def test_loss(daemon, loss, activation, kind):
    model = model_of(4, activation)
    x, y = data(np.random.default_rng(1), 4, kind)
    compare_step(model, x, y, loss, batch=COUNT, rate=0.05)


def both(model, x, y, optimizer, loss, steps, batch, fit=None, **compiled):
    """Reports and weights of the real Keras and of ours."""
    converted = ours.from_keras(model)
    model.compile(optimizer, loss, **compiled)
    theirs = model.fit(x, y, batch_size=batch, epochs=steps, shuffle=False, verbose=0, **(fit or {})).history
    converted.compile(optimizer, loss, **compiled)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mine = converted.fit(x, y, batch_size=batch, epochs=steps, shuffle=False, verbose=0, **(fit or {})).history
    return theirs, mine, model.get_weights(), converted.get_weights()


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        lambda: keras.optimizers.SGD(0.1, weight_decay=0.1),
        lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.5),
        lambda: keras.optimizers.Adam(0.01, epsilon=0.01),
        lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
        lambda: keras.optimizers.RMSprop(0.01, epsilon=0.01),
        lambda: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True),
        lambda: keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.01, epsilon=0.1),
        lambda: keras.optimizers.Lion(0.01, weight_decay=0.1),
        lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.2, 2, 0.5)),
        lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.2, 2, 0.5, staircase=True)),
        lambda: keras.optimizers.SGD(keras.optimizers.schedules.PolynomialDecay(0.2, 4, 0.01, power=2.0)),
        lambda: keras.optimizers.SGD(keras.optimizers.schedules.CosineDecay(0.2, 4, alpha=0.1)),
        lambda: keras.optimizers.SGD(
            keras.optimizers.schedules.CosineDecay(0.0, 4, alpha=0.1, warmup_target=0.2, warmup_steps=2)
        ),
        lambda: keras.optimizers.SGD(keras.optimizers.schedules.PiecewiseConstantDecay([1, 3], [0.3, 0.1, 0.02])),
    ],
    ids=[
        "momentum",
        "nesterov",
        "decay",
        "clip",
        "adam",
        "adamw",
        "rmsprop",
        "centered rmsprop",
        "adagrad",
        "lion",
        "exponential",
        "staircase",
        "polynomial",
        "cosine",
        "warm-up from 0",
        "piecewise",
    ],
)
def test_optimizer(daemon, optimizer):
    x, y = data(np.random.default_rng(3), 4, "real")
    theirs, mine, want, have = both(model_of(4), x, y, optimizer(), "mse", 6, COUNT)
    assert relative(mine["loss"], theirs["loss"]) <= LOSSES
    for a, b in zip(have, want, strict=True):
        assert relative(a, b) <= 3 * LOSSES


@pytest.mark.parametrize(
    ("loss", "activation", "kind", "metrics"),
    [
        ("sparse_categorical_crossentropy", "softmax", "labels", ["accuracy", "sparse_top_k_categorical_accuracy"]),
        ("categorical_crossentropy", "softmax", "one-hot", ["acc", "top_k_categorical_accuracy", "mae", "mse"]),
        ("binary_crossentropy", "sigmoid", "binary", ["accuracy", "binary_accuracy", "kl_divergence"]),
        ("mse", None, "real", [keras.metrics.RootMeanSquaredError(name="root"), "cosine_similarity", "mape"]),
    ],
)
def test_metrics(daemon, loss, activation, kind, metrics):
    x, y = data(np.random.default_rng(4), 7, kind)
    theirs, mine, _, _ = both(model_of(7, activation), x, y, "sgd", loss, 2, COUNT, metrics=metrics)
    assert set(mine) == set(theirs)
    for name, values in theirs.items():
        assert relative(mine[name], values) <= 1e-4, name


@pytest.mark.parametrize("kind", ["labels", "one-hot"])
def test_weights_of_classes_and_examples(daemon, kind):
    rng = np.random.default_rng(5)
    x, y = data(rng, 4, kind)
    loss = "sparse_categorical_crossentropy" if kind == "labels" else "categorical_crossentropy"
    for fit in (
        {"class_weight": {0: 2.0, 1: 0.5, 2: 1.0, 3: 0.0}},
        {"sample_weight": rng.random(COUNT).astype("float32")},
    ):
        compiled = {"metrics": ["accuracy"], "weighted_metrics": []}
        theirs, mine, want, have = both(model_of(4, "softmax"), x, y, "sgd", loss, 2, COUNT, fit, **compiled)
        assert relative(mine["loss"], theirs["loss"]) <= LOSSES
        assert mine["accuracy"] == pytest.approx(theirs["accuracy"])
        assert all(relative(a, b) <= LOSSES for a, b in zip(have, want, strict=True))


def test_several_losses_have_keras_names_and_weights(daemon):
    rng = np.random.default_rng(6)
    begin = keras.Input((5,))
    model = keras.Model(
        begin, {"kind": L.Dense(3, "softmax", name="kind")(begin), "size": L.Dense(1, name="size")(begin)}
    )
    x, (_, labels) = rng.standard_normal((COUNT, 5)).astype(np.float32), data(rng, 3, "labels")
    y = {"kind": labels, "size": rng.standard_normal(COUNT).astype(np.float32)}
    loss = {"kind": "sparse_categorical_crossentropy", "size": "mae"}
    theirs, mine, want, have = both(
        model, x, y, "sgd", loss, 2, COUNT, loss_weights={"kind": 0.3, "size": 2.0}, metrics={"kind": ["accuracy"]}
    )
    assert set(mine) == set(theirs)
    for name, values in theirs.items():
        assert relative(mine[name], values) <= LOSSES, name
    assert all(relative(a, b) <= LOSSES for a, b in zip(have, want, strict=True))
