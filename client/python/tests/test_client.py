"""Client, AsyncClient: errors and their remedies, uploads, downloads, keys, TLS, forks."""

import asyncio
import importlib.util
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
import numpy as np
import pytest
import small

import espalier
from espalier import errors
from espalier.aio import AsyncClient
from espalier.client import default_client, set_default_client
from espalier.rpc import typed
from espalier.training import fit, make_spec
from espalier.v1 import models_pb2, plan_pb2

PACKAGE = Path(__file__).absolute().parents[1]


def spec_on(client, **arguments):
    spec = make_spec(small.graph(), **{"optimizer": "sgd", "batch_size": 32, "epochs": 1, **arguments})
    spec.dataset.uri, spec.dataset.format = f"artifact:{client.upload(small.examples())}", 1
    return spec


def test_status_shows_the_workers(daemon):
    status = daemon.status()
    assert status.grpc_address == daemon.address
    assert len(status.workers) == 2


def test_errors_have_types_and_the_coordinators_words(daemon):
    with pytest.raises(errors.NotFound, match="no job 'job-nowhere'"):
        daemon.job("job-nowhere")
    with pytest.raises(LookupError, match="nothing-here"):
        daemon.download("nothing-here", "unused")
    with pytest.raises(errors.InvalidArgument, match=r"spec\.model: give graph"):
        daemon.submit(espalier.training.training_pb2.TrainingSpec())
    daemon.upload(small.examples(), name="taken")
    with pytest.raises(errors.AlreadyExists, match="taken"):
        daemon.upload(small.examples(20), name="taken")
    with pytest.raises(errors.InvalidArgument, match="kind of artifact 'picture'"):
        daemon.upload(small.examples(), "picture")


@pytest.mark.parametrize(
    ("columns", "freeze", "message"),
    [
        ({"lables": "y"}, [], "no input 'lables'; it has 'labels', 'x'; did you mean 'labels'?"),
        ({"labels": "label"}, [], "it has 'labels', 'x' (did you mean 'labels'?); name its column in `columns`"),
        ({"x": "features"}, [], "no column 'features'; it has 'labels', 'x'; name its column in `columns`"),
        ({}, ["*"], "no parameter of the model would be trained; .*name in `train_only` what is to be trained"),
        ({}, ["w3"], "spec.freeze: 'w3' matches no parameter; the model has 'b1', 'b2', 'w1', 'w2'"),
    ],
)
def test_refusals_of_jobs_name_fields_not_flags_of_the_command_line(daemon, columns, freeze, message):
    spec = spec_on(daemon)
    spec.dataset.columns.update(columns)
    spec.freeze.extend(freeze)
    with pytest.raises(errors.InvalidArgument) as refusal:
        daemon.submit(spec)
    assert re.search(re.escape(message).replace(r"\.\*", ".*"), str(refusal.value))
    assert "--" not in str(refusal.value)


def test_any_call(daemon):
    machines = daemon.call("Planner", "Machines", plan_pb2.MachinesRequest())
    assert len(machines.presets) > 3
    daemon.upload(small.examples(seed=41), name="to-delete")
    request = models_pb2.DeleteArtifactRequest(name="to-delete")
    daemon.call("Models", "Delete", request)
    assert request.idempotency_key == ""
    with pytest.raises(errors.NotFound, match="to-delete"):
        daemon.call("Models", "Delete", request)  # another call, not the first one's answer
    with pytest.raises(errors.NotFound, match=r"no service Trains; known are Training"):
        daemon.call("Trains", "Get", request)
    with pytest.raises(errors.NotFound, match=r"no call Remove; it has .*Delete"):
        daemon.call("Models", "Remove", request)
    with pytest.raises(errors.InvalidArgument, match=r"takes espalier\.v1\.GetJobRequest"):
        daemon.call("Training", "Get", request)


