"""client.predict and client.serve: graphs that a daemon serves, compared with NumPy."""

import asyncio
import concurrent.futures
import threading
import time

import numpy as np
import pytest

import espalier
from espalier import errors, ops, prediction
from espalier.aio import AsyncClient
from espalier.graph import Graph
from espalier.keras import Sequential, layers
from espalier.tensor_types import Tensor, converted
from espalier.v1 import open_inference_pb2

FEATURES, CLASSES, WORDS, EPSILON = 6, 3, 10, 1e-5


def graph():
    """Features and two words: logits and the best class. Only the loss reads the labels."""
    g = Graph("two-inputs")
    x, ids, labels = (
        g.input("x", (None, FEATURES)),
        g.input("ids", (None, 2), "int64"),
        g.input("labels", (None,), "int64"),
    )
    rng = np.random.default_rng(0)
    w = g.parameter("w", data=rng.normal(size=(CLASSES, FEATURES)).astype(np.float32))
    table = g.parameter("table", data=rng.normal(size=(WORDS, CLASSES)).astype(np.float32))
    logits = ops.add(ops.linear(x, w), ops.reduce_sum(ops.embedding(ids, table), axes=[1]))
    g.output("logits", logits)
    g.output("best", ops.arg_max(logits, axis=1, keepdims=False))
    g.output("loss", ops.sparse_categorical_crossentropy(logits, labels))
    return g


def examples(count, seed=1):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(count, FEATURES)).astype(np.float32), "ids": rng.integers(0, WORDS, size=(count, 2))}


def logits_of(weights, given):
    return given["x"] @ weights["w"].T + weights["table"][given["ids"]].sum(1)


@pytest.fixture(scope="module")
def trained(daemon):
    data = {**examples(64), "labels": np.arange(64) % CLASSES}
    result = espalier.fit(graph(), data, optimizer="sgd", batch_size=16, steps=3, verbose=0, name="two-inputs")
    served = daemon.serve(result.model, max_batch_size=64, max_queue_delay_ms=0.5)
    yield served, result.weights()
    daemon.unserve(served.name)


def close(found, expected):
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=EPSILON, atol=EPSILON * np.abs(expected).max(initial=1))


def test_outputs_are_numpys(daemon, trained):
    served, weights = trained
    for count in (1, 7, 64, 100):
        given = examples(count)
        found = daemon.predict("two-inputs", given)
        assert list(found) == ["logits", "best"]
        assert [array.dtype for array in found.values()] == [np.float32, np.int64]
        close(found["logits"], logits_of(weights, given))
        assert (found["best"] == found["logits"].argmax(1)).all()
    found["logits"][0] = 0  # the caller's own
    assert list(daemon.predict(served, given, outputs=["best", "logits"])) == ["best", "logits"]
    assert list(daemon.predict(served, given, outputs="best", version=1)) == ["best"]
    rows = [[1, 2], [3, 4]]
    mixed = {"x": np.ones((2, FEATURES), np.float64).tolist(), "ids": np.array(rows, np.uint8)}
    close(
        daemon.predict(served, mixed)["logits"],
        logits_of(weights, {"x": np.ones((2, FEATURES)), "ids": np.array(rows)}),
    )


def test_many_examples_go_as_several_requests_and_come_in_order(daemon, trained, monkeypatch):
    served, weights = trained
    requests = []
    make = prediction._requests
    monkeypatch.setattr(
        prediction, "_requests", lambda *given: requests.append(list(make(*given))) or iter(requests[-1])
    )
    given = examples(5000)
    close(daemon.predict(served, given)["logits"], logits_of(weights, given))
    assert [r.inputs[0].shape[0] for r in requests[-1]] == [1024] * 4 + [904]
    monkeypatch.setattr(prediction, "_BYTES", 10 * (4 * FEATURES + 8 * 2))
    given = examples(101)
    close(daemon.predict(served, given)["logits"], logits_of(weights, given))
    assert [r.inputs[0].shape[0] for r in requests[-1]] == [10] * 10 + [1]


def test_examples_of_many_bytes(daemon):
    """40 MiB of examples, and of outputs: the daemon takes messages of 64."""
    side = 1 << 18
    g = Graph("wide")
    x = g.input("x", (None, side))
    y = ops.multiply(x, g.parameter("w", data=np.full(1, 2, np.float32)))
    g.output("twice", y)
    g.output("loss", ops.identity_loss(ops.reduce_mean(y)))
    with espalier.Session(g, optimizer="sgd", batch_size=1) as session:
        served = daemon.serve(session.save("wide"), max_batch_size=8)
    given = np.arange(80 * side, dtype=np.float32).reshape(80, side)
    assert (daemon.predict(served, given)["twice"] == 2 * given).all()
    daemon.unserve("wide")


