"""Keras-shaped models: building them, training them, their weights, and what is refused."""

import warnings

import numpy as np
import pytest

import espalier.keras as keras
from espalier.errors import EspalierWarning, InvalidArgument, NotFound
from espalier.keras import Input, Model, Sequential, losses
from espalier.keras import layers as L  # noqa: N812


@pytest.fixture(autouse=True)
def _fresh():
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    yield
    keras.backend.set_image_data_format("channels_last")


def data(count=160, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((count, 6)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64) + (x[:, 1] > 0.3)


def classifier(**kwargs):
    model = Sequential(
        [L.Dense(16, activation="tanh", input_shape=(6,), **kwargs), L.Dense(3), L.Activation("softmax")]
    )
    model.compile("sgd", "sparse_categorical_crossentropy", ["accuracy"])
    return model


def fit(model, x, y, **kwargs):
    return model.fit(x, y, verbose=0, **({"batch_size": 16, "epochs": 1} | kwargs))


@pytest.mark.filterwarnings("ignore::espalier.errors.EspalierWarning")
def test_training_learns_and_goes_on(daemon):
    x, y = data(480)
    model = classifier()
    model.optimizer.learning_rate = 0.5
    history = fit(model, x, y, epochs=8)
    assert history.history["accuracy"][-1] > 0.85
    assert len(history.history["loss"]) == 8
    again = fit(model, x, y, epochs=1, validation_split=0.1)
    # The second training begins where the first one ended.
    assert again.history["loss"][0] < history.history["loss"][2]
    assert again.history["val_accuracy"][0] > 0.8
    assert model.plan.proto.operators


@pytest.mark.filterwarnings("ignore::espalier.errors.EspalierWarning")
def test_large_weights_travel_as_a_file(daemon, monkeypatch):
    from espalier import values
    from espalier.keras import heads

    model, same = classifier(), classifier()
    same.set_weights(model.get_weights())
    x, y = data()
    fit(same, x, y, shuffle=False)
    monkeypatch.setattr(heads, "_MOST_IN_GRAPH", 100)
    monkeypatch.setattr(values, "MOST_BYTES", 1000)
    before = {artifact.name for artifact in daemon.artifacts()}
    fit(model, x, y, shuffle=False)
    used = model.job.record.spec.init_artifact.removesuffix("@1")
    assert used in {artifact.name for artifact in daemon.artifacts()} - before
    for a, b in zip(model.get_weights(), same.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)  # the two jobs may have different plans


@pytest.mark.filterwarnings("ignore::espalier.errors.EspalierWarning")
def test_weights_that_nobody_reads_come_from_the_jobs_seed(daemon):
    x, y = data()
    losses = []
    for seed in (1, 1, 2):
        keras.backend.clear_session()
        losses.append(fit(classifier(), x, y, seed=seed, shuffle=False).history["loss"][0])
    first, second, third = losses
    assert first == pytest.approx(second, rel=1e-6)  # the jobs may have different plans
    assert abs(first - third) > 1e-3


@pytest.mark.filterwarnings("ignore::espalier.errors.EspalierWarning")
def test_frozen_layers_keep_their_weights(daemon):
    x, y = data()
    model = classifier()
    model.layers[0].trainable = False
    before = model.get_weights()
    fit(model, x, y)
    after = model.get_weights()
    np.testing.assert_array_equal(before[0], after[0])
    assert np.abs(before[2] - after[2]).max() > 0
    assert [v.path for v in model.trainable_weights] == ["dense_1/kernel", "dense_1/bias"]


@pytest.mark.filterwarnings("ignore::espalier.errors.EspalierWarning")
def test_class_and_sample_weights_scale_the_loss(daemon):
    x, y = data(16)
    start = classifier().get_weights()

    def loss(**kwargs):
        model = classifier()
        model.set_weights(start)
        fit(model, x, y, shuffle=False, **kwargs)
        return model.job.history["loss"][0]

    each = []
    for label in range(3):
        each.append(loss(sample_weight=(y == label).astype(np.float32)))
    assert sum(each) == pytest.approx(loss(), rel=1e-5)
    assert loss(class_weight={0: 2.0, 1: 0.5, 2: 0.0}) == pytest.approx(2 * each[0] + 0.5 * each[1], rel=1e-5)
    model = classifier()
    for weight, message in [
        ("balanced", "class_weight is 'balanced'; accepted: a dict {class: weight}"),
        ([1.0, 2.0, 3.0], r"class_weight is \[1.0, 2.0, 3.0\]; accepted: a dict"),
        ({0: "much"}, "class_weight has 0: 'much'; accepted: {class: weight}"),
        ({"a": 1.0}, "class_weight has 'a': 1.0; accepted"),
        ({-1: 1.0}, "class_weight has -1: 1.0; accepted"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            model.fit(x, y, class_weight=weight)


@pytest.mark.filterwarnings("ignore::espalier.errors.EspalierWarning")
@pytest.mark.parametrize("execution", ["job", "session"])
def test_class_weights_weigh_no_validation(daemon, execution):
    x, y = data(160)
    model = Sequential([L.Dense(3, input_shape=(6,), activation="softmax")])
    model.compile(keras.optimizers.SGD(0.0), "sparse_categorical_crossentropy")
    wanted = -np.log(model.predict(x[120:], verbose=0)[np.arange(40), y[120:]]).mean()
    options = {"validation_split": 0.25, "batch_size": 40, "class_weight": {0: 5.0, 1: 0.1}, "execution": execution}
    history = model.fit(x, y, verbose=0, **options).history
    assert history["val_loss"] == pytest.approx([wanted], rel=1e-5)
    options["sample_weight"] = np.linspace(0.5, 1.5, 160)
    history = model.fit(x, y, verbose=0, **options).history
    each = -np.log(model.predict(x[120:], verbose=0)[np.arange(40), y[120:]])
    assert history["val_loss"] == pytest.approx([(each * options["sample_weight"][120:]).mean()], rel=1e-5)


@pytest.mark.filterwarnings("ignore::espalier.errors.EspalierWarning")
def test_validation_data_are_held_out(daemon):
    x, y = data()
    split, given = classifier(), classifier()
    given.set_weights(split.get_weights())
    first = fit(split, x, y, validation_split=0.25, shuffle=False)
    second = fit(given, x[:120], y[:120], validation_data=(x[120:], y[120:]), shuffle=False)
    assert first.history == second.history
    assert len(first.history["val_loss"]) == 1
    longer = fit(given, x, y, validation_split=0.25, epochs=4, validation_freq=2)
    assert len(longer.history["val_loss"]) == 2
    assert len(longer.history["loss"]) == 4
    assert longer.history["val_loss"][-1] == pytest.approx(given.job.evaluation["loss"])
    assert given.job.record.evaluation_examples == 40


@pytest.mark.filterwarnings("ignore::espalier.errors.EspalierWarning")
def test_early_stopping_keeps_the_best_weights(daemon):
    # Labels of noise: what is held out gets worse while the rest is learned.
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((96, 6)).astype(np.float32), rng.integers(0, 3, 96)
    model = Sequential([L.Dense(64, activation="tanh", input_shape=(6,)), L.Dense(3, activation="softmax")])
    model.compile(keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy", metrics=["accuracy"])
    rule = keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True)
    history = fit(model, x, y, epochs=60, validation_split=1 / 3, callbacks=[rule]).history
    best = int(np.argmin(history["val_loss"]))
    assert len(history["val_loss"]) == best + 4 < 60
    assert model.job.record.stopped_early
    assert model.job.evaluation["loss"] == pytest.approx(min(history["val_loss"]), rel=1e-5)
    with pytest.raises(InvalidArgument, match="there are no validation examples"):
        fit(model, x, y, callbacks=[rule])
    with pytest.raises(InvalidArgument, match="EarlyStopping decides during the training"):
        fit(model, x, y, callbacks=[keras.callbacks.EarlyStopping("loss")], execution="job")


@pytest.mark.filterwarnings("ignore::espalier.errors.EspalierWarning")
@pytest.mark.parametrize(
    ("layer", "trained"),
    [
        (lambda: L.Dropout(0.5), 2.0),
        (lambda: L.Dropout(0.5, noise_shape=(None, 1, 1, 32)), 2.0),
        (lambda: L.SpatialDropout2D(0.75), 4.0),
        (lambda: L.GaussianNoise(0.5), 1.25),
        (lambda: L.GaussianDropout(0.5), 2.0),
    ],
)
def test_noise_is_there_in_training_only(daemon, layer, trained):
    # Of ones, the mean square of what the layer makes of them; PReLU has a weight and leaves them alone.
    model = Sequential([Input((4, 4, 32)), L.PReLU(shared_axes=[1, 2]), layer(), L.Flatten()])
    model.compile("sgd", "mse")
    x = np.ones((512, 4, 4, 32), np.float32)
    history = fit(model, x, np.zeros((512, 512)), validation_split=0.125, batch_size=448).history
    assert history["loss"][0] == pytest.approx(trained, rel=0.05)
    assert history["val_loss"][0] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.filterwarnings("ignore::espalier.errors.EspalierWarning")
def test_batches_of_an_iterable(daemon):
    x, y = data()
    arrays, batches = classifier(), classifier()
    batches.set_weights(arrays.get_weights())
    fit(arrays, x, y, shuffle=False)
    batches.fit([(x[i : i + 16], y[i : i + 16]) for i in range(0, 160, 16)].__iter__(), shuffle=False, verbose=0)
    assert arrays.job.history["loss"] == pytest.approx(batches.job.history["loss"], rel=1e-5)


@pytest.mark.filterwarnings("ignore::espalier.errors.EspalierWarning")
def test_shapes_from_the_data(daemon):
    x, y = data()

    class Mine(Model):
        def __init__(self):
            super().__init__()
            self.first, self.second = L.Dense(8, activation="relu"), L.Dense(3, activation="softmax")

        def call(self, inputs, training=None):
            hidden = self.first(inputs) * 0.5 + 1.0
            return self.second(keras.ops.concatenate([hidden, keras.ops.square(inputs[:, :2])], axis=-1))

    model = Mine()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    history = fit(model, x, y, epochs=2)
    assert history.history["loss"][1] < history.history["loss"][0]
    assert [w.shape for w in model.get_weights()] == [(6, 8), (8,), (10, 3), (3,)]
    later = Sequential([L.Dense(3, activation="softmax")])
    later.compile("sgd", "categorical_crossentropy")
    fit(later, x, keras.utils.to_categorical(y))
    assert later.count_params() == 21


def test_a_call_that_needs_elements_cannot_be_traced():
    class Mine(Model):
        def call(self, inputs):
            return inputs if inputs > 0 else L.Dense(1)(inputs)

    with pytest.raises(TypeError):
        Mine().build((None, 4))

    class Loop(Model):
        def call(self, inputs):
            return [row for row in inputs]  # noqa: C416

    with pytest.raises(InvalidArgument, match="has no elements while a model is built"):
        Loop().build((None, 4))


def test_configurations_make_equal_models():
    a, b = Input((6,), name="a"), Input((6,), name="b")
    tower = Sequential([L.Dense(4, activation="relu", kernel_regularizer="l2"), L.BatchNormalization(momentum=0.8)])
    tower.build((None, 6))
    out = L.Dense(2, kernel_initializer=keras.initializers.HeNormal(seed=3))(
        L.Concatenate()([tower(a), tower(b)]) * 2.0
    )
    model = Model({"a": a, "b": b}, [out], name="pair")
    for made in (Model.from_config(model.get_config()), keras.models.saving.model_from_json(model.to_json())):
        assert [(v.path, v.shape) for v in made.weights] == [(v.path, v.shape) for v in model.weights]
        graph, same = made.to_graph()[0].graph.proto, model.to_graph()[0].graph.proto
        assert [(n.op, list(n.inputs)) for n in graph.nodes] == [(n.op, list(n.inputs)) for n in same.nodes]
    keras.backend.set_image_data_format("channels_first")
    first = Sequential([L.Conv2D(4, 3, input_shape=(2, 8, 8)), L.MaxPooling2D()])
    keras.backend.set_image_data_format("channels_last")
    assert Sequential.from_config(first.get_config()).output_shape == first.output_shape == (None, 4, 3, 3)


def test_weights_and_models_in_files(tmp_path):
    model, other = classifier(), classifier()
    for name in ("w.npz", "w.safetensors"):
        other.set_weights([w * 0 for w in other.get_weights()])
        model.save_weights(tmp_path / name)
        keras.backend.clear_session()
        other = classifier()
        other.load_weights(tmp_path / name)
        for a, b in zip(model.get_weights(), other.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)
    model.save(tmp_path / "model.zip")
    loaded = keras.models.saving.load_model(tmp_path / "model.zip")
    np.testing.assert_array_equal(loaded.get_weights()[0], model.get_weights()[0])
    smaller = Sequential([L.Dense(2, input_shape=(6,), name="dense")])
    with pytest.raises(InvalidArgument, match=r"dense/kernel has shape \(6, 16\), the model's \(6, 2\)"):
        smaller.load_weights(tmp_path / "w.npz")
    with pytest.raises(NotFound):
        smaller.load_weights(tmp_path / "none.npz")
    with pytest.raises(InvalidArgument, match=r"\.npz or \.safetensors"):
        smaller.save_weights(tmp_path / "w.h5")


def test_summary_counts_weights(capsys):
    Sequential([L.Conv2D(4, 3, input_shape=(8, 8, 1)), L.BatchNormalization(), L.Flatten(), L.Dense(2)]).summary()
    shown = capsys.readouterr().out
    assert "conv2d (Conv2D)" in shown
    assert "(None, 6, 6, 4)" in shown
    assert "Total params: 346" in shown
    assert "Non-trainable params: 8" in shown


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: L.Dense(3, foo=1), r"Dense: no argument 'foo'"),
        (lambda: L.Dense(3, kernel_constraint="max_norm", input_shape=(2,)).build((None, 2)), "constraints on weights"),
        (lambda: L.Embedding(5, 3, mask_zero=True), "masks are not supported"),
        (lambda: L.LSTM(3, stateful=True), "stateful=True"),
        (lambda: L.Dense(3)(np.zeros((2, 3))), "called on ndarray"),
        (lambda: L.Conv2D(4, 5)(Input((3, 32, 32))), "channels_first"),
        (lambda: L.Conv2D(4, 3, padding="full"), r"padding='full'; accepted are valid, same"),
        (lambda: L.Add()([Input((3,)), Input((4,))]), "do not go together"),
        (lambda: L.Lambda, "a Python function cannot run in a job"),
        (lambda: L.Dense(2, activation="wavy"), "activation 'wavy'"),
        (lambda: L.Dense(2, dtype="float16"), "fit"),
        (lambda: Model(Input((3,)), Input((3,))), "not among the model's inputs"),
        (lambda: keras.optimizers.Adam(clipnorm=1.0), "use global_clipnorm"),
        (lambda: keras.optimizers.Nadam, "optimizer Nadam is not supported"),
        (lambda: keras.metrics.F1Score, "is no mean over examples"),
        (lambda: keras.losses.get(lambda t, p: p), "a Python function cannot run in a job"),
        (
            lambda: Sequential([L.Dense(2, input_shape=(3,), name="a"), L.Dense(2, name="a")]),
            "two layers are named 'a'",
        ),
        (lambda: L.Reshape((5, 5))(Input((24,))), "24 elements"),
    ],
)
def test_refused(make, message):
    with pytest.raises(InvalidArgument, match=message):
        make()


