"""client.history: what was recorded of runs, and the answers to replays of them."""

import asyncio
import math
import pickle
import time

import history_server as made
import numpy as np
import pytest
from small import examples, graph, initial, loss_and_gradients

from espalier import errors, flor
from espalier.aio import AsyncClient
from espalier.client import Client
from espalier.history import Elements, Histogram
from espalier.training import fit
from espalier.v1 import replay_pb2


@pytest.fixture
def server():
    with made.HistoryServer(made.sample()) as running:
        yield running


@pytest.fixture
def client(server):
    with Client(server.address) as connected:
        yield connected


def test_values_are_objects_of_python(client):
    history = client.history("lm@*")
    assert len(history) == len(made.sample())
    by_label = {}
    for row in history:
        by_label.setdefault(row.label, row)
    loss = by_label["loss"]
    assert (loss.run, loss.step, loss.value, loss.source) == ("lm@1", 0, 4 / 3, "forward")
    assert loss.logged.timestamp() == 1_700_000_000
    assert by_label["norm(grad(w))"].source == "replay"
    spread = by_label["histogram(relu_1, 4)"].value
    assert spread == Histogram(-1.0, 1.0, np.array([1, 2, 3, 0]), 5)
    np.testing.assert_array_equal(spread.edges, [-1, -0.5, 0, 0.5, 1])
    assert by_label["quantiles(w, 0.1, 0.5)"].value == Elements(np.array([0, 1]), np.array([-1.5, 0.0]))
    whole = by_label["w"].value
    assert (whole.dtype, whole.shape) == (np.float32, (2, 3))
    np.testing.assert_array_equal(whole, np.array([[1.5, 2, 3], [4, 5, np.nan]], np.float32))
    assert by_label["scale"].value == 0.5
    assert math.isnan(history[-1].value)


def test_a_history_is_a_table(client):
    history = client.history("lm@*")
    lines = str(history).splitlines()
    assert lines[0].split() == ["run", "step", "value", "of", "is", "source", "replay"]
    assert lines[1].split() == ["lm@1", "0", "loss", "1.33333", "forward"]
    assert len(lines) == 42  # the middle is left out
    assert lines[21].split() == ["...", str(len(history) - 40), "more"]
    assert "<table" in history._repr_html_()
    frame = history.dataframe()
    assert list(frame.columns) == [
        *("experiment", "version", "job", "step", "name", "reduction"),
        *("label", "value", "source", "replay", "time"),
    ]
    assert (frame["job"][0], frame["time"][0].timestamp()) == ("job-1", 1_700_000_000)
    assert frame["value"][3] == 4 / 4 / 3
    part = history[-3:]
    assert type(part) is type(history)
    assert pickle.loads(pickle.dumps(part))[0].record == part[0].record
    assert str(history[:0]) == "nothing is recorded that matches"


def test_curves_are_what_plot_takes(client):
    history = client.history("lm@*")
    steps, losses = history.curve("loss", run="lm@2")
    np.testing.assert_array_equal(steps, range(21))
    assert losses[1] == 4 / 3 / 3
    steps, norms = history.curve("norm(grad(w))", replay="r1")
    assert list(steps) == [0, 5, 10, 15]
    assert norms[3] == 0.1 * 15
    assert history.curve("norm(grad(w))", replay="r2")[1].tolist() == [99.0]
    with pytest.raises(errors.InvalidArgument, match=r"of step 15 is 1\.5 by r1, and 99\.0 by r2: choose one"):
        history.curve("norm(grad(w))")
    for label, run, words in (
        ("loss", None, "lm@1, lm@2"),
        ("los", None, "did you mean 'loss'"),
        ("nix", None, r"there is no 'nix'; there is loss, norm\(grad\(w\)\), "),
        ("w", None, "no number"),
    ):
        with pytest.raises(errors.InvalidArgument, match=words):
            history.curve(label, run)


def test_what_is_asked_for_reaches_the_coordinator(server, client):
    client.history("lm@3", log=["loss", "norm(grad(*))"], steps=range(100, 200), source="replay")
    asked = server.requests[-1]
    assert (asked.run, list(asked.log), asked.first_step, asked.end_step) == (
        "lm@3",
        ["loss", "norm(grad(*))"],
        100,
        200,
    )
    assert asked.source == replay_pb2.HistoryRow.REPLAY
    texts = (("7", 7, 8), ("7:", 7, 0), (":9", 0, 9), ("7:9", 7, 9))
    for steps, first, end in (
        *((7, 7, 8), ((7, None), 7, 0), (slice(None, 9), 0, 9), (None, 0, 0), ((0, 9), 0, 9), (np.int64(7), 7, 8)),
        *texts,
    ):
        client.history("lm", log="loss", steps=steps)
        asked = server.requests[-1]
        assert (asked.first_step, asked.end_step, list(asked.log)) == (first, end, ["loss"])
        assert not asked.HasField("source")
    assert {row.step for row in client.history("lm", steps=slice(1, None, 5))} == {1, 6, 11, 16}


