"""Loops over a session of Espalier: its parameters, optimizer and place in the data are restored."""

import contextlib
import io

import numpy as np

import espalier
import espalier.flor as flor
from espalier import ops
from espalier.graph import Graph, glorot_uniform
from espalier.optimizers import Adam


def model():
    graph = Graph("net")
    x = graph.input("x", (None, 6))
    labels = graph.input("labels", (None,), "int64")
    hidden = ops.linear(x, graph.parameter("w1", (8, 6), initializer=glorot_uniform()), activation="relu")
    logits = ops.linear(ops.dropout(hidden, rate=0.2), graph.parameter("w2", (3, 8), initializer=glorot_uniform()))
    graph.output("loss", ops.sparse_categorical_crossentropy(logits, labels))
    return graph


def train(daemon, words, probed):
    rng = np.random.default_rng(0)
    points = rng.normal(size=(64, 6)).astype(np.float32)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        flor.begin(words)
        data = {"x": points, "labels": points[:, :3].argmax(1)}
        with espalier.Session(model(), data, optimizer=Adam(lr=0.01), batch_size=16, client=daemon) as session:
            losses = []
            for _ in flor.it(range(4)):
                if flor.SkipBlock.step_into("training_loop", probed=probed):
                    for _ in range(3):
                        losses.append(flor.log("loss", session.step()["loss"]))
                flor.SkipBlock.end(session)
                flor.log("weight", session.get("w1").sum())
                flor.log("updates", session.updates)
        flor.begin([])
    return losses, said.getvalue()


def test_a_session_goes_on_from_a_checkpoint(daemon, tmp_path, monkeypatch):
    monkeypatch.setenv("FLOR_HOME", str(tmp_path))
    monkeypatch.setenv("FLOR_EVERY", "1")
    recorded, _ = train(daemon, ["--flor", "session"], None)
    assert len(recorded) == 12
    losses, said = train(daemon, ["--flor", "session", "--replay_flor"], None)
    assert losses == []
    assert "0 blocks executed, 4 restored; 8 values and states equal the record to the bit, 0 differ" in said
    losses, said = train(daemon, ["--flor", "session", "--replay_flor", "3/4"], True)
    assert losses == recorded[6:9]
    assert "0 differ" in said
