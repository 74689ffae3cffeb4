"""FFModel: loops, data loaders, weights, flags, errors."""

import warnings

import numpy as np
import pytest

from espalier.core import (
    ActiMode,
    AdamOptimizer,
    AggrMode,
    CompMode,
    DataType,
    FFConfig,
    FFModel,
    LossType,
    MetricsType,
    NormInitializer,
    RegularizerMode,
    SGDOptimizer,
    UniformInitializer,
    ZeroInitializer,
)
from espalier.errors import EspalierWarning, FailedPrecondition, InvalidArgument, NotFound

BATCH, FEATURES, CLASSES = 16, 6, 3
SPARSE = LossType.LOSS_SPARSE_CATEGORICAL_CROSSENTROPY
ALL = [MetricsType.METRICS_ACCURACY, MetricsType.METRICS_SPARSE_CATEGORICAL_CROSSENTROPY]


def data(examples=160, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(examples, FEATURES)).astype(np.float32)
    return x, x[:, :CLASSES].argmax(1).astype(np.int32)[:, None]


def classifier(optimizer=None, softmax=True, dropout=0.0, loss=SPARSE, metrics=ALL, arguments=(), name=None):
    config = FFConfig(["-b", str(BATCH), *arguments])
    model = FFModel(config)
    x = model.create_tensor([BATCH, FEATURES], DataType.DT_FLOAT)
    t = model.dense(x, 12, ActiMode.AC_MODE_TANH, name=name or "hidden")
    if dropout:
        t = model.dropout(t, dropout, 0)
    t = model.dense(t, CLASSES, name="top")
    if softmax:
        t = model.softmax(t)
    model.compile(optimizer or SGDOptimizer(model, 0.3), loss, metrics)
    return model, x


def loaders(model, x, arrays):
    return model.create_data_loader(x, arrays[0]), model.create_data_loader(model.label_tensor, arrays[1])