def test_nothing_listens():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    start = time.monotonic()
    with pytest.raises(errors.Unavailable, match=rf"no coordinator answers at {address} \(no connection\)\. Start one"):
        espalier.Client(address).jobs()
    assert time.monotonic() - start < 3

    async def call():
        async with AsyncClient(address) as client:
            await client.jobs()

    with pytest.raises(ConnectionError, match=address):
        asyncio.run(call())


def test_something_else_listens():
    """A server that never answers: the call ends after the connection's time."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        client = espalier.Client(address)
        object.__setattr__(client._settings, "connect_timeout", 0.5)
        with pytest.raises(errors.Unavailable, match=r"nothing within 0\.5 s"):
            client.jobs()


@pytest.mark.parametrize("address", ["localhost", ":7070", "localhost:", "localhost:x", "localhost:70700"])
def test_bad_addresses_are_refused(address):
    with pytest.raises(errors.InvalidArgument, match="coordinator address"):
        espalier.Client(address)


def test_the_environment_names_the_coordinator(monkeypatch, tmp_path):
    for name in ("COORDINATOR", "HOME", "TOKEN", "TOKEN_FILE", "CA_FILE", "CERT_FILE", "KEY_FILE"):
        monkeypatch.delenv(f"ESPALIER_{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert espalier.Client().address == "127.0.0.1:7070"
    (tmp_path / ".espalier").mkdir()
    (tmp_path / ".espalier" / "espalierd.ready").write_text('{"grpc": "127.0.0.1:1111", "http": ""}')
    assert espalier.Client().address == "127.0.0.1:1111"
    (tmp_path / "espalierd.ready").write_text('{"grpc": "127.0.0.1:2222"}')
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    assert espalier.Client().address == "127.0.0.1:2222"
    monkeypatch.setenv("ESPALIER_COORDINATOR", "127.0.0.1:3333")
    assert espalier.Client().address == "127.0.0.1:3333"
    assert espalier.Client("127.0.0.1:4444").address == "127.0.0.1:4444"

    monkeypatch.setenv("ESPALIER_TOKEN", "from-variable")
    assert espalier.Client()._settings.metadata == (("authorization", "Bearer from-variable"),)
    key = tmp_path / "key"
    key.write_text("from-file\n")
    monkeypatch.setenv("ESPALIER_TOKEN_FILE", str(key))
    key.chmod(0o644)
    with pytest.raises(errors.InvalidArgument, match=f"open to other users.*chmod 600 {key}"):
        espalier.Client()
    key.chmod(0o600)
    assert espalier.Client()._settings.token == "from-file"
    assert "from-file" not in repr(espalier.Client()._settings)
    assert espalier.Client(token="given")._settings.token == "given"
    monkeypatch.setenv("ESPALIER_CERT_FILE", str(key))
    with pytest.raises(errors.InvalidArgument, match="cert_file and key_file go together"):
        espalier.Client()


def test_what_login_keeps_is_for_that_coordinator_only(monkeypatch, tmp_path):
    for name in ("COORDINATOR", "HTTP", "TOKEN", "TOKEN_FILE", "CA_FILE", "CERT_FILE", "KEY_FILE"):
        monkeypatch.delenv(f"ESPALIER_{name}", raising=False)
    monkeypatch.setenv("ESPALIER_HOME", str(tmp_path))
    key, ca = tmp_path / "token", tmp_path / "ca.pem"
    key.write_text("kept\n")
    key.chmod(0o600)
    ca.write_text("a certificate")
    (tmp_path / "connection.json").write_text(
        f'{{"grpc": "10.0.0.1:7070", "http": "", "ca_file": "{ca}", "token_file": "{key}"}}'
    )
    settings = espalier.Client()._settings
    assert (settings.address, settings.token, settings.tls) == ("10.0.0.1:7070", "kept", True)
    assert settings.ca_pem == b"a certificate"
    elsewhere = espalier.Client("10.0.0.2:7070")._settings
    assert (elsewhere.token, elsewhere.tls, elsewhere.ca_pem) == ("", False, None)
    monkeypatch.setenv("ESPALIER_TOKEN", "given")
    assert espalier.Client()._settings.token == "given"
    key.chmod(0o644)
    monkeypatch.delenv("ESPALIER_TOKEN")
    with pytest.raises(errors.InvalidArgument, match="open to other users"):
        espalier.Client()


def test_a_call_that_the_coordinator_lacks(daemon):
    with grpc.insecure_channel(daemon.address) as channel, pytest.raises(grpc.RpcError) as raised:
        channel.unary_unary("/espalier.v1.Training/NoSuchCall")(b"", timeout=30)
    error = typed(raised.value, daemon._settings)
    assert isinstance(error, errors.InternalError)
    assert str(error) == f"the coordinator at {daemon.address} lacks this call; is it older than this package?"


def test_uploads_are_found_again_by_content(daemon, tmp_path):
    first = daemon.upload(small.examples(seed=11))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("espalier.transfer.upload_messages", None)  # nothing is sent
        assert daemon.upload(small.examples(seed=11)) == first
    assert daemon.upload(small.examples(seed=12)) != first
    folder = tmp_path / "a folder"
    (folder / "sub").mkdir(parents=True)
    (folder / "one").write_bytes(b"1" * 3_000_000)
    (folder / "sub" / "two").write_bytes(b"")
    sent = []
    name = daemon.upload(folder, progress=lambda done, total: sent.append((done, total)))
    assert name.startswith("a-folder-")
    assert sent[-1] == (3_000_000, 3_000_000)
    assert daemon.upload(folder, "model", progress=lambda *_: pytest.fail("sent again")) == name
    back = tmp_path / "back"
    artifact = daemon.download(name, back)
    assert sorted(artifact.files) == ["one", "sub/two"]
    assert (back / "one").read_bytes() == (folder / "one").read_bytes()
    assert (back / "sub" / "two").read_bytes() == b""
    daemon.delete(name)
    with pytest.raises(errors.NotFound):
        daemon.download(name, back)


def test_an_upload_that_cannot_be_read_leaves_nothing(daemon, tmp_path):
    with pytest.raises(errors.InvalidArgument, match="no file or folder"):
        daemon.upload(tmp_path / "missing")
    path = tmp_path / "vanishes.npz"
    path.write_bytes(b"x" * 10_000_000)

    def vanish(done, total):
        raise KeyboardInterrupt  # Ctrl-C while it is sent

    known = len(daemon.artifacts())
    with pytest.raises(KeyboardInterrupt):
        daemon.upload(path, progress=vanish)
    assert len(daemon.artifacts()) == known


def test_an_asyncio_upload_passes_on_what_fails(daemon, tmp_path):
    path = tmp_path / "big.npz"
    path.write_bytes(b"x" * 10_000_000)

    def fails(done, total):
        raise ZeroDivisionError

    async def use():
        async with AsyncClient(daemon.address) as client:
            known = len(await client.artifacts())
            with pytest.raises(ZeroDivisionError):
                await client.upload(path, progress=fails)
            assert len(await client.artifacts()) == known

    asyncio.run(asyncio.wait_for(use(), 20))


def test_a_download_that_is_wrong_is_refused(daemon, tmp_path, monkeypatch):
    name = daemon.upload(small.examples(seed=21))
    import hashlib

    real = hashlib.sha256
    monkeypatch.setattr("espalier.transfer.hashlib.sha256", lambda data=b"": real(data + b"flipped"))
    with pytest.raises(errors.DataLoss, match="download it again"):
        daemon.download(name, tmp_path)


def test_a_key_makes_submit_idempotent(daemon):
    spec = spec_on(daemon)
    jobs = {daemon.submit(spec, key="the-same-key").id for _ in range(3)}
    assert len(jobs) == 1
    assert daemon.submit(spec).id not in jobs


def test_threads_share_a_client(daemon):
    client = espalier.Client(daemon.address)
    found = []
    threads = [threading.Thread(target=lambda: found.append(len(client.status().workers))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [2] * 8


def run_program(text, **environment):
    """What a program of its own prints, with a daemon's address for {address}."""
    environment = dict(os.environ, PYTHONPATH=str(PACKAGE), **environment)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done
    return done


