"""espalier.onnx: trains as `espalier train --onnx` and as NumPy does, and gives the model back as a file."""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import pytest
import small
from pages import run

import espalier.onnx as es
from espalier import callbacks, errors
from espalier.external_data import files_of
from espalier.optimizers import Adam

ONE = {"strategy": "single_device"}


def model_of(softmax=False):
    """The small classifier as a file."""
    make = onnx.helper
    nodes = [
        make.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["h"], transB=1),
        make.make_node("Tanh", ["h"], ["t"]),
        make.make_node("Gemm", ["t", "fc2.weight", "fc2.bias"], ["logits"], transB=1),
    ]
    if softmax:
        nodes.append(make.make_node("Softmax", ["logits"], ["probabilities"], axis=-1))
    names = {"w1": "fc1.weight", "b1": "fc1.bias", "w2": "fc2.weight", "b2": "fc2.bias"}
    graph = make.make_graph(
        nodes,
        "small",
        [make.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", small.FEATURES])],
        [make.make_tensor_value_info(nodes[-1].output[0], onnx.TensorProto.FLOAT, ["batch", small.CLASSES])],
        [onnx.numpy_helper.from_array(value, names[key]) for key, value in small.initial().items()],
    )
    return make.make_model(graph, opset_imports=[make.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx")
    onnx.save(model_of(), path / "small.onnx")
    np.savez(path / "data.npz", x=small.examples()["x"], y=small.examples()["labels"])
    return path


def fit(model, data, **given):
    options = {"optimizer": "sgd", "batch_size": 32, "shuffle": False, "verbose": 0, "search": ONE, "epochs": 2}
    return es.fit(model, data, **(options | given))


def program():
    folder = os.environ["ESPALIER_BIN"]
    return next(p for p in (f"{folder}/client/espalier", f"{folder}/espalier") if os.access(p, os.X_OK))


def test_trains_as_numpy(daemon, folder):
    data = small.examples()
    losses, accuracies, trained = small.train(data, steps=16, batch=32, rate=0.01)
    for model in (folder / "small.onnx", folder, model_of(), model_of(softmax=True)):
        result = fit(model, (data["x"], data["labels"]))
        np.testing.assert_allclose(result.history["loss"], losses, rtol=2e-6)
        np.testing.assert_allclose(result.history["accuracy"], accuracies, rtol=1e-6)
        found = result.weights()
        for ours, theirs in (("fc1.weight", "w1"), ("fc2.bias", "b2")):
            np.testing.assert_allclose(found[ours], trained[theirs], atol=2e-6)


def test_as_the_command(daemon, folder):
    """Every option alike: the same losses bit for bit, and the same weights."""
    command = [program(), "train", "--json"]
    command += [
        f"--coordinator={daemon._settings.address}",
        f"--onnx={folder}/small.onnx",
        f"--dataset={folder}/data.npz",
    ]
    command += ["--input=labels=y", "--loss=sparse_categorical_crossentropy:label_smoothing=0.1,ignore_index=2"]
    command += [
        "--metrics=top_k_accuracy:k=2,accuracy",
        "--freeze=fc1.*",
        "--holdout=0.25",
        "--optimizer=adam",
        "--lr=0.02",
    ]
    command += ["-b", "16", "-e", "3", "--seed=5", "--single-device", "--name=by-command"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    theirs = next(record for record in daemon.jobs() if record.spec.name == "by-command")
    result = fit(
        folder / "small.onnx",
        folder / "data.npz",
        columns={"labels": "y"},
        loss=es.Loss("sparse_categorical_crossentropy", label_smoothing=0.1, ignore_index=2),
        metrics=[es.Metric("top_k_accuracy", k=2), "accuracy"],
        freeze="fc1.*",
        validation_split=0.25,
        optimizer=Adam(0.02),
        batch_size=16,
        epochs=3,
        seed=5,
        shuffle=True,
    )
    assert result.history == daemon.job(theirs.id).history
    assert result.evaluation == dict(theirs.evaluation)
    wanted = daemon.weights(theirs.output_model)
    for name, array in result.weights().items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=name)
    np.testing.assert_array_equal(result.weights()["fc1.weight"], small.initial()["w1"])
    assert not np.array_equal(result.weights()["fc2.weight"], small.initial()["w2"])


def test_the_trained_file_goes_on(daemon, folder, tmp_path):
    data = small.examples()
    whole = fit(folder, data, steps=8, epochs=None)
    half = fit(folder, data, steps=4, epochs=None)
    saved = half.save(tmp_path / "new" / "half.onnx")
    onnx.checker.check_model(str(saved))
    tensors = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(saved).graph.initializer}
    for name, array in half.weights().items():
        np.testing.assert_array_equal(tensors[name], array)
    rest = {name: array[4 * 32 :] for name, array in data.items()}
    again = fit(saved, rest, steps=4, epochs=None)
    np.testing.assert_allclose(again.history["loss"], whole.history["loss"][4:], rtol=1e-6)
    assert (half.save(tmp_path / "all") / "model.safetensors").is_file()


def test_weights_in_other_files(daemon, folder, tmp_path):
    file = tmp_path / "apart.onnx"
    (tmp_path / "more").mkdir()
    onnx.save(model_of(), file, save_as_external_data=True, location="more/weights.bin", size_threshold=0)
    data = small.examples()
    expected = fit(folder, data).history["loss"]
    assert fit(file, data).history["loss"] == expected
    (tmp_path / "more" / "weights.bin").unlink()
    with pytest.raises(errors.InvalidArgument, match=r"keeps weights in the file 'more/weights.bin', and there is no"):
        fit(file, data)


def test_an_upload_takes_the_files_of_weights_along(daemon, tmp_path):
    file, weights = tmp_path / "apart.onnx", tmp_path / "more" / "weights.bin"
    weights.parent.mkdir()
    onnx.save(model_of(), file, save_as_external_data=True, location="more/weights.bin", size_threshold=0)
    (tmp_path / "notes.txt").write_text("no part of the model")
    name = daemon.upload(file)
    for given in (str(file), [file], [weights, file], [file, weights]):
        assert daemon.upload(given) == name
    assert daemon.upload(tmp_path, "onnx") == name
    assert next(sorted(a.files) for a in daemon.artifacts() if a.name == name) == ["apart.onnx", "more/weights.bin"]
    served = daemon.serve(name, name="apart")
    x, p = small.examples()["x"], small.initial()
    wanted = np.tanh(x @ p["w1"].T + p["b1"]) @ p["w2"].T + p["b2"]
    np.testing.assert_allclose(daemon.predict(served, x)["logits"], wanted, atol=1e-5)
    daemon.unserve("apart")
    known = len(daemon.artifacts())
    whole = file.read_bytes()
    for content, message in [
        (b"", r"broken\.onnx is empty; accepted: an ONNX model"),
        (b"hello", "holds no ONNX model"),
        (whole[: len(whole) // 2], "holds no ONNX model with nodes: it is cut short, damaged"),
        (whole.replace(b"more/weights.bin", b"more/weights.bi_"), "'more/weights.bi_', and there is no .*weights.bi_"),
        (whole.replace(b"more/weights.bin", b"more/../a/../../"), r"no path beneath its folder"),
    ]:
        (tmp_path / "broken.onnx").write_bytes(content)
        with pytest.raises(errors.InvalidArgument, match=message):
            daemon.upload(tmp_path / "broken.onnx")
    with pytest.raises(
        errors.InvalidArgument, match=r"holds 2 files that end in .onnx: apart.onnx, broken.onnx; give one"
    ):
        daemon.upload(tmp_path, "onnx")
    assert len(daemon.artifacts()) == known


def outside(name, location):
    """A tensor in another file."""
    made = onnx.numpy_helper.from_array(np.zeros((4, 4), np.float32), name)
    onnx.external_data_helper.set_external_data(made, location)
    made.ClearField("raw_data")
    return made


def test_weights_are_found_wherever_a_model_can_have_them(tmp_path):
    make = onnx.helper
    body = make.make_graph([make.make_node("Identity", ["c"], ["d"])], "body", [], [], [outside("c", "body.bin")])
    nodes = [
        make.make_node("Constant", [], ["k"], value=outside("k", "constant.bin")),
        make.make_node("If", ["q"], ["z"], then_branch=body, else_branch=body),
    ]
    within = onnx.numpy_helper.from_array(np.ones(30), "within")
    no_longer = outside("no_longer", "missing.bin")
    no_longer.data_location = onnx.TensorProto.DEFAULT
    graph = make.make_graph(nodes, "g", [], [], [outside("w", "a/b.bin"), within, no_longer])
    graph.sparse_initializer.add().values.CopyFrom(outside("s", "sparse.bin"))
    model = make.make_model(graph)
    model.functions.add().node.append(make.make_node("Constant", [], ["k"], value=outside("k", "function.bin")))
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "a").mkdir()
    names = ["a/b.bin", "body.bin", "constant.bin", "function.bin", "sparse.bin"]
    for name in names:
        (tmp_path / name).write_bytes(b"")
    found = files_of(tmp_path)
    assert found == {name: tmp_path / name for name in ("net.onnx", *names)}


def test_data_in_batches_and_examples(daemon, folder):
    data = small.examples()
    x, labels = data["x"], data["labels"]
    expected = fit(folder, data).history["loss"]
    batches = [(x[i : i + 64], labels[i : i + 64]) for i in range(0, len(x), 64)]
    assert fit(folder, batches).history["loss"] == expected
    assert fit(folder, [{"x": a, "labels": b} for a, b in zip(x, labels, strict=True)]).history["loss"] == expected
    with pytest.raises(errors.InvalidArgument, match="neither a batch nor an example"):
        fit(folder, [(x[:, :, None, None], labels)])
    with pytest.raises(errors.InvalidArgument, match="inputs and the labels are x, labels"):
        fit(folder, (x, x, labels))


@pytest.mark.parametrize("kind", ["tuple", "dict", "batches", "iterator", "examples"])
def test_streamed_examples_train_as_uploaded_ones(daemon, folder, kind):
    data = small.examples()
    x, labels = data["x"], data["labels"]
    expected = fit(folder, data)
    pieces = [(x[i : i + 50], labels[i : i + 50]) for i in range(0, len(x), 50)]
    given, length = {
        "tuple": ((x, labels), {}),
        "dict": ({"x": x, "y": labels, "more": x[:, 0]}, {"columns": {"labels": "y"}}),
        "batches": (pieces, {"epochs": None, "steps": 16}),
        "iterator": (iter([*pieces, *pieces]), {"epochs": None, "steps": 100}),
        "examples": ([{"x": a, "labels": b} for a, b in zip(x, labels, strict=True)], {}),
    }[kind]
    result = fit(folder, given, stream=True, **length)
    assert result.history == expected.history
    for name, array in expected.weights().items():
        np.testing.assert_array_equal(result.weights()[name], array)


def test_streams_refuse(daemon, folder):
    data = small.examples()
    for given, options, message in [
        (str(folder / "data.npz"), {}, "a file is uploaded without stream=True"),
        (iter(()), {"steps": 3, "epochs": None}, "data has no examples"),
        ([(data["x"][:, :, None], data["labels"])], {}, "neither a batch nor an example"),
        (data, {"validation_split": 0.1}, "the last examples of a stream are not known"),
        ({"x": data["x"]}, {}, "labels"),
    ]:
        with pytest.raises(errors.InvalidArgument, match=message):
            fit(folder, given, stream=True, **options)
    with pytest.raises(TypeError, match="did you mean 'batch_size'"):
        fit(folder, data, batchsize=3)
    with pytest.raises(errors.InvalidArgument, match="record is 'on'; accepted"):
        fit(folder, data, record="on")


def test_class_weights_as_the_command(daemon, folder):
    command = [program(), "train", "--json", f"--coordinator={daemon._settings.address}"]
    command += [f"--onnx={folder}/small.onnx", f"--dataset={folder}/data.npz", "--input=labels=y", "--holdout=0.25"]
    command += ["--loss=sparse_categorical_crossentropy:class_weights=0.5,1,4,ignore_index=7", "--single-device"]
    command += ["-b", "32", "-e", "2", "--optimizer=sgd", "--no-shuffle", "--name=weighted-by-command"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    theirs = next(record for record in daemon.jobs() if record.spec.name == "weighted-by-command")
    options = {"columns": {"labels": "y"}, "validation_split": 0.25}
    loss = es.Loss("cross_entropy", ignore_index=7)
    result = fit(folder, folder / "data.npz", loss=loss, class_weight={0: 0.5, 2: 4}, **options)
    assert result.history == daemon.job(theirs.id).history
    assert result.evaluation == dict(theirs.evaluation)
    # What is trained already is evaluated as one batch, too: 256 examples do not fill batches of 60.
    command = [program(), "evaluate", theirs.output_model, "--json", f"--coordinator={daemon._settings.address}"]
    command += [f"--dataset={folder}/data.npz", "--input=labels=y", "-b", "60"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    p, data = daemon.weights(theirs.output_model), small.examples()
    logits = np.tanh(data["x"] @ p["fc1.weight"].T + p["fc1.bias"]) @ p["fc2.weight"].T + p["fc2.bias"]
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(256), data["labels"]]
    weights = np.array([0.5, 1, 4])[data["labels"]]
    wanted = (weights * losses).sum() / weights.sum()
    assert json.loads(done.stdout)["values"]["loss"] == pytest.approx(wanted, rel=1e-5)


def test_class_weights_that_cannot_be(daemon, folder):
    sparse = "sparse_categorical_crossentropy"
    cases = [
        ({"class_weight": [1.0, 2.0]}, "has 2 class_weights, and output 'logits' .* has 3 classes in dimension 1"),
        (
            {"class_weight": {0: 2.0, 3: 1.0}},
            "has 4 class_weights, .* has 3 classes in dimension 1; there is no class 3",
        ),
        ({"class_weight": [1, float("nan"), 1]}, r"losses\[0\]\.class_weights\[1\] is nan; accepted: a finite"),
        ({"class_weight": [1, 1, -2]}, r"class_weights\[2\] is -2; accepted"),
        ({"class_weight": [0, 0, 0]}, "all are 0"),
        (
            {"loss": "mse", "class_weight": [1, 2, 3]},
            "'mean_squared_error' on output 'logits' takes no class_weights; "
            "these losses do: negative_log_likelihood, sparse_categorical_crossentropy",
        ),
        (
            {"class_weight": "balanced"},
            r"class_weight is 'balanced'; accepted: one number for each class, or {class",
        ),
        ({"class_weight": {0: "much"}}, r"class_weight\[0\] is 'much'; accepted: a number"),
        ({"class_weight": {"a": 2.0}}, "a dict with the key 'a'; accepted: {class: weight}"),
        ({"class_weight": {-1: 2.0}}, "the key -1"),
        ({"class_weight": np.ones((3, 1))}, r"has the shape \[3, 1\]"),
        ({"loss": [sparse, "mse"], "class_weight": [1, 2, 3]}, "of several losses give each its own"),
        ({"loss": es.Loss(sparse, class_weight=[1, 2, 3]), "class_weight": [1, 2, 3]}, "where that has none"),
    ]
    for options, message in cases:
        with pytest.raises(errors.InvalidArgument, match=message):
            fit(folder, small.examples(), **options)
    with pytest.raises(errors.InvalidArgument, match="did you mean class_weight"):
        es.Loss(sparse, weights=[1, 2, 3])
    with pytest.raises(errors.InvalidArgument, match=r"metrics\[0\]\.class_weights: only losses have some"):
        fit(folder, small.examples(), metrics=[OfMetric(sparse)])


class OfMetric(es.Metric):
    def head(self):
        made = super().head()
        made.class_weights.extend([1, 2, 3])
        return made


def test_a_loss_that_weighs_two_outputs(daemon):
    model = model_of()
    model.graph.output.append(onnx.helper.make_tensor_value_info("t", onnx.TensorProto.FLOAT, ["batch", small.HIDDEN]))
    data = small.examples() | {"labels.t": np.zeros((256, small.HIDDEN), np.float32)}
    loss = ["sparse_categorical_crossentropy", es.Loss("mse", "t", weight=0.5)]
    history = fit(model, data, loss=loss, metrics=[es.Metric("mae", "t")]).history
    assert {"loss", "loss.logits", "loss.t", "mean_absolute_error.t"} <= set(history)
    total = np.array(history["loss.logits"]) + 0.5 * np.array(history["loss.t"])
    np.testing.assert_allclose(history["loss"], total, rtol=1e-6)


def test_the_dry_run_says_what_is_trained(daemon, folder):
    reply = es.dry_run(folder, small.examples(), freeze=["*.bias"], batch_size=32)
    assert not reply.problems
    assert {p.name: p.trained for p in reply.parameter_uses} == {
        "fc1.weight": True,
        "fc1.bias": False,
        "fc2.weight": True,
        "fc2.bias": False,
    }


def test_refused(daemon, folder, tmp_path):
    data = small.examples()
    cases = [
        ({"loss": "no_such_loss"}, "no_such_loss"),
        ({"loss": es.Loss("mse", smoothing=1.0)}, "smoothing"),
        ({"freeze": "decoder.*"}, "decoder"),
        ({"columns": {"labels": "missing"}}, "missing"),
        ({"validation_split": 1.0}, "validation_split"),
        ({"batch_size": 0}, "^batch_size is 0; accepted: an integer above 0$"),
        ({"epochs": 1.0}, "^epochs is 1.0; accepted: an integer above 0$"),
        ({"callbacks": [callbacks.ReduceLROnPlateau()]}, "trains by a job"),
    ]
    for options, message in cases:
        with pytest.raises(errors.InvalidArgument, match=message):
            fit(folder, data, **options)
    with pytest.raises(errors.InvalidArgument, match=r"holds 0 files that end in \.onnx"):
        fit(tmp_path, data)
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(errors.InvalidArgument, match="holds no ONNX model"):
        fit(tmp_path, data)
    new, unknown = model_of(), model_of()
    new.opset_import[0].version = 999
    unknown.graph.node[1].op_type = "NonMaxSuppression"
    for model, message in [
        (new, r"^ONNX artifact '.*': ONNX opset 999 is not read; export with opset 9 to"),
        (
            unknown,
            r"^ONNX artifact '.*': ONNX node 't' \(NonMaxSuppression\): operator 'NonMaxSuppression' is not taken",
        ),
    ]:
        with pytest.raises(errors.InvalidArgument, match=message):
            fit(model, data)
    with pytest.raises(errors.InvalidArgument, match="model is a int"):
        fit(3, data)
    with pytest.raises(errors.InvalidArgument, match="weight"):
        es.Loss("mse", weight=0)


def test_the_guide_runs(daemon, tmp_path, monkeypatch):
    data = Path(__file__).absolute().parents[3] / "tests" / "data"
    digits = np.load(data / "digits.npz")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cnn.onnx").symlink_to(data / "digits_cnn.onnx")
    result = run("onnx.md", {"x": digits["x"], "labels": digits["y"]}, marked=True)["result"]
    assert result.evaluation["accuracy"] > 0.8
    assert (tmp_path / "trained.onnx").is_file()
