"""Callbacks that direct a training, and trainings that go on: as with the real Keras."""

import csv
import math

import keras
import numpy as np
import pytest
from against_keras import randomized
from keras import layers as L  # noqa: N812
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import espalier.keras as ours
from espalier import errors


def close(have, want, rtol=1e-5, atol=1e-5):
    np.testing.assert_allclose(np.asarray(have, np.float64), np.asarray(want, np.float64), rtol=rtol, atol=atol)


def examples(rng, count=64):
    x = rng.standard_normal((count, 6)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0.3)


def both(rng, make_optimizer=lambda o: o.SGD(0.2), **compiled):
    """A model of Keras and its conversion, compiled alike."""
    model = keras.Sequential(
        [keras.Input((6,)), L.Dense(8, activation="tanh"), L.BatchNormalization(), L.Dense(3, activation="softmax")]
    )
    randomized(model, rng)
    mine = ours.from_keras(model)
    given = {"loss": "sparse_categorical_crossentropy", "metrics": ["accuracy"], **compiled}
    model.compile(make_optimizer(keras.optimizers), **given)
    mine.compile(make_optimizer(ours.optimizers), **given)
    return model, mine


def fit(model, x, y, **arguments):
    return model.fit(x, y, verbose=0, **({"shuffle": False, "batch_size": 16} | arguments))


def same_history(have, want):
    assert list(have.history) == list(want.history)
    assert have.epoch == want.epoch
    for name, values in want.history.items():
        close(have.history[name], values)


def same_weights(mine, model):
    for a, b in zip(mine.get_weights(), model.get_weights(), strict=True):
        close(a, b)


def director(package, told, x, y):
    """A callback that reads and sets what there is."""

    class Director(package.callbacks.Callback):
        needs_session = True

        def on_train_begin(self, logs=None):
            told.append([w.sum() for w in self.model.get_weights()])

        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 1:
                self.model.optimizer.learning_rate = 0.05

        def on_train_batch_end(self, batch, logs=None):
            told.append(np.asarray(self.model.layers[0].get_weights()[0]).ravel())

        def on_epoch_end(self, epoch, logs=None):
            told.append(self.model.evaluate(x[:21], y[:21], verbose=0))
            told.append(np.asarray(self.model.predict(x[:5], verbose=0)).ravel())
            if epoch == 2:
                self.model.layers[0].set_weights([0.5 * w for w in self.model.layers[0].get_weights()])
            told.append([float(self.model.optimizer.learning_rate)])

        def on_train_end(self, logs=None):
            told.append([w.sum() for w in self.model.get_weights()])

    return Director()


def test_a_callback_reads_and_sets_weights_and_the_rate(daemon):
    rng = np.random.default_rng(0)
    model, mine = both(rng)
    x, y = examples(rng)
    want, have = [], []
    first = fit(model, x, y, epochs=4, callbacks=[director(keras, want, x, y)], validation_data=(x[:20], y[:20]))
    second = fit(mine, x, y, epochs=4, callbacks=[director(ours, have, x, y)], validation_data=(x[:20], y[:20]))
    assert mine.job is None
    assert len(have) == len(want)
    for a, b in zip(have, want, strict=True):
        close(a, b)
    same_history(second, first)
    same_weights(mine, model)
    assert mine.plan.proto.operators


def test_weights_of_examples_in_a_session(daemon):
    rng = np.random.default_rng(8)
    model, mine = both(rng, weighted_metrics=["sparse_categorical_crossentropy"])
    x, y = examples(rng, 84)
    weights = rng.uniform(0, 2, 84).astype(np.float32)
    held = (x[64:], y[64:], weights[64:])  # 20 examples: the second batch is not full
    given = {"epochs": 2, "sample_weight": weights[:64], "validation_data": held}
    want = fit(model, x[:64], y[:64], **given).history
    have = fit(mine, x[:64], y[:64], execution="session", **given).history
    for name in ("loss", "accuracy", "val_loss", "val_accuracy", "val_sparse_categorical_crossentropy"):
        close(have[name], want[name])
    same_weights(mine, model)


