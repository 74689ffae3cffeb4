"""Graphs of the user's own in replays: their answers are NumPy's on the whole tensors."""

import json
import re
import subprocess

import numpy as np
import pytest
from small import CLASSES, FEATURES, HIDDEN, examples, graph

import espalier
from espalier import errors, ops
from espalier.graph import Graph
from espalier.local_cluster import find_program
from espalier.training import fit

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

STEPS = 24
SETTINGS = {
    "optimizer": "adam",
    "batch_size": 32,
    "shuffle": False,
    "record": "every:8",
    "search": {"strategy": "single_device"},
    "verbose": 0,
}


@pytest.fixture(scope="module")
def trained(daemon):
    return fit(graph(), examples(), steps=STEPS, name="graphs", client=daemon, **SETTINGS)


def cosine(left="grad(w1)", right="state(w1, adam_m)", dims=("r", "c")):
    """The cosine of the angle between two tensors, as an ONNX model; with a constant inside."""
    epsilon = numpy_helper.from_array(np.float32(1e-30), "epsilon")
    nodes = [
        helper.make_node("Mul", [left, right], ["product"]),
        helper.make_node("ReduceSum", ["product"], ["dot"], keepdims=0),
        helper.make_node("ReduceL2", [left], ["a"], keepdims=0),
        helper.make_node("ReduceL2", [right], ["b"], keepdims=0),
        helper.make_node("Mul", ["a", "b"], ["norms"]),
        helper.make_node("Add", ["norms", "epsilon"], ["positive"]),
        helper.make_node("Div", ["dot", "positive"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in (left, right)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ())]
    made = helper.make_graph(nodes, "cosine", inputs, outputs, [epsilon])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)])


def signal_to_noise(name="grad(w1)"):
    """Mean over standard deviation, and the mean; any shape will do."""
    made = Graph("signal")
    x = made.input(name, ())
    mean = ops.reduce_mean(x)
    deviation = ops.subtract(x, mean)
    variance = ops.reduce_mean(ops.multiply(deviation, deviation))
    made.output("ratio", ops.divide(mean, ops.sqrt(variance)))
    made.output("mean", mean)
    return made


def row_norms(name="param(w1)"):
    made = Graph("rows")
    x = made.input(name, (HIDDEN, FEATURES))
    made.output("norms", ops.sqrt(ops.reduce_sum_square(x, axes=[1])))
    return made


def by_step(rows, label):
    return {row.step: row.value for row in rows if row.label == label}


def of_vectors(a, b):
    return (a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b)


