"""client.replay: recorded steps trained again, their answers, and what is said when a loss is not the recorded one."""

import asyncio
import functools
import pickle
import re
import sqlite3
import struct
import warnings
from concurrent import futures

import grpc
import numpy as np
import pytest
from pages import run
from small import examples, graph, initial, loss_and_gradients

import espalier
from espalier import errors
from espalier.aio import AsyncClient
from espalier.client import Client
from espalier.graph import Graph
from espalier.replay import comparison_of
from espalier.replay_question import replay_spec
from espalier.replay_record import ReplayInfo, runs_in_short
from espalier.training import fit
from espalier.v1 import cluster_pb2, replay_pb2, training_pb2

STEPS = 40
NORM = "norm(grad(w1))"
LOSS = "sparse_categorical_crossentropy.y"
SETTINGS = {
    "optimizer": "sgd",
    "batch_size": 32,
    "shuffle": False,
    "record": "every:10",
    "search": {"strategy": "single_device"},
    "verbose": 0,
}


@pytest.fixture(scope="module")
def trained(daemon):
    """A run "asked" of 40 steps, 8 of which are an epoch."""
    return fit(graph(), examples(), steps=STEPS, name="asked", client=daemon, **SETTINGS)


def keys(rows):
    return sorted((row.step, row.label) for row in rows)


def test_a_replay_answers_what_nobody_logged(daemon, trained):
    replay = daemon.replay("asked", log=[NORM, "param(w2)"], steps=(0, 25))
    record = replay.wait(verbose=0)
    assert (replay.state, record.answers, replay.record) == ("succeeded", 50, record)
    answers = replay.rows()
    assert keys(answers) == [(step, label) for step in range(25) for label in (NORM, "param(w2)")]
    assert {(row.run, row.source, row.replay_id) for row in answers} == {("asked@1", "replay", replay.id)}
    data = examples()
    _, _, gradients = loss_and_gradients(initial(), data["x"][:32], data["labels"][:32])
    steps, norms = answers.curve(NORM)
    assert list(steps) == list(range(25))
    np.testing.assert_allclose(norms[0], np.linalg.norm(gradients["w1"]), rtol=1e-5)
    first = next(row for row in answers if row.label == "param(w2)")
    np.testing.assert_array_equal(first.value, initial()["w2"])
    assert trained.job.logged(log=NORM, source="replay").curve(NORM)[1].tolist() == norms.tolist()


def test_losses_are_compared_to_the_bit(daemon, trained):
    replay = daemon.replay("asked", log=LOSS, steps=slice(10, 20))
    compared = replay.wait(verbose=0) and replay.comparison
    assert (compared.bits, compared.compared, compared.exact, compared.reasons) == (True, 10, 10, ())
    assert str(compared) == "losses compared with the record: 10 to the bit"
    _, losses = replay.rows().curve(LOSS)
    np.testing.assert_allclose(losses, trained.history["loss"][10:20], rtol=1e-6)


def test_answers_come_while_it_runs_and_each_once(daemon, trained):
    replay = daemon.replay("asked", log=NORM)
    came = list(replay)
    assert keys(came) == [(step, NORM) for step in range(STEPS)]
    assert replay.state == "succeeded"
    assert [row.value for row in sorted(came, key=lambda row: row.step)] == [row.value for row in replay.rows()]
    for row in replay:  # one that is over gives them, too, and may be left
        assert row.label == NORM
        break


def test_parts_and_strides_choose_steps(daemon, trained):
    def steps_of(**arguments):
        replay = trained.job.replay(log=NORM, **arguments)
        replay.wait(verbose=0)
        return [row.step for row in replay.rows()]

    assert steps_of(steps=range(3, 30, 9)) == [3, 12, 21]
    assert steps_of(steps=(30, None), every=4, workers=1) == [30, 34, 38]
    assert sorted(steps_of(segment=(1, 2)) + steps_of(segment=(2, 2))) == list(range(STEPS))
    assert steps_of(steps=7) == [7]