def test_kinds_of_data(daemon, trained):
    served, weights = trained
    given = examples(50)
    expected = logits_of(weights, given)
    batches = [{name: array[at : at + 20] for name, array in given.items()} for at in range(0, 50, 20)]
    one_by_one = [{name: array[i] for name, array in given.items()} for i in range(50)]
    for inputs in (
        (given["x"], given["ids"]),
        batches,
        iter(batches),
        one_by_one,
        [(e["x"], e["ids"]) for e in one_by_one],
    ):
        close(daemon.predict(served, inputs)["logits"], expected)
    close(daemon.predict(served, {"a": given["x"], "ids": given["ids"]}, columns={"x": "a"})["logits"], expected)


def test_a_model_of_one_input_takes_an_array(daemon):
    g = Graph("sums")
    x = g.input("x", (None, FEATURES))
    y = ops.reduce_sum(ops.multiply(x, g.parameter("w", data=np.ones(1, np.float32))), axes=[1])
    g.output("sums", y)
    g.output("loss", ops.identity_loss(ops.reduce_mean(y)))
    with espalier.Session(g, optimizer="sgd", batch_size=1) as session:
        expected = session.predict({"x": examples(20)["x"]})["sums"]
        served = daemon.serve(session.save("sums"))
    x = examples(20)["x"]
    for inputs in (x, x.tolist(), list(x), [x[:8], x[8:]], {"x": x}, (x,), x.reshape(20, 1, FEATURES)):
        close(daemon.predict(served, inputs)["sums"], expected)
    assert daemon.predict(served, [])["sums"].shape == (0,)
    with pytest.raises(
        errors.InvalidArgument, match=r"float32\[6\]; .* takes x FP32\[-1, 6\].* one example .* array\[None\]"
    ):
        daemon.predict(served, x[0])
    daemon.unserve("sums")


def test_data_frames(daemon, trained, library):
    served, weights = trained
    x = examples(20)["x"]
    frame = library("pandas").DataFrame({f"f{i}": x[:, i] for i in range(FEATURES)})
    with pytest.raises(errors.InvalidArgument, match=r"input x \[6\]: the data has no column x, only f0, "):
        daemon.predict(served, frame)
    g = Graph("rows")
    rows, labels = g.input("rows", (None, FEATURES)), g.input("labels", (None,), "int64")
    logits = ops.linear(rows, g.parameter("w", data=weights["w"]))
    g.output("logits", logits)
    g.output("loss", ops.sparse_categorical_crossentropy(logits, labels))
    with espalier.Session(g, optimizer="sgd", batch_size=1) as session:
        served = daemon.serve(session.save("rows"))
    with pytest.warns(errors.EspalierWarning, match="taken in the order f0, f1, f2"):
        found = daemon.predict(served, frame)
    close(found["logits"], x @ weights["w"].T)
    daemon.unserve("rows")


def test_no_examples(daemon, trained):
    served, _ = trained
    found = daemon.predict(served, examples(0))
    assert {name: (array.shape, array.dtype) for name, array in found.items()} == {
        "logits": ((0, CLASSES), np.float32),
        "best": ((0,), np.int64),
    }