def test_answers_are_numpys_on_the_whole_tensors(daemon, trained, tmp_path):
    path = tmp_path / "cosine.onnx"
    onnx.save(cosine(), path)
    replay = daemon.replay(
        "graphs",
        log=["grad(w1)", "state(w1, adam_m)", "param(w1)", "loss"],
        graphs={
            "cosine": cosine(),
            "bytes": cosine().SerializeToString(),
            "file": path,
            "signal": signal_to_noise(),
            "rows": row_norms(),
        },
        steps=(5, 15),
    )
    record = replay.wait(verbose=0)
    rows = replay.rows()
    assert replay.comparison.bits
    assert (len(rows), record.answers) == (100, 100)
    assert [graph.name for graph in record.spec.graphs] == ["cosine", "bytes", "file", "signal", "rows"]
    assert not any(graph.HasField("graph") or graph.onnx for graph in record.spec.graphs)
    gradients, moments, weights = (by_step(rows, name) for name in ("grad(w1)", "state(w1, adam_m)", "param(w1)"))
    for step, gradient in gradients.items():
        for name in ("cosine", "bytes", "file"):
            np.testing.assert_allclose(by_step(rows, name)[step], of_vectors(gradient, moments[step]), rtol=1e-5)
        np.testing.assert_allclose(by_step(rows, "signal.mean")[step], gradient.mean(), rtol=1e-4, atol=1e-8)
        ratio = gradient.mean() / gradient.std()
        np.testing.assert_allclose(by_step(rows, "signal.ratio")[step], ratio, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(by_step(rows, "rows")[step], np.linalg.norm(weights[step], axis=1), rtol=1e-5)
    steps, cosines = trained.job.logged(log="cosine").curve("cosine")
    assert list(steps) == list(range(5, 15))
    np.testing.assert_array_equal(cosines, [by_step(rows, "cosine")[step] for step in steps])


def test_checkpoints_answer_them_without_training(daemon, trained):
    asked = {"graphs": {"rows": row_norms(), "cosine": cosine("param(w1)")}}
    replay = daemon.replay("graphs", at="checkpoints", **asked)
    replay.wait(verbose=0)
    read = replay.rows()
    again = daemon.replay("graphs", steps=(0, STEPS), every=8, **asked)
    again.wait(verbose=0)
    assert sorted(by_step(read, "rows")) == [0, 8, 16, 24]
    for name in ("rows", "cosine"):
        for step, value in by_step(again.rows(), name).items():
            np.testing.assert_array_equal(by_step(read, name)[step], value)
    with pytest.raises(errors.InvalidArgument, match=r"graph 'a': its input 'grad\(w1\)' is not in checkpoints"):
        daemon.replay("graphs", at="checkpoints", graphs={"a": cosine()})


def of_logits(dims=(None, CLASSES)):
    """Of the largest logit of each example: rows, their mean, and that by a parameter's square."""
    made = Graph("logits")
    top = ops.reduce_max(made.input("linear_1.y", dims), axes=[1])
    made.output("top", top)
    made.output("mean", ops.reduce_mean(top))
    made.output("scaled", ops.multiply(ops.reduce_mean(top), ops.reduce_sum_square(made.input("param(w2)", ()))))
    return made


def hits():
    """How many predictions are right, as a whole number."""
    nodes = [
        helper.make_node("ArgMax", ["linear_1.y"], ["predicted"], axis=1, keepdims=0),
        helper.make_node("Equal", ["predicted", "batch(labels)"], ["right"]),
        helper.make_node("Cast", ["right"], ["ones"], to=TensorProto.INT64),
        helper.make_node("ReduceSum", ["ones"], ["y"], keepdims=0),
    ]
    logits = helper.make_tensor_value_info("linear_1.y", TensorProto.FLOAT, ("n", CLASSES))
    labels = helper.make_tensor_value_info("batch(labels)", TensorProto.INT64, ("n",))
    outputs = [helper.make_tensor_value_info("y", TensorProto.INT64, ())]
    made = helper.make_graph(nodes, "hits", [logits, labels], outputs)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)])