def test_schedulers(daemon):
    rng = np.random.default_rng(1)
    x, y = examples(rng)
    model, mine = both(rng)
    histories = []
    for package, m in ((keras, model), (ours, mine)):
        scheduler = package.callbacks.LearningRateScheduler(lambda epoch, rate: rate * (1 + 0.5 * math.sin(epoch)))
        histories.append(fit(m, x, y, epochs=4, callbacks=[scheduler]))
    assert mine.job is None
    same_history(histories[1], histories[0])
    same_weights(mine, model)
    assert mine.optimizer.learning_rate == pytest.approx(float(model.optimizer.learning_rate), rel=1e-6)
    model, mine = both(rng)
    histories = []
    for package, m in ((keras, model), (ours, mine)):
        plateau = package.callbacks.ReduceLROnPlateau(
            "val_loss", 0.5, patience=1, min_delta=0.1, cooldown=1, min_lr=0.03
        )
        histories.append(fit(m, x, y, epochs=8, validation_data=(x[:20], y[:20]), callbacks=[plateau]))
    same_history(histories[1], histories[0])
    assert mine.optimizer.learning_rate == pytest.approx(float(model.optimizer.learning_rate), rel=1e-6)


@pytest.mark.parametrize("execution", ["job", "session"])
def test_logs_of_validation(daemon, tmp_path, execution):
    rng = np.random.default_rng(2)
    x, y = examples(rng)
    model, mine = both(rng)
    histories, heard = [], []
    for package, m, name in ((keras, model, "keras"), (ours, mine, "ours")):
        told = []
        callbacks = [
            package.callbacks.CSVLogger(tmp_path / f"{name}.csv"),
            package.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs, told=told: told.append(dict(logs))),
        ]
        more = {}
        if package is ours:
            callbacks.append(package.callbacks.TensorBoard(tmp_path / name))
            more = {"execution": execution}
        held = (x[:20], y[:20])
        histories.append(fit(m, x, y, epochs=4, validation_data=held, validation_freq=2, callbacks=callbacks, **more))
        heard.append(told)
    same_history(histories[1], histories[0])
    assert [list(logs) for logs in heard[1]] == [list(logs) for logs in heard[0]]
    for have, want in zip(heard[1], heard[0], strict=True):
        close(list(have.values()), list(want.values()))
    rows = []
    for name in ("ours", "keras"):
        with open(tmp_path / f"{name}.csv", encoding="utf-8", newline="") as file:
            rows.append(list(csv.DictReader(file)))
    assert [list(row) for row in rows[0]] == [list(row) for row in rows[1]]
    for have, want in zip(*rows, strict=True):
        assert [name for name in want if have[name] == "NA"] == [name for name in want if want[name] == "NA"]
        there = [name for name in want if want[name] != "NA"]
        close([float(have[name]) for name in there], [float(want[name]) for name in there])
    for folder, tag, name in (("train", "epoch_loss", "loss"), ("validation", "epoch_accuracy", "val_accuracy")):
        events = EventAccumulator(str(tmp_path / "ours" / folder))
        events.Reload()
        close([event.value for event in events.Scalars(tag)], histories[0].history[name])
        assert set(events.Tags()["scalars"]) == {"epoch_loss", "epoch_accuracy"}


def test_trainings_that_go_on(daemon):
    rng = np.random.default_rng(3)
    x, y = examples(rng)
    model, mine = both(rng, lambda o: o.Adam(0.02, epsilon=1e-12))
    fit(model, x, y, epochs=2)
    model.train_on_batch(x[:16], y[:16])
    want = fit(model, x, y, epochs=5, initial_epoch=3)
    fit(mine, x, y, epochs=2, execution="session")
    mine.train_on_batch(x[:16], y[:16])
    have = fit(mine, x, y, epochs=5, initial_epoch=3)
    same_history(have, want)
    for a, b in zip(mine.get_weights(), model.get_weights(), strict=True):
        close(a, b, 1e-4, 1e-4)
    with pytest.warns(errors.EspalierWarning, match="the moments of the optimizer begin anew"):
        fit(mine, x, y, execution="job")


@pytest.mark.parametrize(
    ("count", "first"), [(48, {}), (64, {"validation_split": 0.25}), (64, {"batch_size": 32})], ids=str
)
def test_a_fit_on_other_data_begins_with_their_first_batch(daemon, count, first):
    rng = np.random.default_rng(12)
    x, y = examples(rng)
    model, mine = both(rng, lambda o: o.SGD(0.2, momentum=0.9))
    for m, given in ((model, {}), (mine, {"execution": "session"})):
        fit(m, x[:count], y[:count], **first, **given)  # 2 or 3 steps, the epochs of the second fit have 4
    want, have = fit(model, x, y, epochs=2), fit(mine, x, y, epochs=2, execution="session")
    same_history(have, want)
    for a, b in zip(mine.get_weights(), model.get_weights(), strict=True):
        close(a, b, 1e-4, 1e-4)


