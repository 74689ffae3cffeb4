"""evaluate, predict, train_on_batch and their kin are those of the real Keras."""

import keras
import numpy as np
import pytest
from against_keras import randomized
from keras import layers as L  # noqa: N812

import espalier.keras as ours

RTOL, ATOL = 1e-5, 1e-6


def close(have, want):
    np.testing.assert_allclose(np.asarray(have, np.float64), np.asarray(want, np.float64), rtol=RTOL, atol=ATOL)


def same(have, want):
    """Dicts in the same order, or lists, of nearly the same numbers."""
    if isinstance(want, dict):
        assert list(have) == list(want)
        have, want = list(have.values()), list(want.values())
    assert np.shape(have) == np.shape(want)
    close(have, want)


def classifier(rng, **kwargs):
    model = keras.Sequential(
        [
            keras.Input((6,)),
            L.Dense(8, activation="tanh", **kwargs),
            L.BatchNormalization(),
            L.Dropout(0.5),
            L.Dense(3, activation="softmax"),
        ]
    )
    randomized(model, rng)
    return model


def examples(rng, count):
    return rng.standard_normal((count, 6)).astype(np.float32), rng.integers(0, 3, count)


def both(model, make_optimizer, **compiled):
    mine = ours.from_keras(model)
    model.compile(make_optimizer(keras.optimizers), **compiled)
    mine.compile(make_optimizer(ours.optimizers), **compiled)
    return mine


@pytest.mark.parametrize("count", [1, 45])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_evaluate(daemon, count, weighted):
    rng = np.random.default_rng(count)
    model = classifier(rng, kernel_regularizer="l2", activity_regularizer=keras.regularizers.L2(0.1))
    mine = both(
        model,
        lambda o: o.SGD(0.1),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy", "sparse_top_k_categorical_accuracy"],
        weighted_metrics=["sparse_categorical_crossentropy", "accuracy"],
    )
    x, y = examples(rng, count)
    weights = rng.uniform(0, 2, count).astype(np.float32) if weighted else None
    for size in (None, 16):
        arguments = {"batch_size": size, "sample_weight": weights, "verbose": 0}
        # Keras lists a metric twice that is named as a weighted one.
        same(mine.evaluate(x, y, return_dict=True, **arguments), model.evaluate(x, y, return_dict=True, **arguments))
    mine.release_workers()