@pytest.mark.filterwarnings("ignore:.*do not fill a batch")
@pytest.mark.parametrize("workers", [1, 2])
def test_evaluations_answer_them_without_padding(daemon, workers, tmp_path):
    name = f"evaluated-{workers}"
    settings = {**SETTINGS, "search": {"max_devices": workers, "strategy": "data_parallel"}}
    # 62 examples are kept apart: two batches of 32, of which the second has padding.
    fit(graph(), examples(250), steps=STEPS, name=name, client=daemon, validation_split=0.25, **settings)
    asked = {"logits": of_logits(), "hits": hits(), "rows": row_norms()}
    log = ["linear_1.y", "batch(labels)", "param(w2)", "param(w1)"]
    replay = daemon.replay(name, log=log, graphs=asked, at="checkpoints", evaluate="holdout")
    record = replay.wait(verbose=0)
    rows = replay.rows()
    assert len(rows) == record.answers
    found = {label: by_step(rows, label) for label in {row.label for row in rows}}
    assert sorted(found["evaluation.logits.top"]) == [0, 8, 16, 24]
    for step, logits in found["evaluation.linear_1.y"].items():
        labels, weight = found["evaluation.batch(labels)"][step], found["param(w2)"][step]
        top = logits.max(axis=1)
        assert top.shape == (62,)
        np.testing.assert_array_equal(found["evaluation.logits.top"][step], top)
        np.testing.assert_allclose(found["evaluation.logits.mean"][step], top.mean(), rtol=1e-5)
        scaled = top.mean() * (weight.astype(np.float64) ** 2).sum()
        np.testing.assert_allclose(found["evaluation.logits.scaled"][step], scaled, rtol=1e-5)
        right = int((logits.argmax(axis=1) == labels).sum())
        assert found["evaluation.hits"][step] == right
        np.testing.assert_allclose(found["evaluation.accuracy"][step], right / 62, rtol=1e-6)
        # What checkpoints alone answer, they do.
        norms = np.linalg.norm(found["param(w1)"][step], axis=1)
        np.testing.assert_allclose(found["rows"][step], norms, rtol=1e-5)
    estimate = daemon.estimate_replay(name, log=log, graphs=asked, at="checkpoints", evaluate="holdout")
    assert estimate.answers == record.answers
    # Of other examples, from a graph in a file; one that fixes the size of a batch leaves the last one out.
    other = daemon.upload(examples(40, seed=5), name=f"others-{workers}")
    onnx.save(hits(), tmp_path / "hits.onnx")
    fixed = of_logits((32, CLASSES))
    del fixed.proto.outputs[0]
    graphs = {"hits": tmp_path / "hits.onnx", "fixed": fixed}
    replay = daemon.replay(name, graphs=graphs, at="checkpoints", evaluate=other, steps=(24, None))
    replay.wait(verbose=0)
    label = next(row.label for row in replay.rows() if row.label.endswith(".hits"))
    assert re.fullmatch(r"evaluation\[.*others.*\]\.hits", label)
    assert any("fixed.mean is of the first 32 of 40 examples" in note for note in replay.notes)


def test_what_an_evaluation_cannot_answer_is_refused_with_the_reason(daemon, trained):
    data = daemon.upload(examples(64), name="questions")
    evaluated = {"at": "checkpoints", "evaluate": data}
    gram = Graph("gram")
    logits = gram.input("linear_1.y", (None, CLASSES))
    gram.output("y", gram.op("matmul", [logits, logits], {"transpose_b": True}))
    for given, says in (
        (cosine("grad(w1)", "param(w1)"), "graph 'a': its input 'grad(w1)' is not in checkpoints: gradients"),
        (cosine("linear_1.y", "state(w1, adam_m)"), "graph 'a': its input 'state(w1, adam_m)' is not in an evaluation"),
        (cosine("linear_9.y", "linear_1.y"), "graph 'a': there is no value 'linear_9.y'; there are: "),
        (gram, "graph 'a': it is f32[32, 32] for 32 examples and f32[64, 64] for 64"),
        (of_logits((32, CLASSES)), "leave the first dimension of its inputs open"),
    ):
        with pytest.raises(errors.EspalierError, match=re.escape(says)):
            daemon.replay("graphs", graphs={"a": given}, **evaluated)
    for name in ("loss", "linear_1.y"):
        with pytest.raises(errors.InvalidArgument, match="give the graph another one"):
            daemon.replay("graphs", graphs={name: hits()}, **evaluated)
    with pytest.raises(errors.InvalidArgument, match="name the examples to compute it for"):
        daemon.replay("graphs", graphs={"hits": hits()}, at="checkpoints")


def test_wildcards_mean_each_name_that_matches(daemon, trained):
    asked = {"cosine": cosine("grad(w*)", "param(w*)"), "signal": signal_to_noise("grad(b*)")}
    replay = daemon.replay("graphs", log="grad(b*)", graphs=asked, steps=(3, 5))
    replay.wait(verbose=0)
    rows = replay.rows()
    outputs = {f"signal({name}).{output}" for name in ("b1", "b2") for output in ("mean", "ratio")}
    assert {row.label for row in rows} == {"cosine(w1)", "cosine(w2)", "grad(b1)", "grad(b2)", *outputs}
    for step, gradient in by_step(rows, "grad(b1)").items():
        np.testing.assert_allclose(by_step(rows, "signal(b1).mean")[step], gradient.mean(), rtol=1e-4, atol=1e-8)
    assert daemon.history("graphs", log="cosine(*)").curve("cosine(w2)")[0].tolist() == [3, 4]