def test_mistakes_are_named(server, client):
    asked = len(server.requests)
    unknown = ([1, 5, 9], 3.5, True, (1, 2, 3), ("1", 2), slice("a", None), "a:b", ":", "9:1", "-1", "1:2:3", "")
    for wrong in (
        *({"steps": (5, 5)}, {"steps": -1}, {"steps": range(9, 0, -1)}, {"source": "replays"}),
        *({"steps": steps} for steps in unknown),
    ):
        with pytest.raises(errors.InvalidArgument, match=r"steps=|did you mean 'replay'"):
            client.history("lm", **wrong)
    assert len(server.requests) == asked
    with pytest.raises(errors.NotFound, match="there is lm"):
        client.history("nolm")


def test_a_broken_connection_loses_and_repeats_nothing(server, client):
    server.broken = 2
    assert len(client.history("lm")) == len(made.sample())
    assert len(server.requests) == 3


def test_what_jobs_record_is_there_to_the_bit(daemon):
    data = examples(64)
    settings = {"optimizer": "sgd", "batch_size": 32, "epochs": 3, "shuffle": False, "name": "history"}
    result = fit(graph(), data, client=daemon, verbose=0, **settings)
    history = daemon.history("history", log=["loss", "accuracy"])
    for name in ("loss", "accuracy"):
        steps, values = history.curve(name)
        assert list(steps) == list(range(6))
        assert list(values) == result.history[name]

    spec = replay_pb2.ReplaySpec(run="history", log=["norm(grad(w1))", "param(w2)"], end_step=2, any_plan=True)
    daemon.call("Replay", "Start", replay_pb2.StartReplayRequest(spec=spec))
    state = replay_pb2.REPLAY_WAITING
    while state in (replay_pb2.REPLAY_WAITING, replay_pb2.REPLAY_RUNNING):
        time.sleep(0.05)
        state = daemon.call("Replay", "List", replay_pb2.ListReplaysRequest(run="history")).replays[0].state
    assert state == replay_pb2.REPLAY_SUCCEEDED
    answers = daemon.history("history", source="replay")
    _, _, gradients = loss_and_gradients(initial(), data["x"][:32], data["labels"][:32])
    _, norms = answers.curve("norm(grad(w1))")
    np.testing.assert_allclose(norms[0], np.linalg.norm(gradients["w1"]), rtol=1e-5)
    first = next(row for row in answers if row.label == "param(w2)")
    np.testing.assert_array_equal(first.value, initial()["w2"])


def test_asyncio_has_it_too(server):
    async def read():
        async with AsyncClient(server.address) as client:
            return await client.history("lm", log="loss")

    assert len(asyncio.run(read())) == 41


def test_flor_reads_runs_of_the_coordinator(server, client):
    rows = flor.rows("loss", "w", experiment="lm", client=client)
    assert server.requests[-1].run == "lm@*"
    assert (rows[3].version, rows[3].loops, rows[3].value, rows[3].source) == (1, (("step", 3),), 4 / 4 / 3, "forward")
    table = flor.dataframe("loss", experiment="lm", versions=[1, 2], client=client)
    assert [request.run for request in server.requests[-2:]] == ["lm@1", "lm@2"]
    assert list(table.columns) == ["version", "step", "ordinal", "loss", "source", "differs"]
    assert list(table[table["version"] == 2]["step"])[:3] == [0, 1, 2]
    server.rows.append(made.replayed(1, 3, "loss", "", 4 / 4 / 3))
    server.rows.append(made.replayed(1, 4, "loss", "", 77.0))
    rows = flor.rows("loss", experiment="lm", client=client)
    assert [row.source for row in rows if row.version == 1 and row.at == (("step", 3),)] == ["forward"]
    assert [(row.at, row.value) for row in rows if row.differs] == [((("step", 4),), 77.0)]
    with pytest.raises(errors.NotFound, match="no value los; logged are loss, "):
        flor.rows("los", experiment="lm", client=client)
    with pytest.raises(errors.InvalidArgument, match="experiment=NAME"):
        flor.rows("loss", client=client)