def watching(callback, **arguments):
    return {"callbacks": [callback], **arguments}


def checkpoint(path, **arguments):
    return keras.callbacks.ModelCheckpoint(path, **arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.full(160, 3)}, "3 classes, so labels go from 0 to 2; got 3 to 3"),
        (
            {"y": np.where(np.arange(160) == 7, np.nan, 1)},
            "output activation takes integer labels, .* nan in row 7; le",
        ),
        (
            {"y": np.where(np.arange(160) == 7, 0.5, 1)},
            "output activation takes integer labels, and y has 0.5 in row 7",
        ),
        ({"y": np.full(160, 2**32)}, "3 classes, so labels go from 0 to 2; got 4294967296"),
        ({"y": np.eye(3)[data()[1]]}, "one-hot labels go with categorical_crossentropy"),
        ({"x": np.zeros((160, 7))}, r"takes examples of shape \(6,\), x has \(7,\)"),
        ({"y": np.zeros(3, int)}, "unequal numbers of examples"),
        ({"sample_weight": np.ones(4)}, "sample_weight has shape"),
        ({"initial_epoch": 2, "execution": "job"}, "initial_epoch=2: a job begins with epoch 0: execution='session'"),
        ({"validation_freq": 0}, "accepted: an integer above 0"),
        ({"validation_data": np.zeros(3)}, "validation_data: accepted"),
        ({"validation_steps": 2}, "no validation examples in memory; give validation_data"),
        ({"callbacks": [print]}, "is no espalier.callbacks.Callback"),
        (watching(keras.callbacks.EarlyStopping("val_los"), validation_split=0.2), "did you mean 'val_loss'"),
        (watching(keras.callbacks.EarlyStopping("val_auc")), "'val_auc', but there are no validation examples"),
        (watching(keras.callbacks.EarlyStopping("val_auc"), validation_split=0.2), "only .*val_accuracy, val_loss"),
        (watching(keras.callbacks.ReduceLROnPlateau()), "monitor is 'val_loss', but there are no validation"),
        (watching(checkpoint("b.keras")), r"b\.keras: models are saved as \.zip"),
        (watching(checkpoint("b.zip", save_weights_only=True)), r"ends in \.npz or \.safetensors"),
        (watching(checkpoint("b.zip", monitor="acuracy", save_best_only=True)), "did you mean 'accuracy'"),
        (watching(checkpoint("b-{epoch}-{val_loss:.2f}.zip")), "filepath names 'val_loss', .*give validation_split"),
    ],
)
def test_fit_refuses(change, message):
    x, y = data()
    with pytest.raises(InvalidArgument, match=message):
        fit(classifier(), **({"x": x, "y": y} | change))