def test_an_estimate_counts_their_answers(daemon, trained):
    asked = {"graphs": {"rows": row_norms(), "signal": signal_to_noise()}, "steps": (8, 16)}
    estimate = daemon.estimate_replay("graphs", log="norm(grad(w1))", **asked)
    assert estimate.answers == 8 * 4
    alone = daemon.estimate_replay("graphs", log="norm(grad(w1))", steps=(8, 16))
    assert 0 < estimate.bytes - alone.bytes < 8 * 1000  # not those of what is read
    assert (
        daemon.estimate_replay("graphs", graphs={"rows": row_norms()}, at="checkpoints", steps=(8, None)).answers == 3
    )


def test_versions_have_shapes_and_names_of_their_own(daemon):
    def wide(width, name):
        made = Graph("wide")
        x, labels = made.input("x", (None, FEATURES)), made.input("labels", (None,), "int64")
        weight = made.parameter(name, data=np.linspace(-1, 1, width * FEATURES).reshape(width, FEATURES))
        made.output("loss", made.op("sparse_categorical_crossentropy", [made.op("linear", [x, weight]), labels]))
        return made

    for version, trains in (("many-a", wide(3, "w1")), ("many-b", wide(7, "w1")), ("many-c", wide(3, "w0"))):
        fit(trains, examples(), steps=4, name=version, client=daemon, **SETTINGS)
    asked = {"log": "loss", "graphs": {"cosine": cosine()}}
    assert daemon.estimate_replay("many-*", **asked).lacking == {"many-c@1": ("cosine",)}
    with pytest.warns(espalier.EspalierWarning, match="many-c@1 has no cosine: graph 'cosine': there is no"):
        replay = daemon.replay("many-*", **asked)
    replay.wait(verbose=0)
    answered = {row.run for row in replay.rows() if row.label == "cosine"}
    assert answered == {"many-a@1", "many-b@1"}
    assert len([row for row in replay.rows() if row.label == "loss"]) == 12
    with pytest.raises(errors.NotFound, match="there is no gradient of 'w1'; there are: 'w0'"):
        daemon.replay("many-c", graphs={"cosine": cosine()})


def test_what_cannot_be_evaluated_is_refused_with_what_is_accepted(daemon, trained, tmp_path):
    random = helper.make_model(
        helper.make_graph(
            [helper.make_node("RandomNormalLike", ["param(w1)"], ["y"], name="draws")],
            "random",
            [helper.make_tensor_value_info("param(w1)", TensorProto.FLOAT, (HIDDEN, FEATURES))],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, (HIDDEN, FEATURES))],
        ),
        opset_imports=[helper.make_opsetid("", 13)],
    )
    shapes = Graph("shapes")
    shapes.output("y", ops.matmul(shapes.input("param(w1)", ()), shapes.input("param(w2)", ()), name="twice"))
    nothing = Graph("nothing")
    nothing.input("param(w1)", ())
    (tmp_path / "text.txt").write_text("no graph")
    for given, says in (
        (cosine("grad(w7)"), "graph 'a': there is no gradient of 'w7'; there are: 'w1', "),
        (cosine("norm(grad(w1))"), "its input 'norm(grad(w1))' is not one tensor; accepted: names such as relu_1"),
        (cosine("grad(w1)", "state(w1, *)"), "its input 'state(w1, *)' is not one tensor"),
        (cosine("grad(w*)", "param(*)"), "its inputs have the patterns 'w*' and '*'; accepted: one"),
        (cosine("grad(v*)"), "its input 'grad(v*)': no gradient matches; there are: 'b1', 'b2'"),
        (cosine(dims=(2, FEATURES)), f"is declared as f32[2, {FEATURES}]; in the run it is f32[{HIDDEN}, {FEATURES}]"),
        (cosine("batch(labels)"), "its input 'batch(labels)' is declared as f32"),
        (random, "draws"),
        (shapes, "node 'twice' (matmul, "),
        (nothing, "it has no output"),
        (b"no model", "graph 'a': "),
        (tmp_path / "text.txt", "text.txt holds no graph; accepted: an .onnx file"),
        (tmp_path / "none.onnx", "none.onnx: No such file"),
        (7, "graphs['a'] is a int; accepted: an espalier.Graph, an onnx.ModelProto"),
    ):
        with pytest.raises(errors.EspalierError, match=re.escape(says)):
            daemon.replay("graphs", graphs={"a": given})
    for name in ("loss", "w1", "", "a*", "a b(", "a b", "norm(a", "a,b", "a'"):
        with pytest.raises(errors.InvalidArgument, match=r"accepted|another one"):
            daemon.estimate_replay("graphs", graphs={name: cosine()})
    assert len(daemon.replays("graphs")) == len([r for r in daemon.replays("graphs") if r.state == "succeeded"])