def test_a_client_survives_a_fork(daemon):
    """A child made by fork has a connection of its own, and the parent's goes on."""
    done = run_program(f"""
import multiprocessing, espalier
client = espalier.Client({daemon.address!r})
fork = multiprocessing.get_context("fork")
for _ in range(5):
    print(len(client.status().workers), flush=True)
    child = fork.Process(target=lambda: print(len(client.status().workers), flush=True))
    child.start()
    child.join(20)
    assert child.exitcode == 0
print(len(client.status().workers))
""")
    assert done.stdout == "2\n" * 11


@pytest.mark.parametrize("fork_support", ["0", "1"])
def test_a_program_ends_without_closing_its_client(daemon, fork_support):
    program = f"""
import espalier
client = espalier.Client({daemon.address!r})
events = client.submit(espalier.training.training_pb2.TrainingSpec.FromString({spec_on(daemon).SerializeToString()!r}))
events = events.events()
next(events)
print(len(client.status().workers))
"""
    done = run_program(program, GRPC_ENABLE_FORK_SUPPORT=fork_support)
    assert (done.stdout, done.stderr) == ("2\n", "")


def test_a_fork_that_would_hang_is_refused(daemon):
    program = f"""
import grpc, os, espalier
client = espalier.Client({daemon.address!r})
client.status()
if os.fork() == 0:
    try:
        client.status()
    except espalier.errors.FailedPrecondition as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
print(len(client.status().workers))
"""
    done = run_program(program, GRPC_ENABLE_FORK_SUPPORT="0")
    assert "set GRPC_ENABLE_FORK_SUPPORT=1" in done.stdout, done
    assert done.stdout.endswith("\n2\n")