def test_evaluate_gives_a_list_or_the_loss(daemon):
    rng = np.random.default_rng(0)
    model = classifier(rng)
    x, y = examples(rng, 50)
    mine = both(model, lambda o: o.SGD(0.1), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    same(mine.evaluate(x, y, verbose=0), model.evaluate(x, y, verbose=0))
    batches = [(x[:20], y[:20]), (x[20:30], y[20:30]), (x[30:], y[30:])]
    same(mine.evaluate(iter(batches), steps=2, verbose=0), model.evaluate(x[:30], y[:30], verbose=0))
    model = classifier(rng)
    mine = both(model, lambda o: o.SGD(0.1), loss="sparse_categorical_crossentropy")
    same(mine.evaluate(x, y, verbose=0), model.evaluate(x, y, verbose=0))


@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size"])
def test_evaluate_losses_that_sum_and_roots(daemon, reduction):
    rng = np.random.default_rng(1)
    begin = keras.Input((5, 4))
    model = keras.Model(begin, L.Dense(2)(L.LSTM(3)(begin)))
    randomized(model, rng)
    x, y = rng.standard_normal((45, 5, 4)).astype(np.float32), rng.standard_normal((45, 2)).astype(np.float32)
    weights = rng.uniform(0, 2, 45).astype(np.float32)
    mine = ours.from_keras(model)
    for package, m in ((keras, model), (ours, mine)):
        metrics = ["mae", package.metrics.RootMeanSquaredError()]
        m.compile("sgd", package.losses.Huber(reduction=reduction), metrics=metrics, weighted_metrics=["mse"])
    for w in (None, weights):
        arguments = {"batch_size": 16, "sample_weight": w, "verbose": 0, "return_dict": True}
        same(mine.evaluate(x, y, **arguments), model.evaluate(x, y, **arguments))


def two_by_two(rng):
    a, b = keras.Input((4,), name="a"), keras.Input((6, 6, 2), name="b")
    image = L.Flatten()(L.Conv2D(3, 3, activation="relu", name="conv")(b))
    joined = L.Concatenate()([L.Dense(5, activation="relu", name="left")(a), image])
    outputs = {"kind": L.Dense(3, activation="softmax", name="kind")(joined), "size": L.Dense(1, name="size")(joined)}
    model = keras.Model({"a": a, "b": b}, outputs)
    randomized(model, rng)
    return model


def test_several_inputs_and_outputs(daemon):
    rng = np.random.default_rng(2)
    model = two_by_two(rng)
    mine = ours.from_keras(model)
    x = {
        "a": rng.standard_normal((37, 4)).astype(np.float32),
        "b": rng.standard_normal((37, 6, 6, 2)).astype(np.float32),
    }
    y = {"kind": rng.integers(0, 3, 37), "size": rng.standard_normal((37, 1)).astype(np.float32)}

    def compare_predictions():
        have, want = mine.predict(x, batch_size=8, verbose=0), model.predict(x, verbose=0)
        assert list(have) == list(want)
        for name in want:
            close(have[name], want[name])

    compare_predictions()  # not compiled
    compiled = {
        "loss": {"kind": "sparse_categorical_crossentropy", "size": "mse"},
        "loss_weights": {"kind": 1.0, "size": 0.5},
        "metrics": {"kind": ["accuracy"], "size": ["mae"]},
    }
    model.compile("sgd", **compiled)
    mine.compile("sgd", **compiled)
    same(mine.evaluate(x, y, verbose=0), model.evaluate(x, y, verbose=0))
    same(mine.evaluate(x, y, verbose=0, return_dict=True), model.evaluate(x, y, verbose=0, return_dict=True))
    compare_predictions()
    first = {name: array[:5] for name, array in x.items()}
    have, want = mine(first), model(first)
    for name in want:
        close(have[name], want[name])


@pytest.mark.parametrize(
    "make_optimizer",
    [lambda o: o.SGD(0.1, momentum=0.9), lambda o: o.Adam(0.01, epsilon=1e-12), lambda o: o.Adagrad(0.1)],
    ids=["momentum", "adam", "adagrad"],
)
def test_train_on_batch_goes_on_with_the_optimizer(daemon, make_optimizer):
    rng = np.random.default_rng(3)
    model = keras.Sequential([keras.Input((6,)), L.Dense(8, activation="tanh", kernel_regularizer="l2"), L.Dense(3)])
    randomized(model, rng)
    loss = {"loss": "mse", "metrics": ["mae"]}
    mine = both(model, make_optimizer, **loss)
    for step, count in enumerate((16, 16, 8, 16, 16)):  # another size opens another session
        x = rng.standard_normal((count, 6)).astype(np.float32)
        y = rng.standard_normal((count, 3)).astype(np.float32)
        if step == 3 and not hasattr(mine.optimizer, "momentum"):  # Keras' velocity keeps the old rate
            model.optimizer.learning_rate = mine.optimizer.learning_rate = 0.02
        same(mine.train_on_batch(x, y, return_dict=True), model.train_on_batch(x, y, return_dict=True))
        same(mine.test_on_batch(x, y), model.test_on_batch(x, y))
        if step == 1:
            mine.release_workers()  # another call opened a session meanwhile
        for a, b in zip(mine.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    x = rng.standard_normal((70, 6)).astype(np.float32)
    np.testing.assert_allclose(mine.predict(x, verbose=0), model.predict(x, verbose=0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("by", ["names", "variables", "keras"])
def test_weights_that_do_not_decay(daemon, by):
    rng = np.random.default_rng(6)
    model = classifier(rng)
    mine = ours.from_keras(model)
    x, y = examples(rng, 32)
    theirs = keras.optimizers.AdamW(0.02, weight_decay=0.5)
    optimizer = ours.optimizers.AdamW(0.02, weight_decay=0.5)
    if by == "variables":
        theirs.exclude_from_weight_decay(var_list=[model.weights[0]])
        optimizer.exclude_from_weight_decay(var_list=[mine.weights[0]])
    else:
        theirs.exclude_from_weight_decay(var_names=["bias", "gam.a"])
        optimizer.exclude_from_weight_decay(var_names=["bias", "gam.a"])
    model.layers[2].rate = mine.layers[2].rate = 0.0
    model.compile(theirs, "sparse_categorical_crossentropy")
    mine.compile(theirs if by == "keras" else optimizer, "sparse_categorical_crossentropy")
    for first in (0, 16):
        rows = slice(first, first + 16)
        same(mine.train_on_batch(x[rows], y[rows]), model.train_on_batch(x[rows], y[rows]))
    for variable, a, b in zip(model.weights, mine.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5, err_msg=variable.path)
    mine.release_workers()


def test_train_on_batch_with_weights(daemon):
    rng = np.random.default_rng(4)
    model = keras.Sequential([keras.Input((6,)), L.Dense(3, activation="softmax")])
    randomized(model, rng)
    mine = both(
        model,
        lambda o: o.SGD(0.1),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        weighted_metrics=["sparse_categorical_crossentropy"],
    )
    for weights in (
        {"sample_weight": rng.uniform(0, 2, 12).astype(np.float32)},
        {"class_weight": {0: 2.0, 1: 0.5, 2: 1.0}},
    ):
        x, y = examples(rng, 12)
        same(
            mine.train_on_batch(x, y, return_dict=True, **weights),
            model.train_on_batch(x, y, return_dict=True, **weights),
        )
    for a, b in zip(mine.get_weights(), model.get_weights(), strict=True):
        close(a, b)


def test_callbacks_of_evaluate_and_predict(daemon):
    rng = np.random.default_rng(5)
    model = classifier(rng)
    mine = both(model, lambda o: o.SGD(0.1), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    x, y = examples(rng, 40)

    def recorder(package):
        told = []

        class Recorder(package.callbacks.Callback):
            pass

        def hook(name):
            return lambda self, *given, logs=None: told.append((name, *given) if logs is None else (name, *given, logs))

        for when in ("begin", "end", "batch_begin", "batch_end"):
            for what in ("test", "predict"):
                setattr(Recorder, f"on_{what}_{when}", hook(f"{what}_{when}"))
        return Recorder(), told

    heard = []
    for package, m in ((ours, mine), (keras, model)):
        callback, told = recorder(package)
        m.evaluate(x, y, batch_size=16, callbacks=[callback], verbose=0)
        m.predict(x, batch_size=16, callbacks=[callback], verbose=0)
        heard.append(told)
    have, want = heard
    assert [item[:-1] for item in have] == [item[:-1] for item in want]
    for a, b in zip(have, want, strict=True):
        logs = b[-1] or {}
        assert list(a[-1] or {}) == list(logs)
        for name in logs:
            close(a[-1][name], logs[name])