def test_an_estimate_says_what_a_replay_would_take(daemon, trained):
    estimate = daemon.estimate_replay("asked", log=NORM, steps=(12, 20))
    assert (estimate.steps, estimate.logged_steps, estimate.answers, estimate.segments) == (10, 8, 8, 1)
    assert 0 < estimate.loading_seconds < estimate.seconds
    assert estimate.bytes > 0
    assert re.fullmatch(r"<ReplayEstimate: 10 steps in 1 segment, about .*s; 8 answers, about \d+ B>", repr(estimate))


def test_names_that_a_run_lacks_are_said(daemon):
    other = Graph("other")
    x, labels = other.input("x", (None, 6)), other.input("labels", (None,), "int64")
    logits = other.op("linear", [x, other.parameter("only", (3, 6)), other.parameter("bias", (3,))])
    other.output("loss", other.op("sparse_categorical_crossentropy", [logits, labels]))
    for name, trains in (("lacks-a", graph()), ("lacks-b", other)):
        fit(trains, examples(), steps=3, name=name, client=daemon, **SETTINGS)
    assert daemon.estimate_replay("lacks-*", log=NORM).lacking == {"lacks-b@1": (NORM,)}
    assert "there is no" in daemon.estimate_replay("lacks-*", log=NORM).reasons["lacks-b@1"][0]
    assert (daemon.estimate_replay("lacks-*", log=NORM).steps, daemon.estimate_replay("lacks-*").steps) == (3, 6)
    assert f"; lacks-b@1 has no {NORM}>" in repr(daemon.estimate_replay("lacks-*", log=NORM))
    with pytest.warns(espalier.EspalierWarning, match=re.escape(f"lacks-b@1 has no {NORM}")):
        replay = daemon.replay("lacks-*", log=[NORM, "norm(grad(*))"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the waiting does not repeat it
        replay.wait(verbose=0)
    assert any("lacks-b@1" in note for note in replay.notes)
    assert {row.run for row in replay.rows()} == {"lacks-a@1", "lacks-b@1"}


def test_waiting_shows_how_far_it_is(daemon, trained, capsys):
    replay = daemon.replay("asked", steps=(5, 15))
    assert replay.wait().answers == 0  # only losses are compared
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("replayed step 15/15 100%")
    over, compared = lines[-1].split("; ")
    assert re.fullmatch(rf"{replay.id} succeeded after 15 of 15 steps in .*s, 0 answers", over)
    assert compared == "losses compared with the record: 15 to the bit"


def test_replays_are_a_table(daemon, trained):
    replay = daemon.replay("asked@1", log=NORM, steps=(0, 10))
    replay.wait(verbose=0)
    newest = daemon.replays("asked")[0]
    assert (newest.id, newest.run, newest.state, newest.log) == (replay.id, "asked@1", "succeeded", [NORM])
    assert (newest.steps_done, newest.total_steps, newest.answers, newest.comparison.exact) == (10, 10, 10, 10)
    assert len(newest.rows()) == len(newest.replay.rows()) == 10
    assert len(daemon.get_replay(replay.id).rows()) == 10
    head, first = str(daemon.replays()[:1]).splitlines()
    assert head.split() == ["replay", "run", "state", "steps", "answers", "started"]
    assert first.split()[:5] == [replay.id, "asked@1", "succeeded", "10/10", "10"]
    frame = daemon.replays("asked").dataframe()
    assert (frame["id"][0], frame["answers"][0]) == (replay.id, 10)


def test_one_is_shown_in_a_line_and_deleted_with_its_answers(daemon, trained):
    before = len(daemon.history("asked"))
    replay = daemon.replay("asked", log=NORM, steps=(3, 10))
    over = replay.wait(verbose=0)
    assert repr(over) == (
        f"<ReplayInfo {replay.id} of asked@1: succeeded, 10 of 10 steps, 10 losses compared, to the bit, 7 answers>"
    )
    found = daemon.get_replay(replay.id)
    assert found == over == replay.record
    assert (found.runs, found.job_ids, found.run) == (["asked@1"], [trained.job.id], "asked")
    assert len(daemon.history("asked")) == before + 7
    found.replay.delete()
    assert len(daemon.history("asked")) == before
    assert replay.id not in [other.id for other in daemon.replays()]
    for gone in (replay.delete, replay.wait, lambda: replay.state, lambda: daemon.get_replay(replay.id)):
        with pytest.raises(errors.NotFound, match=replay.id):
            gone()


def test_runs_are_named_in_short():
    assert runs_in_short([]) == ""
    assert runs_in_short(["lm@3"]) == "lm@3"
    assert runs_in_short(["lm@9", "lm@5", "lm@3", "lm@2", "lm@1"]) == "lm@1-3,5,9"
    assert runs_in_short(["a@b@2", "job-3"]) == "a@b@2 and job-3"
    assert runs_in_short([f"{name}@1" for name in "abcd"]) == "a@1 and b@1 and 2 more experiments"
    record = replay_pb2.ReplayInfo(id="replay-1", runs=["lm@1", "lm@2"], state=replay_pb2.REPLAY_DIFFERS, rows=1)
    record.difference.step = 7
    record.segments.add(end_step=9, steps_done=8).comparison.MergeFrom(replay_pb2.ReplayComparison(compared=7))
    assert repr(ReplayInfo(record, None)) == (
        "<ReplayInfo replay-1 of lm@1-2: differs, 8 of 9 steps, 7 losses compared, 0 of them to the bit, step 7 is "
        "another, 1 answer>"
    )


def test_one_that_is_cancelled_says_so(daemon):
    fit(graph(), examples(), steps=3000, name="long", client=daemon, **{**SETTINGS, "record": "every:1000"})
    replay = daemon.replay("long", log=NORM)
    with pytest.raises(TimeoutError, match=f"{replay.id} is not over yet; it goes on"):
        replay.wait(0.01, verbose=0)
    assert replay.cancel() == "cancelled"
    assert len(replay.rows()) < 3000  # so far
    again = daemon.replay("long", log=NORM)
    with pytest.raises(errors.FailedPrecondition, match=f"espalier replay cancel {again.id}"):
        again.delete()
    again.cancel()
    again.delete()
    for waits in (lambda: replay.wait(verbose=0), lambda: list(replay)):
        with pytest.raises(errors.ReplayFailed, match=f"{replay.id} was cancelled") as failed:
            waits()
        assert failed.value.replay_id == replay.id
    assert replay.cancel() == "cancelled"


def test_a_loss_that_differs_is_named_with_its_step(tmp_path):
    flags = ["--worker-threads=1", "--measure-seconds=0"]
    with espalier.local(workers=1, data_dir=tmp_path, flags=flags) as client:
        recorded = fit(graph(), examples(), steps=STEPS, name="changed", client=client, **SETTINGS).history["loss"][17]
    with sqlite3.connect(tmp_path / "espalier.db") as store:
        [(sequence, body)] = store.execute("SELECT sequence, body FROM log WHERE step = 17").fetchall()
        loss = struct.pack("<d", recorded)
        assert body.count(loss) == 1
        other = struct.pack("<q", struct.unpack("<q", loss)[0] ^ 1)
        store.execute("UPDATE log SET body = ? WHERE sequence = ?", (body.replace(loss, other), sequence))
    store.close()
    changed = struct.unpack("<d", other)[0]
    with espalier.local(workers=1, data_dir=tmp_path, flags=flags) as client:
        replay = client.replay("changed", log=NORM, steps=(12, 30))
        with pytest.raises(errors.ReplayDiffers) as differs:
            replay.wait(verbose=0)
        with pytest.raises(espalier.ReplayFailed, match="differs from the recording"):
            list(replay)
        assert [row.step for row in replay.rows()] == list(range(12, 17))
    error = differs.value
    assert (error.replay_id, error.step, error.replayed, error.recorded) == (replay.id, 17, recorded, changed)
    assert f"at step 17: loss {recorded!r}, recorded {changed!r}; {error.cause}" in str(error)
    assert f"recording of {error.job_id} " in str(error)
    assert "data, a checkpoint" in error.cause


def test_what_cannot_be_asked_says_why(daemon, trained):
    for arguments, says in (
        ({"log": "nrm(w1)"}, "did you mean 'norm'"),
        ({"steps": (5, 500)}, "0 to 39"),
        ({"log": ""}, "a probe is empty; accepted: a name"),
        ({"steps": (5, 5)}, "steps=(5, 5)"),
        ({"steps": range(0, 10, 2), "every": 2}, "give one of them"),
        ({"every": 0}, "every is 0"),
        ({"workers": 0}, "workers is 0"),
        ({"segment": (4, 3)}, "k is 4"),
        ({"segment": (0, 3)}, "the first part is 1"),
        ({"segment": "1/3"}, "(k, n)"),
        ({"at": "checkpoint"}, "did you mean 'checkpoints'"),
        ({"evaluate": "holdout"}, "at='checkpoints'"),
        ({"at": "checkpoints", "evaluate": {"x": 1}}, "evaluate is {'x': 1}"),
    ):
        with pytest.raises(errors.InvalidArgument, match=re.escape(says)):
            daemon.replay("asked", **arguments)
    with pytest.raises(TypeError, match=r"replay\(\) got an unexpected keyword argument 'stpes'"):
        daemon.replay("asked", stpes=3)
    with pytest.raises(errors.NotFound, match="'w1'"):
        daemon.estimate_replay("asked", log="norm(grad(w7))")
    with pytest.raises(errors.NotFound):
        daemon.replays("nowhere")


def test_what_runs_were_trained_on_is_replaced_only_by_force(daemon):
    data = daemon.upload(examples(seed=51), name="replaced")
    fit(graph(), data, steps=STEPS, name="replaces", client=daemon, **SETTINGS)
    with pytest.raises(errors.FailedPrecondition, match=r"needed to replay replaces@1"):
        daemon.upload(examples(seed=52), name="replaced", replace=True)
    daemon.upload(examples(seed=51), name="replaced", replace=True)  # the same content
    daemon.upload(examples(seed=52), name="replaced", replace=True, force=True)


def test_the_guide_runs(daemon, capsys, monkeypatch):
    monkeypatch.setenv("ESPALIER_COORDINATOR", daemon.address)
    fit(graph(), examples(), steps=30, name="lm", client=daemon, **SETTINGS)
    names = run("record-and-replay.md", {}, marked=True)
    assert list(names["steps"]) == [12, 14, 16, 18]
    assert {row.step for row in names["came"]} == {12, 14, 16, 18}
    assert len(names["cosines"]) == 10
    assert np.all(np.abs(names["cosines"]) < 1)
    assert "losses compared with the record: 9 to the bit" in capsys.readouterr().out


def test_asyncio_has_it_too(daemon, trained):
    async def ask():
        async with AsyncClient(daemon.address) as client:
            replay = await client.replay("asked", log=NORM, steps=(0, 10))
            came = [row async for row in replay]
            await replay.wait(verbose=0)
            job = await client.job(trained.job.id)
            again = await job.replay(log=NORM, steps=(0, 10))
            await again.wait(verbose=0)
            rows, listed = await again.rows(), await client.replays("asked")
            found = await client.get_replay(again.id)
            assert len(await found.rows()) == found.answers == 10
            await found.replay.delete()
            with pytest.raises(errors.NotFound):
                await again.record
            return came, await replay.comparison, rows, listed

    came, compared, again, listed = asyncio.run(ask())
    assert keys(came) == keys(again) == [(step, NORM) for step in range(10)]
    assert (compared.compared, compared.bits) == (10, True)
    assert listed[0].id == again[0].replay_id


def test_checkpoints_and_evaluations_are_asked_for_as_the_protocol_says():
    asked = functools.partial(replay_spec, "lm")
    assert asked() == replay_pb2.ReplaySpec(run="lm", every=1)
    assert asked(at="checkpoints", log="param(w)").at_checkpoints
    held = asked(at="checkpoints", evaluate="holdout")
    assert held.at_checkpoints
    assert held.evaluate_holdout
    assert not held.HasField("evaluate")
    for given, uri in (("digits", "artifact:digits"), ("s3://bucket/data.npz", "s3://bucket/data.npz")):
        assert asked(at="checkpoints", evaluate=given).evaluate == training_pb2.Dataset(uri=uri)
    many = asked(log=["loss", NORM], steps=(5, None), every=3, segment=(2, 4), workers=2, any_plan=True)
    assert many == replay_pb2.ReplaySpec(
        run="lm", log=["loss", NORM], first_step=5, every=3, segment=2, segments=4, max_workers=2, any_plan=True
    )


def test_a_comparison_says_how_close_losses_have_to_be():
    record = replay_pb2.ReplayInfo()
    assert str(comparison_of(record)) == "no loss was compared with the record"
    record.segments.add().comparison.MergeFrom(replay_pb2.ReplayComparison(bits=True, tolerance=1e-5, compared=20))
    for largest in (2e-8, 3e-8):
        record.segments.add().comparison.MergeFrom(
            replay_pb2.ReplayComparison(tolerance=1e-5, reason="it is another plan", compared=10, largest=largest)
        )
    found = comparison_of(record)
    assert (found.bits, found.tolerance, found.largest, found.reasons) == (False, 1e-5, 3e-8, ("it is another plan",))
    assert str(found) == (
        "losses compared with the record: 20 to the bit, 20 within a relative 1e-05 (largest difference 3e-08), as it "
        "is another plan"
    )
    assert pickle.loads(pickle.dumps(found)) == found


class BreakingServer(grpc.GenericRpcHandler):
    """Has one replay, whose first watch breaks off after seven answers, and the second after nine, in another order."""

    def __init__(self):
        self.watched = 0
        self.server = grpc.server(futures.ThreadPoolExecutor(4), [self])
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def service(self, details):
        if details.method.endswith("Cluster/Status"):
            reply = cluster_pb2.ClusterStatusReply(grpc_address=self.address)
            return grpc.unary_unary_rpc_method_handler(lambda request, context: reply.SerializeToString())
        if details.method.endswith("Replay/Start"):
            reply = replay_pb2.StartReplayReply(replay=replay_pb2.ReplayInfo(id="replay-1"))
            return grpc.unary_unary_rpc_method_handler(lambda request, context: reply.SerializeToString())
        watches = details.method.endswith("Replay/Watch")
        return grpc.unary_stream_rpc_method_handler(self.watch) if watches else None

    def watch(self, request, context):
        self.watched += 1
        steps = [list(range(7)), [*range(5, 9), *range(5)], list(range(12))][self.watched - 1]
        record = replay_pb2.ReplayInfo(id="replay-1", state=replay_pb2.REPLAY_RUNNING, rows=12)
        yield replay_pb2.ReplayEvent(replay=record).SerializeToString()
        for step in steps:
            row = replay_pb2.HistoryRow(job_id="job-1", step=step, name="grad(w1)", reduction="norm")
            yield replay_pb2.ReplayEvent(row=row).SerializeToString()
        if self.watched < 3:
            context.abort(grpc.StatusCode.UNAVAILABLE, "broken off")
        record.state = replay_pb2.REPLAY_SUCCEEDED
        yield replay_pb2.ReplayEvent(replay=record).SerializeToString()


def test_a_broken_connection_loses_and_repeats_no_answer(caplog):
    server = BreakingServer()
    try:
        with Client(server.address) as client:
            replay = client.replay("lm")
            came = [row.step for row in replay]
            server.watched = 0
            rows = [row.step for row in replay.rows()]
    finally:
        server.server.stop(None).wait()
    assert came == rows == list(range(12))
    assert f"connection to the coordinator at {server.address} lost" in caplog.text


def test_checkpoints_are_read_without_training(daemon, trained, capsys):
    estimate = daemon.estimate_replay("asked", log="norm(param(w1))", at="checkpoints")
    assert (estimate.steps, estimate.checkpoints, estimate.answers) == (0, 5, 5)
    assert repr(estimate).startswith("<ReplayEstimate: 5 checkpoints in 1 segment, ")
    replay = daemon.replay("asked", log="norm(param(w1))", at="checkpoints")
    replay.wait()
    steps, norms = replay.rows().curve("norm(param(w1))")
    assert list(steps) == [0, 10, 20, 30, 40]
    np.testing.assert_allclose(norms[[0, -1]], [np.linalg.norm(w["w1"]) for w in (initial(), trained.weights())], 1e-6)
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"{replay.id} succeeded after 5 of 5 checkpoints in ")
    daemon.replay("asked", log="norm(param(w1))", at="checkpoints", steps=0).wait()
    over = capsys.readouterr().out.splitlines()[-1]
    assert re.search(r" succeeded after 1 of 1 checkpoint in .*s, 1 answer$", over)