def test_asyncio_has_the_same_methods(daemon, tmp_path):
    async def use():
        async with AsyncClient(daemon.address) as client:
            name = await client.upload(small.examples(seed=31))
            assert name == await client.upload(small.examples(seed=31))
            await client.download(name, tmp_path)
            job = await client.submit(spec_on(daemon, epochs=2))
            states, steps = [], []
            async for event in job.events():
                if event.HasField("job"):
                    states.append(event.job.state)
                elif event.HasField("step"):
                    steps.append(event.step.step)
            assert steps == list(range(16))
            record = await job.wait()
            assert record.state == states[-1]
            assert len((await job.history)["loss"]) == 16
            assert (await job.weights()).keys() == small.initial().keys()
            assert len((await job.plan).proto.operators) > 0
            many = await asyncio.gather(*(client.status() for _ in range(5)))
            assert {len(status.workers) for status in many} == {2}
            with pytest.raises(errors.NotFound):
                await client.job("job-nowhere")
            return await job.state

    assert asyncio.run(use()) == "succeeded"
    assert (tmp_path / "data.npz").exists()


def test_an_asyncio_watch_can_be_cancelled(daemon):
    async def use():
        async with AsyncClient(daemon.address) as client:
            job = await client.submit(spec_on(daemon, epochs=None, steps=1_000_000))
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(job.wait(), 0.5)
            assert await job.state in ("planning", "running")
            await job.cancel()

    asyncio.run(use())


def test_the_default_client_is_that_of_local(daemon):
    assert default_client() is daemon
    other = espalier.Client("127.0.0.1:1")
    try:
        set_default_client(other)
        assert default_client() is other
    finally:
        set_default_client(daemon)


def self_signed(folder):
    key, certificate = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost -addext "
        f"subjectAltName=IP:127.0.0.1 -keyout {key} -out {certificate}",
        shell=True,
        check=True,
        capture_output=True,
    )
    os.chmod(key, 0o600)
    return key, certificate