@pytest.mark.parametrize(
    ("compiled", "message"),
    [
        (("addam", "mse"), "unknown optimizer 'addam'; did you mean 'adam'"),
        (("sgd", "sparse_categorical_cross_entropy"), "did you mean 'sparse_categorical_crossentropy'"),
        (("sgd", {"activation": "mean_square_error"}), "did you mean 'mean_squared_error'"),
        (("sgd", "mse", ["accuracy", "root_mean_square_error"]), "did you mean 'root_mean_squared_error'"),
        (("sgd", "mse", ["acuracy"]), "unknown metric 'acuracy'; did you mean 'accuracy'"),
        (("sgd", "mse", ["binary_acuracy"]), "did you mean 'binary_accuracy'"),
        (("sgd", "nonsense"), "unknown loss 'nonsense'; known are .*'?mse"),
    ],
)
def test_compile_refuses_misspelled_names(compiled, message):
    optimizer, loss, *metrics = compiled
    with pytest.raises(InvalidArgument, match=message):
        classifier().compile(optimizer, loss, metrics=metrics[0] if metrics else None)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x: m.fit(x, x, batchsize=4), r"fit\(\) got an unexpected .*'batchsize'; did you mean 'batch_size'"),
        (lambda m, x: m.evaluate(x, x, sample_weigths=x), "did you mean 'sample_weight'"),
        (lambda m, x: m.predict(x, batchSize=3), "did you mean 'batch_size'"),
        (lambda m, x: m.compile("sgd", metric=["accuracy"]), "did you mean 'metrics'"),
        (lambda m, x: m.fit(x, x, zzz=1), "'zzz'; it has x, y, batch_size"),
    ],
)
def test_misspelled_keywords(call, message):
    with pytest.raises(TypeError, match=message):
        call(classifier(), np.zeros((4, 6)))


