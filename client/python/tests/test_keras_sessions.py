"""The session that a model of espalier.keras keeps open: when it is there, and what it knows of the weights."""

import copy
import time
import warnings

import numpy as np
import pytest
import small

import espalier
import espalier.keras as keras
from espalier import errors, session
from espalier.keras import Input, Model, Sequential, model_session
from espalier.keras import layers as L  # noqa: N812
from espalier.rpc import method
from espalier.steps import Unary, drive
from espalier.v1 import session_pb2


@pytest.fixture(autouse=True)
def _fresh():
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.EspalierWarning)  # that an output is computed in predictions only
        yield


def classifier():
    model = Sequential([L.Dense(16, activation="tanh", input_shape=(6,)), L.Dense(3, activation="softmax")])
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", ["accuracy"])
    return model


def examples(count=160, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, 6)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0.3)


def by_hand(model, x):
    w1, b1, w2, b2 = model.get_weights()
    logits = np.tanh(x @ w1 + b1) @ w2 + b2
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return shifted / shifted.sum(-1, keepdims=True)


def right(model, x):
    np.testing.assert_allclose(model.predict(x, verbose=0), by_hand(model, x), rtol=1e-5, atol=1e-6)


def test_one_session_serves_many_calls_with_the_weights_as_they_are(daemon):
    x, y = examples()
    model = classifier()
    right(model, x)  # weights that the coordinator has made
    first = model._kept.session
    model.set_weights([0.5 * w for w in model.get_weights()])
    right(model, x)
    model.train_on_batch(x[:20], y[:20])  # another batch size: another session
    right(model, x)
    trained = model._kept.session
    assert trained is not first
    model.layers[0].set_weights([w + 0.1 for w in model.layers[0].get_weights()])
    model.train_on_batch(x[:20], y[:20])
    np.testing.assert_allclose(model(x[:3]), by_hand(model, x[:3]), rtol=1e-5, atol=1e-6)
    before = model.evaluate(x, y, verbose=0, batch_size=7)
    for _ in range(60):
        model.train_on_batch(x[:20], y[:20])
    after = model.evaluate(x, y, verbose=0, return_dict=True)
    assert after["loss"] < before[0]
    assert model._kept.session is trained
    assert model.metrics_names == ["loss", "accuracy"]


def test_whoever_needs_the_workers_gets_them(daemon, monkeypatch):
    # Who waited for a session to be idle would be told after a minute that there are no workers.
    monkeypatch.setattr(model_session, "_IDLE_SECONDS", 3600.0)
    x, y = examples()
    first, second = classifier(), classifier()
    first.train_on_batch(x[:16], y[:16])
    second.train_on_batch(x[:16], y[:16])
    first.train_on_batch(x[:16], y[:16])
    right(second, x)
    first.fit(x, y, epochs=1, verbose=0)
    right(first, x)
    with espalier.Session(small.graph(), None, optimizer="sgd", batch_size=4) as own:
        own.step({"x": x[:4], "labels": y[:4]})
    right(first, x)