def test_keys_roles_and_tls(tmp_path):
    """One daemon with TLS and keys: who may do what, and what the errors say."""
    key, certificate = self_signed(tmp_path)
    keys = tmp_path / "keys"
    keys.write_text("admin-key-0123456789abcdef\ninfer-key-0123456789abcdef role=infer\n")
    keys.chmod(0o600)
    flags = [f"--tls-cert={certificate}", f"--tls-key={key}", f"--api-key-file={keys}"]
    with espalier.local(workers=0, flags=flags) as plain:
        address = plain.address
        with pytest.raises(errors.Unavailable, match=r"if it uses TLS: .*login TOKEN.*ca_file"):
            plain.jobs()
        with pytest.raises(errors.Unavailable, match="certificate is not trusted"):
            espalier.Client(address, tls=True).jobs()
        with pytest.raises(errors.Unauthenticated, match=r"espalier\.Client\(token="):
            espalier.Client(address, ca_file=certificate, token="").jobs()
        with pytest.raises(errors.Unauthenticated):
            espalier.Client(address, ca_file=certificate, token="wrong-key-0123456789abcdef").jobs()
        infer = espalier.Client(address, ca_file=certificate, token="infer-key-0123456789abcdef")
        assert list(infer.status().workers) == []
        with pytest.raises(errors.PermissionDenied, match="infer"):
            infer.jobs()
        admin = espalier.Client(address, ca_file=certificate, token="admin-key-0123456789abcdef")
        assert admin.jobs() == []
        name = admin.upload({"x": np.zeros(3)})
        assert [artifact.name for artifact in admin.artifacts()] == [name]

        async def ask():
            async with AsyncClient(address, ca_file=certificate, token="admin-key-0123456789abcdef") as client:
                return await client.jobs()

        assert asyncio.run(ask()) == []


def test_jobs_are_listed_with_what_their_job_says(daemon):
    job = daemon.submit(spec_on(daemon, name="listed", epochs=2))
    job.wait()
    info = next(info for info in daemon.jobs() if info.id == job.id)
    same = info.job
    assert type(same) is espalier.Job
    assert same.id == job.id
    for name in ("name", "state", "progress", "created", "owner"):
        assert getattr(info, name) == getattr(same, name)
    assert (info.name, info.state, info.progress, info.owner) == ("listed", "succeeded", 1.0, "")
    assert abs(info.created.timestamp() - time.time()) < 60
    assert info.created.utcoffset() is not None
    # The fields of the record, as before there was more.
    assert info.spec.name == "listed"
    assert info.steps_done == info.record.steps_done == 16
    with pytest.raises(AttributeError, match="JobInfo has no attribute 'stat'"):
        info.stat  # noqa: B018
    kinds = {artifact.name: artifact.kind for artifact in daemon.artifacts()}
    assert kinds["listed"] == "model"
    assert kinds[info.spec.dataset.uri.split(":")[1]] == "dataset"

    async def ask():
        async with AsyncClient(daemon.address) as client:
            found = next(info for info in await client.jobs() if info.id == job.id)
            return found, await found.job.state

    assert asyncio.run(ask()) == (info, "succeeded")