def test_misspelled_arguments_of_layers_and_optimizers():
    with pytest.raises(
        InvalidArgument, match="Dense: no argument 'kernel_initialiser'; did you mean 'kernel_initializer'"
    ):
        L.Dense(3, kernel_initialiser="zeros")
    with pytest.raises(InvalidArgument, match="Adam: no argument 'learning_rte'; did you mean 'learning_rate'"):
        keras.optimizers.Adam(learning_rte=0.1)


def test_an_error_names_layer_and_line():
    with pytest.raises(InvalidArgument, match=r"Conv2D mine at .*test_keras_models\.py:\d+: Conv2D takes 4 dimensions"):
        L.Conv2D(4, 3, name="mine")(Input((8, 8)))


def mean_of_two(end):
    return lambda x: L.Average()([L.Dense(3, end)(x), L.Dense(3, end)(x)])


TWICE = "ends in a {0}, and from_logits is True: another {0} is applied"
NOT = "does not end in a {0}, and from_logits is False: its output is taken as probabilities, as Keras does"
OUTPUTS = {
    "linear": L.Dense(3),
    "sigmoid": L.Dense(3, "sigmoid"),
    "softmax": L.Dense(3, "softmax"),
    "tanh": L.Dense(3, "tanh"),
    "log": L.Dense(3, "log_softmax"),
    "reshaped linear": lambda x: L.Reshape((3,))(L.Reshape((3, 1))(L.Dense(3)(x))),
    "reshaped sigmoid": lambda x: L.Reshape((3,))(L.Reshape((3, 1))(L.Dense(3, "sigmoid")(x))),
    "reshaped softmax": lambda x: L.Reshape((3,))(L.Reshape((3, 1))(L.Dense(3, "softmax")(x))),
    "hard sigmoid": L.Dense(3, "hard_sigmoid"),
    "mean of sigmoids": mean_of_two("sigmoid"),
    "mean of softmaxes": mean_of_two("softmax"),
}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(
    ("loss", "function", "wrong"),
    [
        (losses.BinaryCrossentropy, "sigmoid", ("linear", "tanh", "log", "reshaped linear")),
        (losses.CategoricalCrossentropy, "softmax", ("linear", "tanh", "log", "reshaped linear", "sigmoid")),
        (losses.SparseCategoricalCrossentropy, "softmax", ("linear", "tanh", "log", "reshaped linear", "sigmoid")),
    ],
)
def test_losses_point_out_outputs_that_are_hardly_meant(loss, function, wrong, reduction):
    def said(end, **arguments):
        x = Input((6,))
        g, (prediction,) = Model(x, OUTPUTS[end](x)).to_graph()
        labels = (
            g.graph.input("labels", (None,), "int32") if loss.integer_labels else g.graph.input("labels", (None, 3))
        )
        made = loss(reduction=reduction, **arguments)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):  # as a metric, too
                made.lower(g, labels, prediction)
        assert all(warning.category is EspalierWarning for warning in caught)
        return [str(warning.message) for warning in caught]

    for end in OUTPUTS:
        texts = said(end)
        known = end in wrong or (function == "softmax" and end in ("reshaped sigmoid", "hard sigmoid"))
        assert len(texts) == known, end
        assert all(NOT.format(function) in text and f"give {loss.__name__}(from_logits=True)" in text for text in texts)
        texts = said(end, from_logits=True)
        # The coordinator says it of operators that take logits.
        assert len(texts) == (end == function and reduction == "sum"), end
        assert all(TWICE.format(function) in text and f"Give {loss.__name__}()" in text for text in texts)