def test_the_command_line_reads_them_from_files(daemon, trained, tmp_path):
    onnx.save(cosine(), tmp_path / "cosine.onnx")
    onnx.save(cosine("grad(w9)"), tmp_path / "wrong.onnx")
    (tmp_path / "rows.pb").write_bytes(row_norms().proto.SerializeToString())

    def replay(*flags):
        asked = ["replay", "graphs", "--steps=6:8", f"--coordinator={daemon.address}", *flags]
        command = [find_program("espalier"), *asked]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    done = replay("--log-graph=cosine.onnx", "--log-graph=norms=rows.pb", "--log=loss", "--json")
    assert done.returncode == 0, done.stderr
    rows = [line for line in map(json.loads, done.stdout.splitlines()) if "step" in line]
    assert sorted(row["name"] for row in rows) == ["cosine"] * 2 + ["loss"] * 2 + ["norms"] * 2
    for flags, says in (
        (["--log-graph=wrong.onnx"], "wrong.onnx: graph 'wrong': there is no gradient of 'w9'; there are: 'w1'"),
        (["--log-graph=none.onnx"], "none.onnx"),
        (["--log-graph=norms=cosine.pb"], "cosine.pb"),
    ):
        failed = replay(*flags)
        assert failed.returncode != 0
        assert says in failed.stderr


def test_logits_of_the_classes_are_read_by_their_name(daemon, trained):
    """As users do not know that a graph's values are called after their nodes, the error says so."""
    with pytest.raises(errors.NotFound, match=r"there is no value 'linear_1'; there are: 'linear_1\.y'"):
        daemon.replay("graphs", log="linear_1")
    replay = daemon.replay("graphs", log=["linear_1.y", "loss", "accuracy"], steps=(0, 2))
    replay.wait(verbose=0)
    rows = replay.rows()
    assert by_step(rows, "linear_1.y")[0].shape == (32, CLASSES)
    np.testing.assert_allclose([by_step(rows, "loss")[step] for step in (0, 1)], trained.history["loss"][:2], rtol=1e-6)
    accuracies = [float(by_step(rows, "accuracy")[step]) for step in (0, 1)]
    np.testing.assert_allclose(accuracies, trained.history["accuracy"][:2], rtol=1e-6)


def test_what_an_evaluation_reports_anyhow_is_there_once(daemon):
    fit(graph(), examples(), steps=8, name="held", client=daemon, validation_split=0.25, **SETTINGS)
    for log in ("loss", ["loss", "mean(linear_1.y)"]):
        replay = daemon.replay("held", log=log, at="checkpoints", evaluate="holdout", steps=(8, None))
        replay.wait(verbose=0)
        losses = [row.value for row in replay.rows() if row.label == "evaluation.loss"]
        assert len(losses) == 1
        assert isinstance(losses[0], float)