def test_what_does_not_fit_is_refused_with_what_does(daemon, trained):
    served, _ = trained
    x, ids = examples(4).values()
    late = ids.astype(np.float64)
    late[2, 1] = np.nan
    for given, message in [
        ({"x": x, "id": ids}, r"no input 'id'; it takes x FP32\[-1, 6\], ids INT64\[-1, 2\]; did you mean 'ids'\?"),
        ({"x": x}, r"input 'ids' of model 'two-inputs' is missing: ids INT64\[-1, 2\]"),
        ({"x": x[:, :5], "ids": ids}, r"input 'x' is float32\[4, 5\]; .* takes x FP32\[-1, 6\]"),
        ({"x": x, "ids": ids[:3]}, "unequal numbers of examples: x 4, ids 3"),
        ({"x": x, "ids": late}, "input 'ids' takes INT64, and has nan in row 2; leave"),
        ({"x": x, "ids": ids + 0.5}, r"'ids' takes INT64, and has \d.5 in row 0"),
        ({"x": np.full((4, 6), 1e300), "ids": ids}, r"input 'x' has 1e\+300 in row 0, which no float32 can hold"),
        ({"x": np.full((4, 6), "a"), "ids": ids}, "input 'x' has elements of type .*numbers and bools"),
        (x, r"takes 2 inputs; give a dict of arrays: x FP32\[-1, 6\], ids"),
        ("data.npz", "inputs is a str; .* give an array"),
        (None, "inputs is a NoneType"),
    ]:
        with pytest.raises(errors.InvalidArgument, match=message):
            daemon.predict(served, given)
    with pytest.raises(errors.InvalidArgument, match=r"no output 'logit'; it gives logits FP32\[-1, 3\].*did you mean"):
        daemon.predict(served, examples(1), outputs=["logit"])
    with pytest.raises(errors.InvalidArgument, match="columns names the input 'y'"):
        daemon.predict(served, examples(1), columns={"y": "x"})
    with pytest.raises(errors.InvalidArgument, match=r"timeout=0; accepted: seconds"):
        daemon.predict(served, examples(1), timeout=0)
    # A word that the table lacks: the coordinator refuses it.
    with pytest.raises(errors.InvalidArgument, match="element 0 is 17; accepted are 0 to 9, by node"):
        daemon.predict(served, {"x": x, "ids": ids + WORDS})


def test_unknown_models_and_versions(daemon, trained):
    with pytest.raises(
        errors.NotFound,
        match=r"'nobody' is not served; served are: .*; serve one: client\.serve\(ARTIFACT, name='nobody'\)",
    ):
        daemon.predict("nobody", examples(1))
    with pytest.raises(errors.NotFound, match=r"no version '7'; its only one is 1$"):
        daemon.predict("two-inputs", examples(1), version=7)


def test_a_language_model_is_asked_otherwise():
    metadata = open_inference_pb2.ModelMetadataResponse(name="lm")
    metadata.inputs.add(name="prompt", datatype="BYTES", shape=[1])
    with pytest.raises(
        errors.InvalidArgument, match=r"'lm' is a language model: ask client\.generate or client\.embed"
    ):
        prediction._Model(metadata)


def test_threads_share_a_client(daemon, trained):
    served, weights = trained

    def ask(seed):
        given = examples(1 + seed % 5, seed)
        close(daemon.predict(served, given)["logits"], logits_of(weights, given))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(80)))


def test_a_full_queue_is_waited_for(daemon, trained):
    """One request may wait; each waits 100 ms for others."""
    _, weights = trained
    served = daemon.serve("two-inputs", name="narrow", max_queue=1, max_queue_delay_ms=100)
    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: daemon.predict(served, examples(2)), range(4)):
            close(found["logits"], logits_of(weights, examples(2)))
    assert time.monotonic() - start > 0.35  # one after the other: all but one were refused at first
    daemon.unserve("narrow")

    served = daemon.serve("two-inputs", name="narrow", max_queue=1, max_queue_delay_ms=3000)
    first = threading.Thread(target=daemon.predict, args=(served, examples(1)))

    def refused():
        try:
            daemon.predict(served, examples(1), timeout=0.5)
        except errors.ResourceExhausted as error:
            return "max_queue" in str(error)
        except TimeoutError:  # it took the place itself: the first one had not come yet
            return False
        return False

    first.start()
    for _ in range(10):
        time.sleep(0.5)
        if refused():
            break
    else:
        pytest.fail("a queue of one takes two requests")
    first.join()
    with pytest.raises(TimeoutError, match="did not answer in time"):
        daemon.predict(served, examples(1), timeout=0.3)
    daemon.unserve("narrow")


def test_asyncio(daemon, trained):
    _, weights = trained

    async def ask():
        async with AsyncClient(daemon.address) as client:
            served = await client.serve("two-inputs", name="again", max_queue=2, max_queue_delay_ms=20)
            given = [examples(3, seed) for seed in range(5)]
            answers = await asyncio.gather(*(client.predict(served, g) for g in given))
            for found, g in zip(answers, given, strict=True):
                close(found["logits"], logits_of(weights, g))
            many = examples(3000)
            close((await client.predict(served, many))["logits"], logits_of(weights, many))
            with pytest.raises(errors.InvalidArgument, match="no input"):
                await client.predict(served, {"y": many["x"]})
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.predict(served, many), 1e-3)
            await client.unserve("again")

    asyncio.run(ask())