@pytest.mark.parametrize(
    ("loss", "end", "message"),
    [
        (losses.SparseCategoricalCrossentropy(), "sigmoid", NOT.format("softmax")),
        (losses.SparseCategoricalCrossentropy(from_logits=True), "softmax", "the softmax is applied twice"),
        (losses.BinaryCrossentropy(), None, NOT.format("sigmoid")),
        (losses.BinaryCrossentropy(from_logits=True), "sigmoid", "the sigmoid is applied twice"),
        (losses.BinaryCrossentropy(from_logits=True, reduction="sum"), "sigmoid", TWICE.format("sigmoid")),
        (losses.SparseCategoricalCrossentropy(), "softmax", None),
        (losses.BinaryCrossentropy(), "sigmoid", None),
        (losses.BinaryCrossentropy(), "softmax", None),
        (losses.BinaryCrossentropy(from_logits=True), None, None),
    ],
)
def test_fit_says_once_what_it_takes_the_output_for(daemon, loss, end, message):
    x, y = data()
    model = Sequential([L.Dense(3, activation=end, input_shape=(6,))])
    model.compile("sgd", loss)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(model, x, y if loss.integer_labels else np.eye(3)[y])
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == (message is not None), texts
    assert all(message in text for text in texts)


def test_flexflow_defaults():
    from espalier.keras.flexflow import layers as ff

    model = Sequential(
        [ff.Conv2D(filters=4, input_shape=(3, 9, 9), kernel_size=(3, 3), strides=(2, 2), padding=(1, 1)), ff.Flatten()]
    )
    assert model.layers[0].compute_output_shape((None, 3, 9, 9)) == (None, 4, 5, 5)
    assert model.output_shape == (None, 100)
    ops = [node.op for node in model.to_graph()[0].graph.proto.nodes]
    assert ops == ["conv2d", "reshape"]
    assert ff.Dropout is L.Dropout