def loop(model, x_loader, y_loader, epochs):
    for _ in range(epochs):
        x_loader.reset()
        y_loader.reset()
        model.reset_metrics()
        for _ in range(x_loader.num_samples // BATCH):
            x_loader.next_batch(model)
            y_loader.next_batch(model)
            model.forward()
            model.zero_gradients()
            model.backward()
            model.compute_metrics()
            model.update()


@pytest.mark.parametrize("kind", [SGDOptimizer, AdamOptimizer])
def test_a_loop_gives_the_bits_of_fit(daemon, kind):
    ends = []
    for fits in (True, False):
        model, x = classifier(dropout=0.2)
        model.set_optimizer(kind(model, 0.05))
        x_loader, y_loader = loaders(model, x, data())
        with model:
            model.init_layers()
            if fits:
                history = model.fit(x_loader, y_loader, epochs=3, verbose=0)
                assert history[-1] == model.get_perf_metrics().values
            else:
                loop(model, x_loader, y_loader, 3)
            ends.append((model.parameters(), model.get_perf_metrics().values))
    assert ends[0][1] == ends[1][1]
    assert ends[0][0].keys() == ends[1][0].keys()
    for name, array in ends[0][0].items():
        assert np.array_equal(array, ends[1][0][name]), name


def test_inline_batches_give_the_bits_of_loaders(daemon):
    arrays = data()
    ends = []
    for inline in (True, False):
        model, x = classifier()
        with model:
            if inline:
                for i in range(0, 160, BATCH):
                    x.set_tensor(model, arrays[0][i : i + BATCH])
                    model.label_tensor.set_tensor(model, arrays[1][i : i + BATCH])
                    model.forward()
                    model.zero_gradients()
                    model.backward()
                    model.update()
            else:
                model.fit(*arrays, verbose=0)
            ends.append(model.parameters())
    for name, array in ends[0].items():
        assert np.array_equal(array, ends[1][name]), name


def test_fit_learns_and_eval_takes_every_example(daemon, capsys):
    model, x = classifier(arguments=["-p", "5"])
    train, test = data(), data(53, seed=1)
    pair = loaders(model, x, train)
    with model:
        history = model.fit(*pair, epochs=30)
        assert model.eval(*pair) == pytest.approx(model.eval(*train), rel=1e-6)
        assert history[-1]["loss"] < history[0]["loss"] / 2
        found = model.eval(*test)
        assert model.get_perf_metrics().get_accuracy() == 100 * found["accuracy"] > 85
        output = model.predict(test[0])
    assert output.shape == (53, CLASSES)
    np.testing.assert_allclose(output.sum(1), 1, rtol=1e-5)
    assert found["accuracy"] == pytest.approx((output.argmax(1) == test[1][:, 0]).mean(), abs=1e-6)
    expected = -np.log(output[np.arange(53), test[1][:, 0]]).mean()
    assert found["loss"] == pytest.approx(expected, rel=1e-4)
    assert found["sparse_categorical_crossentropy"] == found["loss"]
    shown = capsys.readouterr().out
    assert "epoch 30/30: loss " in shown
    assert "epoch 1/30 step 5/10: loss" in shown


def test_softmax_at_the_end_is_not_applied_twice(daemon):
    losses = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with_softmax, _ = classifier()
        with with_softmax:
            losses.append(with_softmax.fit(*data(), epochs=2, verbose=0)[-1]["loss"])
    with pytest.warns(EspalierWarning, match=r"the model ends in top \(linear\), not in softmax.*taken as logits"):
        without, _ = classifier(softmax=False)
    with without:
        losses.append(without.fit(*data(), epochs=2, verbose=0)[-1]["loss"])
    assert losses[0] == losses[1]


def test_categorical_labels_and_their_metrics(daemon):
    model, _ = classifier(
        loss=LossType.LOSS_CATEGORICAL_CROSSENTROPY,
        metrics=["accuracy", "categorical_crossentropy", MetricsType.METRICS_MEAN_SQUARED_ERROR, "mean_absolute_error"],
    )
    points, labels = data()
    hot = np.eye(CLASSES, dtype=np.float32)[labels[:, 0]]
    with model:
        found = model.eval(points, hot)
        output = model.predict(points)
    assert found["categorical_crossentropy"] == pytest.approx(-(hot * np.log(output)).sum(1).mean(), rel=1e-4)
    assert found["accuracy"] == pytest.approx((output.argmax(1) == labels[:, 0]).mean(), abs=1e-6)
    assert found["mean_squared_error"] == pytest.approx(((output - hot) ** 2).mean(), rel=1e-4)
    assert found["mean_absolute_error"] == pytest.approx(np.abs(output - hot).mean(), rel=1e-4)


def test_errors_of_integer_labels_are_those_of_one_hot_ones(daemon):
    model, _ = classifier(metrics=[MetricsType.METRICS_MEAN_SQUARED_ERROR, MetricsType.METRICS_ROOT_MEAN_SQUARED_ERROR])
    points, labels = data()
    with model:
        found = model.eval(points, labels)
        error = ((model.predict(points) - np.eye(CLASSES)[labels[:, 0]]) ** 2).mean()
    assert found["mean_squared_error"] == pytest.approx(error, rel=1e-4)
    assert found["root_mean_squared_error"] == pytest.approx(error**0.5, rel=1e-4)


@pytest.mark.parametrize(
    ("loss", "reduced"),
    [
        (LossType.LOSS_MEAN_SQUARED_ERROR_AVG_REDUCE, np.mean),
        (LossType.LOSS_MEAN_SQUARED_ERROR_SUM_REDUCE, np.sum),
    ],
)
def test_squared_errors_are_averaged_or_summed(daemon, loss, reduced):
    model, x = classifier(loss=loss, metrics=[], softmax=False)
    points, _ = data(BATCH)
    target = points[:, :CLASSES] * 2
    with model:
        x.set_tensor(model, points)
        model.label_tensor.set_tensor(model, target)
        found = model.forward()
        output = model.get_last_layer().outputs[0].get_tensor(model)
    assert found["loss"] == pytest.approx(reduced((output - target) ** 2), rel=1e-4)


def test_rows_that_are_several_to_an_example_have_labels_each(daemon):
    model = FFModel(FFConfig(["-b", str(BATCH)]))
    ids = model.create_tensor([BATCH, 5], DataType.DT_INT32)
    t = model.embedding(ids, 7, 8, AggrMode.AGGR_MODE_NONE)
    t = model.reshape(t, [BATCH * 5, 8])
    model.softmax(model.dense(t, 7))
    model.compile(AdamOptimizer(model, 0.05), SPARSE, ALL)
    assert model.label_tensor.dims == (BATCH * 5, 1)
    tokens = np.random.default_rng(0).integers(0, 7, (64, 5)).astype(np.int32)
    with model:
        history = model.fit(tokens, (tokens + 1) % 7, epochs=20, verbose=0)
        assert history[-1]["accuracy"] == 1
        assert model.eval(tokens, ((tokens + 1) % 7).reshape(-1, 1))["accuracy"] == 1


def test_weights_are_read_and_set_by_layer(daemon):
    model, _ = classifier()
    kernel = model.get_layer_by_name("hidden").get_weight_tensor()
    bias = model.get_layer_by_id(0).get_bias_tensor()
    assert (kernel.dims, bias.dims) == ((12, FEATURES), (12,))
    assert model.get_tensor_by_id(2) is model.get_layers()[1].get_parameter_by_id(0)
    with model:
        given = np.arange(12 * FEATURES, dtype=np.float32).reshape(12, FEATURES)
        kernel.set_weights(model, given)
        assert np.array_equal(kernel.get_weights(model), given)
        assert not bias.get_weights(model).any()
        bias.inline_map(model, None)
        bias.get_array(model)[:] = 7
        bias.inline_unmap(model, None)
        assert (bias.get_weights(model) == 7).all()
        with pytest.raises(ValueError, match="read-only"):
            bias.get_array(model)[:] = 8
        with pytest.raises(InvalidArgument, match=r"hidden.kernel has dims \[12, 6\], the array \[6, 12\]"):
            kernel.set_weights(model, given.T)
    with pytest.raises(NotFound, match="no layer 'middle'; there are hidden, top, softmax_2"):
        model.get_layer_by_name("middle")


def test_inputs_that_no_layer_reads_need_no_data(daemon):
    model = FFModel(FFConfig(["-b", "4"]))
    unused = model.create_tensor([7, 2], DataType.DT_INT32)
    x = model.create_tensor([4, 5], DataType.DT_FLOAT)
    model.create_tensor([4, 1], DataType.DT_INT32)
    y = model.dense(x, 3, use_bias=False)
    model.compile(SGDOptimizer(model), LossType.LOSS_MEAN_SQUARED_ERROR_AVG_REDUCE, [])
    unused.get_tensor(model)[:] = 5
    assert (unused.get_tensor(model) == 5).all()
    with model:
        x.get_tensor(model)[:] = 2  # as into a mapped tensor of FlexFlow
        model.label_tensor.get_array(model).fill(1)
        loss = model.forward()["loss"]
        kernel = model.get_tensor_by_id(0).get_weights(model)
        np.testing.assert_allclose(y.get_tensor(model), np.full((4, 5), 2) @ kernel.T, rtol=1e-5)
        assert loss == pytest.approx(((2 * kernel.sum(1) - 1) ** 2).mean(), rel=1e-4)
        assert len(model.fit(np.ones((8, 5)), np.ones((8, 3)), verbose=0)) == 1


def test_a_second_compile_begins_anew_with_another_loss(daemon):
    model, _ = classifier()
    points, labels = data()
    with model:
        first = model.fit(points, labels, epochs=2, verbose=0)
        model.compile("adam", "mean_squared_error", ["accuracy"])
        with pytest.raises(InvalidArgument, match=r"dims \[160, 1\]; an example of it has \[3\]"):
            model.fit(points, labels, verbose=0)
        model.fit(points, np.eye(CLASSES)[labels[:, 0]], epochs=2, verbose=0)
        model.compile(SGDOptimizer(model, 0.3), SPARSE, ALL)
        assert model.fit(points, labels, epochs=2, verbose=0) == first


def test_gradients_add_up_until_they_are_zeroed(daemon):
    model, x = classifier()
    points, labels = data(BATCH)
    kernel = model.get_layer_by_name("top").get_weight_tensor()
    with model:
        x.set_tensor(model, points)
        model.label_tensor.set_tensor(model, labels)
        found = []
        for _ in range(2):
            model.forward()
            model.backward()
            found.append(kernel.get_gradients(model))
        model.zero_gradients()
        assert not kernel.get_gradients(model).any()
    assert found[0].any()
    np.testing.assert_allclose(found[1], 2 * found[0], rtol=1e-5)


def test_initializers(daemon):
    model = FFModel(FFConfig(["-b", "4"]))
    x = model.create_tensor([4, 50], DataType.DT_FLOAT)
    t = model.dense(
        x, 50, kernel_initializer=ZeroInitializer(), bias_initializer=NormInitializer(1, 3.0, 0.0), name="a"
    )
    t = model.dense(t, 50, kernel_initializer=UniformInitializer(1, 2.0, 4.0), name="b")
    t = model.dense(t, 50, kernel_initializer=NormInitializer(1, 0.0, 0.5), name="c")
    model.dense(t, 50, name="d")
    model.compile(SGDOptimizer(model), LossType.LOSS_IDENTITY, [])
    with model:
        p = model.parameters()
    assert not p["a.kernel"].any()
    assert (p["a.bias"] == 3).all()
    assert 2 <= p["b.kernel"].min() < 2.1
    assert 3.9 < p["b.kernel"].max() <= 4
    assert p["c.kernel"].std() == pytest.approx(0.5, rel=0.1)
    assert np.abs(p["d.kernel"]).max() == pytest.approx((6 / 100) ** 0.5, rel=0.02)


def test_a_graph_that_is_too_large_for_a_message_travels_as_a_file(daemon, monkeypatch):
    from espalier.core.inline import inline
    from espalier.core.module import add_module
    from espalier.graph import Graph

    part = Graph("part")
    given = np.random.default_rng(0).normal(size=(8, FEATURES)).astype(np.float32)
    y = part.op("linear", [part.input("x", (None, FEATURES)), part.parameter("given", data=given)])
    part.output("y", y)
    assert set(inline(Graph("copy"), part)) == {0, 1, 2}
    monkeypatch.setattr("espalier.core.settle.MOST_BYTES", 0)
    monkeypatch.setattr("espalier.values.MOST_BYTES", 0)
    model = FFModel(FFConfig(["-b", str(BATCH)]))
    x = model.create_tensor([BATCH, FEATURES], DataType.DT_FLOAT)
    (t,) = add_module(model, "part", part, {"x": x}, [("y", [BATCH, 8], "float32", 0)])
    t = model.dense(t, 300, ActiMode.AC_MODE_RELU, kernel_initializer=NormInitializer(0, 1.0, 0.1), name="a")
    model.softmax(model.dense(t, CLASSES, kernel_initializer=UniformInitializer(0, -0.2, 0.4), name="b"))
    model.compile(SGDOptimizer(model, 0.01), SPARSE, ALL)
    with model:
        p = model.parameters()
        history = model.fit(*data(), epochs=5, verbose=0)
    assert np.array_equal(p["given"], given)
    assert (p["a.kernel"].mean(), p["a.kernel"].std()) == pytest.approx((1, 0.1), rel=0.1)
    assert -0.2 <= p["b.kernel"].min() < -0.1 < 0.3 < p["b.kernel"].max() <= 0.4
    assert history[-1]["loss"] < history[0]["loss"]


def test_the_learning_rate_of_a_running_model(daemon):
    model, _ = classifier(SGDOptimizer(None, 0.3))
    with model:
        model.fit(*data(), verbose=0)
        before = model.parameters()
        model.optimizer.set_learning_rate(0.0)
        model.fit(*data(), verbose=0)
        assert np.array_equal(before["top.kernel"], model.parameters()["top.kernel"])


def test_regularized_kernels_shrink(daemon):
    class L2:
        type, _lambda = RegularizerMode.REG_MODE_L2, 0.5

    model = FFModel(FFConfig(["-b", "4"]))
    x = model.create_tensor([4, 5], DataType.DT_FLOAT)
    model.dense(x, 5, kernel_regularizer=L2, name="a")
    model.compile(SGDOptimizer(model, 0.1), LossType.LOSS_IDENTITY, [])
    with model:
        before = model.parameters()["a.kernel"]
        model.fit(np.zeros((4, 5)), verbose=0)
        np.testing.assert_allclose(model.parameters()["a.kernel"], before * (1 - 0.1), rtol=1e-5)


def test_inference_needs_no_labels(daemon):
    model = FFModel(FFConfig(["-b", "4"]))
    x = model.create_tensor([4, 5], DataType.DT_FLOAT)
    hidden = model.dense(x, 3)
    y = model.dropout(hidden, 0.5)
    model.keep(hidden)
    model.compile(comp_mode=CompMode.INFERENCE)
    with model:
        x.set_tensor(model, np.ones((4, 5)))
        model.forward()
        assert np.array_equal(y.get_tensor(model), hidden.get_tensor(model))
        with pytest.raises(FailedPrecondition, match="got no optimizer"):
            model.update()


def test_a_second_model_takes_the_workers_and_the_first_gets_its_parameters_back(daemon):
    teacher, _ = classifier(AdamOptimizer(None, 0.01))
    student, _ = classifier()
    with teacher, student:
        teacher.fit(*data(), epochs=2, verbose=0)
        weights, quality = teacher.parameters(), teacher.eval(*data(seed=3))
        student.set_parameters(weights)
        assert student.eval(*data(seed=3)) == pytest.approx(quality, rel=1e-6)
        with pytest.warns(EspalierWarning, match="the moments of its optimizer begin anew"):
            again = teacher.parameters()
    assert all(np.array_equal(array, again[name]) for name, array in weights.items())


def test_two_models_have_workers_of_their_own_and_give_what_one_on_both_gives(daemon):
    def trained(devices):
        model, _ = classifier()
        model._config.max_devices = devices
        return model

    both = trained(2)
    with both:
        history = both.fit(*data(), epochs=3, verbose=0)
    first, second = trained(1), trained(1)
    with first, second, warnings.catch_warnings():
        warnings.simplefilter("error")  # none takes the other's worker
        for _ in range(3):
            one, other = (model.fit(*data(), verbose=0)[0]["loss"] for model in (first, second))
        assert {op for model in (first, second) for op in _devices(model)} == {0}
    assert one == other == pytest.approx(history[-1]["loss"], rel=1e-4)


def _devices(model):
    return {device for op in model.plan.proto.operators for device in op.devices}


def test_what_cannot_be_is_refused_with_the_layer_and_the_remedy(daemon):
    model = FFModel(FFConfig(["-b", "4"]))
    x = model.create_tensor([4, 3, 8, 8], DataType.DT_FLOAT)
    ids = model.create_tensor([4, 5], DataType.DT_INT64)
    flipped = model.transpose(model.create_tensor([4, 2, 4], DataType.DT_FLOAT), (1, 2, 0))
    cases = [
        (
            lambda: model.relu(model.create_tensor([5, 3], DataType.DT_FLOAT)),
            r"dims\[0\] of its input.*batch size.* 4 \(-b\)",
        ),
        (lambda: model.create_tensor([4, 3], DataType.DT_DOUBLE), "DT_DOUBLE: .*use DT_FLOAT"),
        (
            lambda: model.conv2d(x, 4, 9, 9, 1, 1, 0, 0, name="c"),
            r"layer c \(conv2d\): its kernel of height 9 is larger",
        ),
        (lambda: model.conv2d(ids, 4, 1, 1, 1, 1, 0, 0), "four are needed"),
        (lambda: model.embedding(x, 4, 1, AggrMode.AGGR_MODE_SUM), "ids are DT_INT32 or DT_INT64"),
        (lambda: model.reshape(x, [4, 3, 8, 7]), r"\[4, 3, 8, 8\] cannot be reshaped to \[4, 3, 8, 7\]"),
        (lambda: model.reshape(x, [6, 128]), "the batch, would be split up"),
        (lambda: model.concat([x, x], 0), "axis 0 is the batch"),
        (lambda: model.split(x, 2, 1), "3 elements along axis 1 cannot be split into 2"),
        (lambda: model.batch_matmul(x, model.transpose(x, (1, 0, 2, 3))), r"equal before the last two"),
        (lambda: model.batch_matmul(flipped, flipped), "the batch is dimension 2 of A and 2 of B"),
        (lambda: model.dense(flipped, 3), "is the batch, over which nothing is computed"),
        (lambda: model.softmax(flipped), "is the batch, over which nothing is computed"),
        (lambda: model.flat(flipped), "is the batch, which must be dimension 0"),
        (lambda: model.add(x, ids), "DT_FLOAT and DT_INT64"),
        (lambda: model.transpose(x, (0, 1, 1, 2)), "each must occur once"),
        (lambda: model.dropout(x, 1.0), "rate 1.0; accepted"),
        (lambda: model.dense(x, 3, activation="relu"), "activation 'relu'; accepted: AC_MODE_NONE"),
        (
            lambda: model.create_data_loader(ids, np.full((8, 5), 0.5)),
            "a tensor of DT_INT64, and its data has 0.5 in row 0",
        ),
        (
            lambda: model.create_data_loader(ids, np.full((8, 5), np.inf)),
            "its data has inf in row 0; leave such rows out",
        ),
        (lambda: model.batch_norm(ids, name="bn").dims, None),
    ]
    for act, message in cases:
        if message is None:
            act()
            continue
        with pytest.raises(InvalidArgument, match=message):
            act()
    model.flat(x)
    # What only the daemon knows comes with compile, and names the line.
    with pytest.raises(InvalidArgument, match=r"bn.*test_core\.py:\d+"):
        model.compile(SGDOptimizer(model), LossType.LOSS_IDENTITY, [])


def test_what_comes_too_early_or_too_late_is_refused(daemon):
    model, x = classifier()
    with pytest.raises(FailedPrecondition, match="before compile"):
        model.relu(x)
    with pytest.raises(FailedPrecondition, match="input_0 has no elements"):
        model.forward()
    points, labels = data(BATCH)
    with pytest.raises(InvalidArgument, match="batch_size 8, and the model was made for 16"):
        model.fit(points, labels, batch_size=8)
    for epochs in (0, 1.5, True):
        with pytest.raises(InvalidArgument, match=f"^epochs is {epochs}; accepted: an integer above 0$"):
            model.fit(points, labels, epochs=epochs)
    config = FFConfig(["-b", "4"])
    config.batch_size = 0
    with pytest.raises(InvalidArgument, match=r"^batch_size is 0; accepted: an integer above 0$"):
        FFModel(config)
    with pytest.raises(InvalidArgument, match="do not fill a batch of 16"):
        model.fit(points[:3], labels[:3])
    with pytest.raises(InvalidArgument, match="unequal numbers of examples"):
        model.fit(points, labels[:3])
    with pytest.raises(InvalidArgument, match=r"dims \[16, 4\]; an example of it has \[6\]"):
        model.fit(points[:, :4], labels)
    loader = model.create_data_loader(x, points)
    loader.next_batch(model)
    with pytest.raises(NotFound, match=r"reset\(\) begins anew"):
        loader.next_batch(model)
    empty = FFModel(FFConfig(["-b", "4"]))
    with pytest.raises(FailedPrecondition, match="has no layers"):
        empty.compile()
    with pytest.raises(FailedPrecondition, match=r"call compile\(\) first"):
        empty.label_tensor  # noqa: B018