def test_validation_by_steps_and_of_iterables(daemon):
    rng = np.random.default_rng(4)
    x, y = examples(rng, 96)
    model, mine = both(rng)
    given = {"epochs": 2, "validation_data": (x[64:], y[64:]), "validation_steps": 2, "validation_batch_size": 8}
    want = fit(model, x[:64], y[:64], **given)
    same_history(fit(mine, x[:64], y[:64], **given), want)
    assert mine.job is not None
    model, mine = both(rng)
    held = [(x[64:72], y[64:72]), (x[72:77], y[72:77])]
    want = fit(model, x[:64], y[:64], epochs=2, validation_data=(x[64:77], y[64:77]))
    batches = [(x[i : i + 16], y[i : i + 16]) for i in range(0, 64, 16)]
    have = mine.fit(iter(batches), epochs=2, validation_data=held, shuffle=False, verbose=0)
    assert mine.job is None  # what validates an iterable is not among its examples
    same_history(have, want)


def test_a_job_refuses_what_only_a_session_can(daemon):
    rng = np.random.default_rng(5)
    x, y = examples(rng)
    _, mine = both(rng)

    def reads(model):
        model.get_weights()

    def sets(model):
        model.layers[0].set_weights(start[:2])

    def predicts(model):
        model.predict(x[:3], verbose=0)

    def slows(model):
        model.optimizer.learning_rate = 0.001

    start = mine.get_weights()
    for act in (reads, sets, predicts, slows):
        seen = []

        class Acts(ours.callbacks.Callback):
            def on_epoch_end(self, epoch, logs=None, act=act, seen=seen):
                seen.append(epoch)
                act(self.model)

        with pytest.raises(errors.FailedPrecondition, match="execution='session'"):
            fit(mine, x, y, epochs=3, callbacks=[Acts()])
        assert seen == [0]
        for a, b in zip(mine.get_weights(), start, strict=True):
            np.testing.assert_array_equal(a, b)
        mine.optimizer.learning_rate = 0.2
    ends = []

    class End(ours.callbacks.Callback):
        def on_train_end(self, logs=None):
            ends.append(self.model.get_weights())

    fit(mine, x, y, callbacks=[End()])
    for a, b in zip(ends[0], mine.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert np.abs(ends[0][0] - start[0]).max() > 0


def test_an_error_in_a_callback_leaves_the_weights_of_that_step(daemon):
    rng = np.random.default_rng(6)
    x, y = examples(rng)
    model, mine = both(rng)
    for package, m in ((keras, model), (ours, mine)):

        class Fails(package.callbacks.Callback):
            needs_session = True

            def on_train_batch_end(self, batch, logs=None):
                if batch == 2:
                    raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fit(m, x, y, callbacks=[Fails()])
    same_weights(mine, model)


def test_early_stopping_restores_the_best_weights(daemon):
    rng = np.random.default_rng(7)
    x, y = rng.standard_normal((48, 6)).astype(np.float32), rng.integers(0, 3, 48)
    model, mine = both(rng)
    ends = []

    class End(ours.callbacks.Callback):
        needs_session = True

        def on_train_end(self, logs=None):
            ends.append(self.model.get_weights())

    for package, m, more in ((keras, model, []), (ours, mine, [End()])):
        rule = package.callbacks.EarlyStopping(patience=2, restore_best_weights=True)
        held = (x[32:], y[32:])
        fit(m, x[:32], y[:32], epochs=40, validation_data=held, callbacks=[rule, *more])
    same_history(mine.history, model.history)
    same_weights(mine, model)
    for a, b in zip(ends[0], mine.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("monitor", ["loss", "val_loss"])
def test_early_stopping_looks_at_no_epoch_before_the_first(daemon, monitor):
    rng = np.random.default_rng(11)
    x, y = examples(rng)
    model, mine = both(rng)
    for package, m in ((keras, model), (ours, mine)):
        # At this threshold no epoch is an improvement on the first one that counts.
        rule = package.callbacks.EarlyStopping(
            monitor, min_delta=10, patience=2, restore_best_weights=True, start_from_epoch=3
        )
        fit(m, x, y, epochs=12, validation_data=(x[:16], y[:16]), callbacks=[rule])
    assert mine.history.epoch == model.history.epoch == list(range(6))
    same_history(mine.history, model.history)
    same_weights(mine, model)


def test_early_stopping_by_a_value_of_the_training(daemon):
    rng = np.random.default_rng(9)
    x, y = examples(rng)
    model, mine = both(rng)
    for package, m in ((keras, model), (ours, mine)):
        rule = package.callbacks.EarlyStopping("loss", min_delta=0.05, patience=2, restore_best_weights=True)
        fit(m, x, y, epochs=40, callbacks=[rule])
    assert mine.job is None
    assert len(mine.history.epoch) < 40
    same_history(mine.history, model.history)
    same_weights(mine, model)