def test_flexflow_reads_and_sets_weights_with_the_model():
    from espalier.keras.flexflow import layers as ff
    from espalier.keras.flexflow.models import Sequential

    def made():
        return Sequential([ff.Conv2D(4, 3, input_shape=(1, 8, 8)), ff.Flatten(), ff.Dense(3)])

    teacher, student = made(), made()
    for place in (0, 2):
        kernel, bias = teacher.get_layer(index=place).get_weights(teacher.ffmodel)
        student.get_layer(index=place).set_weights(student.ffmodel, kernel, bias + 1)
        mine = student.get_layer(index=place).get_weights(student.ffmodel)
        np.testing.assert_array_equal(mine[0], kernel)
        np.testing.assert_array_equal(mine[1], bias + 1)
        student.get_layer(index=place).set_weights([kernel, bias])
        np.testing.assert_array_equal(student.get_layer(index=place).get_weights()[1], bias)


def numbered():
    return Sequential([L.Dense(4, input_shape=(3,)), *(L.Dense(4) for _ in range(11))])


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_weights_fit_a_model_that_is_built_again(tmp_path, suffix):
    first = numbered()
    first.save_weights(tmp_path / f"w{suffix}")
    second = numbered()
    second.load_weights(tmp_path / f"w{suffix}")
    for ours, theirs in zip(first.weights, second.weights, strict=True):
        assert ours.path != theirs.path
        assert np.array_equal(ours.numpy(), theirs.numpy())
    other = Sequential([L.Dense(4, input_shape=(3,)), L.Dense(4)])
    with pytest.raises(InvalidArgument, match=r"is missing|is no weight"):
        other.load_weights(tmp_path / f"w{suffix}")