def test_serve_takes_options_of_graphs_and_tells_what_it_serves(daemon, trained):
    served, _ = trained
    assert str(served).splitlines() == [
        "two-inputs: two-inputs@1, ready, 48 parameters, passes of up to 64 examples, for which a request waits up to "
        "0.5 ms",
        "inputs:  x f32[6], ids i64[2]",
        "outputs: logits f32[3], best i64[]",
    ]
    assert "two-inputs" in str(daemon.served())
    assert daemon.serve("two-inputs", name="plain").graph.batching.max_batch_size == 32
    daemon.unserve("plain")
    for options, message in [
        ({"max_batch_size": 0}, "max_batch_size=0; accepted: an integer above 0"),
        ({"max_batch_size": 2**20}, "max_batch_size.* is 1048576, expected 1 to"),
        ({"max_queue_delay_ms": -1}, "max_queue_delay_ms=-1; accepted: 0 to 10000"),
        ({"max_batch": 8}, r"no option 'max_batch'; did you mean 'max_batch_size'\?"),
        ({"ngram_depth": 3}, "'ngram_depth' is for language models"),
    ]:
        with pytest.raises(errors.InvalidArgument, match=message):
            daemon.serve("two-inputs", name="other", **options)
    with pytest.raises(errors.InvalidArgument, match=r"artifact is empty; a training in a session leaves none"):
        daemon.serve("")


@pytest.mark.parametrize(
    ("datatype", "given", "expected"),
    [
        ("FP16", np.array([0.1, np.inf]), [np.float16(0.1), np.inf]),
        ("FP16", np.array([1.0, 7e4]), r"7.*0000.0 in row 1, which no FP16"),
        ("FP32", np.array([2**24, 2**24 + 1]), "16777217 in row 1, which no FP32 holds exactly; give floats"),
        ("FP32", np.array([2**64 - 1], np.uint64), "18446744073709551615 in row 0, which no FP32"),
        ("FP32", np.array([True, False]), [1, 0]),
        ("FP32", np.array([1.5], ">f4"), [1.5]),
        ("INT8", np.array([-128, 127]), [-128, 127]),
        ("INT8", np.array([[1, 2], [3, 128]]), "takes INT8, and has 128 in row 1; accepted: -128 to 127"),
        ("UINT8", np.array([3.0, -1.0]), "takes UINT8, and has -1 in row 1"),
        ("INT64", np.array([2**63], np.uint64), "has 9223372036854775808 in row 0"),
        ("BOOL", np.array([0.0, 1.0]), [False, True]),
        ("BOOL", np.array([0, 2]), "takes BOOL, and has 2 in row 1; accepted: 0 to 1"),
    ],
)
def test_conversions_lose_nothing(datatype, given, expected):
    tensor = Tensor("x", datatype, given.shape[1:])
    if isinstance(expected, str):
        with pytest.raises(errors.InvalidArgument, match=expected):
            converted(given, tensor)
    else:
        made = converted(given, tensor)
        assert made.dtype == tensor.dtype
        assert made.tolist() == expected


def test_a_keras_model_is_served_by_the_artifact_of_its_job(daemon):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 8, 8, 1)), rng.integers(0, 3, 64)
    model = Sequential(
        [
            layers.Conv2D(4, 3, activation="relu"),
            layers.Dropout(0.5),
            layers.Flatten(),
            layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(x, y, batch_size=16, verbose=0, job_name="keras")
    served = daemon.serve(model.job.model)
    (found,) = daemon.predict(served, x).values()
    close(found, model.predict(x, verbose=0))
    daemon.unserve("keras")


def test_an_onnx_file_is_served_without_training(daemon, tmp_path, library):
    onnx, helper, numpy_helper = library("onnx"), library("onnx.helper"), library("onnx.numpy_helper")
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(FEATURES, CLASSES)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    tensors = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", size])
        for name, size in (("x", FEATURES), ("y", CLASSES))
    ]
    made = helper.make_graph(nodes, "relu", tensors[:1], tensors[1:], [numpy_helper.from_array(weight, "w")])
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, tmp_path / "net.onnx")
    served = daemon.serve(daemon.upload(tmp_path / "net.onnx"), name="net")
    x = examples(70)["x"]
    close(daemon.predict(served, x)["y"], np.maximum(x @ weight, 0))
    daemon.unserve("net")