def test_runs_of_an_experiment(daemon):
    for seed, record in ((3, "every:5"), (4, None), (4, "off")):
        run = fit(small.graph(), small.examples(), optimizer="sgd", batch_size=32, steps=20, seed=seed, verbose=0,
                  name="experiment", record=record, client=daemon,
                  search={"max_devices": 1})  # the same plan, whichever workers are idle  # fmt: skip
        last = run.job.id
        if seed == 3:
            losses = run.history["loss"]
    runs = daemon.runs("experiment")
    assert [run.name for run in runs] == ["experiment@1", "experiment@2", "experiment@3"]
    assert [run.recorded for run in runs] == [True, True, False]
    assert (runs[0].first_loss, runs[0].last_loss, runs[0].best_loss) == (losses[0], losses[-1], min(losses))
    assert daemon.runs("exp*", limit=2) == runs[:2]
    assert daemon.run(last).name == daemon.run("experiment").name == "experiment@3"
    assert runs[2].job.id == last
    first = daemon.run("experiment@1")
    assert [checkpoint.steps_done for checkpoint in first.checkpoints] == [5, 10, 15, 20]
    assert first.all_checkpoints == runs[0].all_checkpoints == 4
    assert (first.optimizer, first.schedule, first.batch_size, first.seed) == ("sgd", "constant", 32, 3)
    assert (first.epochs, first.total_steps, first.learning_rate) == (0, 20, runs[0].learning_rate)
    assert first.seconds > 0
    assert first.started is not None
    assert len(first.dataset_sha256) == 64
    assert f"dataset: {first.dataset}, optimizer: sgd, learning rate: {first.learning_rate:g}, constant" in repr(first)
    if importlib.util.find_spec("pandas"):
        assert list(runs.dataframe()["batch_size"]) == [32, 32, 32]
    (attempt,) = first.attempts
    assert {rank.program_version for rank in attempt.ranks} == {espalier.__version__}
    assert all("(oneDNN)" in rank.instruction_set and rank.threads >= 1 for rank in attempt.ranks)
    assert [checkpoint.steps_done for checkpoint in daemon.run("experiment@2").checkpoints][-1] == 20
    diff = daemon.diff_runs("experiment@1", "experiment@2")
    assert "spec.seed" in [difference.field for difference in diff]
    assert (diff.first_different_step, diff.common_steps) == (0, 20)
    assert daemon.diff_runs("experiment@2", "experiment@3").first_different_step is None
    with pytest.raises(errors.NotFound, match="experiment"):
        daemon.run("experimnt")
    values = daemon.run_values("experiment@1")
    parameters = daemon.run_values("experiment@1", "param(*)")
    assert {value.kind for value in values} >= {"parameter", "value", "batch input"}
    assert [value.name for value in parameters] == [value.name for value in values if value.kind == "parameter"]
    assert all(value.update and value.gradient and value.dtype == "f32" for value in parameters)
    assert {value.shape for value in values if value.kind == "batch input"} >= {(32, 6)}
    logs = [f"norm({value.log})" for value in values]
    assert daemon.estimate_replay("experiment@1", log=logs, steps=(3, 4)).answers == len(logs)
    head, row, *_ = str(parameters).splitlines()
    assert head.split() == ["name", "kind", "type", "also"]
    assert row.endswith("grad, update")
    with pytest.raises(errors.NotFound, match="nothing matches"):
        daemon.run_values("experiment@1", "param(none)")

    async def ask():
        async with AsyncClient(daemon.address) as client:
            listed = await client.run_values("experiment@1")
            return await client.runs("experiment"), await client.diff_runs("experiment@1", "experiment@2"), listed

    assert asyncio.run(ask()) == (runs, diff, values)


def test_owners_do_not_see_each_others_jobs(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("ann-key-0123456789abcdef role=train owner=ann\nbob-key-0123456789abcdef role=train owner=bob\n")
    keys.chmod(0o600)
    with espalier.local(workers=0, flags=[f"--api-key-file={keys}"]) as nobody:
        ann = espalier.Client(nobody.address, token="ann-key-0123456789abcdef")
        bob = espalier.Client(nobody.address, token="bob-key-0123456789abcdef")
        job = ann.submit(spec_on(ann))
        assert [found.id for found in ann.jobs()] == [job.id]
        assert bob.jobs() == []
        with pytest.raises(errors.NotFound):
            bob.job(job.id)
        # Equal content of another owner is sent anew, under a name of its own.
        assert ann.upload(small.examples()) != bob.upload(small.examples())


def test_addresses_that_cannot_be_are_named():
    with pytest.raises(errors.InvalidArgument, match=r"http://localhost:7070.*HOST:PORT.*gRPC"):
        espalier.Client("http://localhost:7070")
    with pytest.raises(errors.Unavailable, match=r"nohost\.invalid:7070 \(no host of this name is known\)"):
        espalier.Client("nohost.invalid:7070").jobs()