@pytest.mark.parametrize("size", [0, -4, 2.5, "32", True])
def test_counts_that_cannot_be_are_refused(size):
    """Before anything is sent: there is no daemon."""
    model = Sequential([L.Dense(2, input_shape=(3,))])
    model.compile("sgd", "mse")
    x, y = np.zeros((8, 3)), np.zeros((8, 2))
    in_fit = ["batch_size", "epochs", "steps_per_epoch", "validation_steps", "validation_batch_size"]
    calls = [(name, lambda **given: model.fit(x, y, **given)) for name in in_fit]
    for name in ("batch_size", "steps"):
        calls += [
            (name, lambda **given: model.evaluate(x, y, **given)),
            (name, lambda **given: model.predict(x, **given)),
        ]
    for name, call in calls:
        with pytest.raises(InvalidArgument, match=f"^{name} is {size!r}; accepted: an integer above 0$"):
            call(**{name: size})
    with pytest.raises(InvalidArgument, match=r"^initial_epoch is -1; accepted: an integer of 0 or more$"):
        model.fit(x, y, initial_epoch=-1)


def test_what_compile_was_given_can_be_read():
    model = Sequential([L.Dense(3, activation="softmax")])
    assert (model.compiled, model.loss, model.optimizer, model.metrics) == (False, None, None, [])
    given = ["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, name="top")]
    model.compile("adam", "sparse_categorical_crossentropy", given)
    assert (model.compiled, model.loss) == (True, "sparse_categorical_crossentropy")
    assert isinstance(model.optimizer, keras.optimizers.Adam)
    assert [metric.name for metric in model.metrics] == ["accuracy", "top"]
    model.build((None, 6))
    assert [metric.name for metric in model.metrics] == model.metrics_names[1:] == ["accuracy", "top"]
    assert isinstance(model.metrics[0], keras.metrics.SparseCategoricalAccuracy)
    x = Input((4,))
    two = Model(x, [L.Dense(1, name="a")(x), L.Dense(1, activation="sigmoid", name="b")(x)])
    losses = {"a": "mse", "b": "binary_crossentropy"}
    two.compile("sgd", losses, metrics={"a": ["mae"], "b": ["accuracy"]})
    assert two.loss == losses
    assert [metric.name for metric in two.metrics] == ["mae", "accuracy"]
    assert two.metrics_names == ["loss", "a_loss", "b_loss", "a_mae", "b_accuracy"]


def test_fit_needs_compile():
    with pytest.raises(InvalidArgument, match="compile"):
        Sequential([L.Dense(2, input_shape=(3,))]).fit(np.zeros((8, 3)), np.zeros((8, 2)))