def test_an_idle_session_frees_its_workers_and_training_goes_on(daemon, monkeypatch):
    monkeypatch.setattr(model_session, "_IDLE_SECONDS", 0.3)
    x, y = examples()
    model, same = classifier(), classifier()
    same.set_weights(model.get_weights())
    for i in range(3):
        model.train_on_batch(x[:16], y[:16])
        end = time.monotonic() + 20
        while (model._state is None or model._state.updates <= i) and time.monotonic() < end:
            time.sleep(0.05)
        assert model._kept.closed
        assert model._state.updates == i + 1
    right(model, x)
    monkeypatch.setattr(model_session, "_IDLE_SECONDS", 30)
    for _ in range(3):
        same.train_on_batch(x[:16], y[:16])
    for a, b in zip(model.get_weights(), same.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def close_behind_its_back(daemon, model):
    request = session_pb2.CloseSessionRequest(session_id=model._kept.session.id)
    drive(daemon._connection, session._once(Unary(method("Sessions", "Close"), request, 10)))


def test_a_session_that_is_lost_says_so_once(daemon):
    x, y = examples()
    model = classifier()
    right(model, x)
    close_behind_its_back(daemon, model)
    with pytest.raises(errors.EspalierError, match="session"):
        model.predict(x)
    right(model, x)
    before = model.get_weights()
    model.train_on_batch(x[:16], y[:16])
    close_behind_its_back(daemon, model)
    with pytest.raises(errors.EspalierError, match="is lost with the session that trained it: set the weights again"):
        model.get_weights()
    with pytest.raises(errors.EspalierError, match="set the weights again"):
        model.fit(x, y, verbose=0)
    model.set_weights(before)
    right(model, x)
    model.fit(x, y, verbose=0)


def test_weights_outlive_the_cluster(daemon):
    x, y = examples()
    model = classifier()
    with espalier.local(workers=1, flags=["--worker-threads=1", "--measure-seconds=0"]) as client:
        for _ in range(2):
            model.train_on_batch(x[:16], y[:16], client=client)
        want = model.predict(x[:4], verbose=0, client=client)
    np.testing.assert_allclose(by_hand(model, x[:4]), want, rtol=1e-5, atol=1e-6)


def test_a_copy_of_a_model_has_no_session(daemon):
    x, _ = examples()
    model = classifier()
    right(model, x)
    other = copy.deepcopy(model)
    other.set_weights([2 * w for w in model.get_weights()])
    right(other, x)
    right(model, x)


def test_models_of_any_kind(daemon):
    # Without weights, of integers, of unknown inputs, with an output that is named as a metric.
    flat = Sequential([Input((2, 3)), L.Flatten()])
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    np.testing.assert_array_equal(flat.predict(x, verbose=0), x.reshape(2, 6))
    words = Sequential([L.Embedding(7, 4), L.GlobalAveragePooling1D()])
    ids = np.array([[1, 2, 6], [0, 0, 3]])
    np.testing.assert_allclose(words(ids), words.get_weights()[0][ids].mean(1), rtol=1e-6)
    begin = Input((3,))
    named = Model(begin, [L.Dense(2, name="loss")(begin), L.Dense(1, name="accuracy")(begin)])
    named.compile("sgd", ["mse", "mae"])
    rows = np.ones((5, 3), np.float32)
    for have, layer in zip(named.predict(rows, verbose=0), named.layers[1:], strict=True):
        kernel, bias = layer.get_weights()
        np.testing.assert_allclose(have, rows @ kernel + bias, rtol=1e-5)
    assert set(named.evaluate(rows, [np.ones((5, 2)), np.ones((5, 1))], return_dict=True, verbose=0)) == {
        "loss",
        "loss_loss",
        "accuracy_loss",
    }


def test_models_that_share_layers_train_in_turn(daemon):
    rng = np.random.default_rng(0)
    generator = Sequential([L.Dense(8, activation="tanh", input_shape=(4,)), L.Dense(6)])
    judge = Sequential([L.Dense(8, activation="tanh", input_shape=(6,)), L.Dense(1, activation="sigmoid")])
    both = Sequential([generator, judge])
    for model in (judge, both):
        model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy")
    noise, real = rng.standard_normal((16, 4)).astype(np.float32), rng.standard_normal((16, 6)).astype(np.float32)
    for _ in range(3):
        judge.trainable = True
        made, judged = generator.get_weights(), judge.get_weights()
        judge.train_on_batch(np.concatenate([real, generator.predict(noise, verbose=0)]), np.repeat([1, 0], 16))
        for a, b in zip(generator.get_weights(), made, strict=True):
            np.testing.assert_array_equal(a, b)
        assert np.abs(judge.get_weights()[0] - judged[0]).max() > 0
        judge.trainable = False
        judged = judge.get_weights()
        both.train_on_batch(noise, np.ones(16))
        for a, b in zip(judge.get_weights(), judged, strict=True):
            np.testing.assert_array_equal(a, b)
        assert np.abs(generator.get_weights()[0] - made[0]).max() > 0
        step_by_step = judge.predict(generator.predict(noise, verbose=0), verbose=0)
        np.testing.assert_allclose(both.predict(noise, verbose=0), step_by_step, rtol=1e-5, atol=1e-6)
    assert (judge._state.updates, both._state.updates) == (3, 3)


def test_batches_of_an_iterable(daemon):
    x, y = examples(50)
    model = classifier()
    want = model.predict(x, verbose=0)
    np.testing.assert_array_equal(model.predict(iter([x[:20], x[20:45], x[45:]]), verbose=0), want)
    np.testing.assert_array_equal(model.predict(((x[i : i + 25], y[i : i + 25]) for i in (0, 25)), verbose=0), want)
    np.testing.assert_array_equal(model.predict(x, batch_size=10, steps=2, verbose=0), want[:20])
    assert model.evaluate(x, y, batch_size=10, steps=2, verbose=0) == pytest.approx(
        model.evaluate(x[:20], y[:20], verbose=0), rel=1e-6
    )


def test_evaluate_prints_a_line(daemon, capsys):
    x, y = examples(8)
    model = classifier()
    loss, accuracy = model.evaluate(x, y)
    assert capsys.readouterr().out.strip() == f"loss {loss:.4f}  accuracy {accuracy:.4f}"


def test_refused(daemon):
    x, y = examples(16)
    model = Sequential([L.Dense(3, input_shape=(6,))])
    with pytest.raises(errors.InvalidArgument, match="call compile"):
        model.evaluate(x, y)
    model.compile("sgd", "mse")
    with pytest.raises(errors.InvalidArgument, match="evaluate: y is missing"):
        model.evaluate(x)
    with pytest.raises(errors.InvalidArgument, match=r"takes examples of shape \(6,\), x has \(5,\)"):
        model.predict(x[:, :5])
    with pytest.raises(errors.FailedPrecondition, match="training=True"):
        model(x, training=True)
    with pytest.raises(errors.InvalidArgument, match="take arrays"):
        model.train_on_batch(iter([(x, y)]))
    with pytest.raises(errors.InvalidArgument, match="called on ndarray"):
        L.Dense(2)(x)


def test_a_fit_that_is_refused_keeps_the_state_of_the_optimizer(daemon, tmp_path):
    x, y = examples()
    model = classifier()
    model.fit(x, y, epochs=2, verbose=0, execution="session")
    state = model._state
    assert any(array.any() for array in state.optimizer.values())
    for execution in ("session", "job"):
        with pytest.raises(errors.InvalidArgument, match="no validation examples"):
            model.fit(x, y, verbose=0, execution=execution, callbacks=[keras.callbacks.EarlyStopping()])
    with pytest.raises(errors.InvalidArgument, match="only a job is recorded"):
        model.fit(x, y, verbose=0, execution="session", record="off")
    model.save(tmp_path / "model.zip")
    loaded = keras.models.load_model(tmp_path / "model.zip")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*moments of the optimizer")
        loaded.fit(x, y, verbose=0, execution="session")
        model.fit(x, y, verbose=0, execution="session")
    assert model._state.updates == loaded._state.updates == state.updates + 5
    model.fit(x, y, verbose=0, execution="job")
    assert model._state is None


@pytest.mark.parametrize("schedule", [False, True], ids=["rate", "schedule"])
def test_a_loaded_model_trains_as_if_it_had_not_been_saved(daemon, tmp_path, schedule):
    rng = np.random.default_rng(8)
    x, y = rng.standard_normal((48, 6)).astype(np.float32), rng.integers(0, 3, 48)
    model = keras.Sequential([L.Dense(5, activation="tanh", input_shape=(6,)), L.Dense(3, activation="softmax")])
    decay = keras.optimizers.schedules.ExponentialDecay(0.05, 2, 0.5)
    optimizer = keras.optimizers.AdamW(decay if schedule else 0.05, weight_decay=0.1, beta_1=0.8)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(),
        ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2)],
    )
    for first in (0, 16):
        model.train_on_batch(x[first : first + 16], y[first : first + 16])
    model.save(tmp_path / "model.zip")
    want = [model.train_on_batch(x[first : first + 16], y[first : first + 16]) for first in (32, 0)]
    weights = model.get_weights()
    model.release_workers()

    loaded = keras.models.load_model(tmp_path / "model.zip")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    have = [loaded.train_on_batch(x[first : first + 16], y[first : first + 16]) for first in (32, 0)]
    assert have == want
    for a, b in zip(loaded.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(a, b)
    loaded.release_workers()


def test_a_loaded_model_of_a_job_says_that_moments_begin_anew(daemon, tmp_path):
    x, y = np.ones((32, 6), np.float32), np.zeros((32, 1), np.float32)
    model = keras.Sequential([L.Dense(1, input_shape=(6,))])
    model.compile("adam", "mse", weighted_metrics=["mae"])
    model.fit(x, y, batch_size=16, verbose=0)
    model.save(tmp_path / "model.zip")
    lms = keras.callbacks.LMS(swapout_threshold=7)
    loaded = keras.models.load_model(tmp_path / "model.zip", callbacks=[lms])
    with pytest.warns(errors.EspalierWarning, match="the moments of the optimizer begin anew"):
        loaded.fit(x, y, batch_size=16, verbose=0)
    assert list(loaded.history.history) == ["loss", "mae"]
    # TFLMS's way: what is loaded trains with the object.
    assert loaded.job.record.spec.search.memory.swapout_threshold == 7
    plain = keras.models.load_model(tmp_path / "model.zip", compile=False)
    with pytest.raises(errors.InvalidArgument, match="call compile"):
        plain.fit(x, y, verbose=0)


def test_load_model_refuses(tmp_path):
    import zipfile

    model = keras.Sequential([L.Dense(1, input_shape=(6,))])
    model.save(tmp_path / "model.zip")
    for arguments, message in [
        ({"callbacks": [keras.callbacks.EarlyStopping()]}, "belongs to fit; accepted are LMS objects"),
        ({"custom_objects": {"f": print}}, "a class of your own is not saved"),
    ]:
        with pytest.raises(errors.InvalidArgument, match=message):
            keras.models.load_model(tmp_path / "model.zip", **arguments)
    with zipfile.ZipFile(tmp_path / "model.keras", "w") as archive:
        archive.writestr("config.json", "{}")
    with pytest.raises(errors.InvalidArgument, match=r"a \.keras file is read by Keras"):
        keras.models.load_model(tmp_path / "model.keras")
    (tmp_path / "text.zip").write_text("no archive")
    with pytest.raises(errors.InvalidArgument, match=r"is no \.zip that Model.save wrote"):
        keras.models.load_model(tmp_path / "text.zip")


def test_what_steps_do_not_report_is_said_once_at_the_users_line(daemon):
    x, y = examples()
    model = Sequential([L.Dense(3, input_shape=(6,))])  # a warning of the loss, too
    model.compile("adam", "categorical_crossentropy", metrics=[keras.metrics.AUC(from_logits=True)])

    def told(call):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        assert all(warning.filename == __file__ for warning in caught)
        return [str(warning.message) for warning in caught]

    labels = np.eye(3, dtype=np.float32)[y]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # an error comes alone
        with pytest.raises(errors.InvalidArgument, match="batch_size"):
            model.fit(x, labels, batch_size=0)
    first = told(lambda: model.fit(x, labels, verbose=0))
    assert any(text.startswith("fit: auc: computed by evaluate") for text in first)
    assert any("does not end in a softmax" in text for text in first)
    again = told(lambda: model.fit(x, labels, verbose=0, execution="session"))
    assert any("the moments of the optimizer begin anew" in text for text in again)
    assert not any("do not report it" in text for text in again + told(lambda: model.train_on_batch(x, labels)))
    model.compile("adam", "categorical_crossentropy", metrics=[keras.metrics.AUC(from_logits=True)])
    assert any("do not report it" in text for text in told(lambda: model.train_on_batch(x, labels)))
