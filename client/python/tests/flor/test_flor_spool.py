"""Recordings that are copied to a folder or to S3 while a program trains, and replayed on another machine."""

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from running import PACKAGE, Scripts

from espalier.errors import DataLoss, FailedPrecondition, InvalidArgument, Unavailable
from espalier.flor import command_line, fetching, spooling, store, targets

S3_TESTS = PACKAGE.parents[1] / "tests" / "s3"
PROGRAM = """
import os, sys, time
import numpy as np
import espalier.flor as flor

weights, rng = np.zeros(1000), np.random.default_rng()
for epoch in flor.it(range(8)):
    if flor.SkipBlock.step_into("a.b/c d"):
        weights += rng.normal(size=1000)
        print("step", epoch, flush=True)
    flor.SkipBlock.end(weights)
    flor.log("total", weights.sum())
    OUTER
"""
NEW = 'flor.log("maximum", weights.max())'


def program(outer="pass"):
    return PROGRAM.replace("OUTER", outer)


class Machine(Scripts):
    """A machine with recordings of its own."""

    def __init__(self, folder, **environment):
        folder.mkdir(exist_ok=True)
        super().__init__(folder)
        self.more = environment

    def environment(self, **more):
        kept = {name: value for name, value in super().environment().items() if not name.startswith("AWS_")}
        return kept | {"FLOR_SPOOL_TIMEOUT": "120"} | self.more | more

    def flor(self, *words, fails=False):
        done = subprocess.run(
            [sys.executable, "-m", "espalier.flor", *words],
            env=self.environment(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stderr if fails else done.stdout

    def start(self, text, *words):
        self.write(text)
        pipe = subprocess.PIPE
        return subprocess.Popen(self.command(*words), env=self.environment(), stdout=pipe, stderr=pipe, text=True)

    def checkpoints(self, name="np", version=1):
        return sorted(path.name for path in (self.home / name / str(version) / "checkpoints").glob("*/*.safetensors"))


class Server:
    """An S3 server with faults: tests/s3/s3_server.py in a process of its own environment."""

    def __init__(self, environment):
        self.environment = {name: value for name, value in environment.items() if name.startswith("AWS_")}
        self.bucket, self.seen, self._taken = environment["S3_TEST_BUCKET"], [], 0

    def _call(self, method, path, data=None):
        request = urllib.request.Request(self.environment["AWS_ENDPOINT_URL"] + path, data=data, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read().decode().splitlines()

    def faults(self, *rules):
        self._call("PUT", "/__faults", json.dumps(rules).encode())

    def requests(self):
        """Those since the last call."""
        found = self._call("GET", "/__requests")
        new = found[self._taken :]
        self._taken = len(found)
        return new

    def indexed(self, name):
        """Whether an index was written after this name."""
        self.seen += [line for line in self.requests() if line.startswith("PUT")]
        places = [number for number, line in enumerate(self.seen) if name in line]
        return bool(places) and any("spool.json" in line for line in self.seen[places[0] :])


@pytest.fixture(scope="module")
def server():
    show = "import json, os, sys; print(json.dumps(dict(os.environ)), flush=True); sys.stdin.read()"
    command = [sys.executable, str(S3_TESTS / "run_with_s3.py"), sys.executable, "-c", show]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield Server(json.loads(process.stdout.readline()))
        process.stdin.close()


@pytest.fixture
def bucket(server, request):
    """The server without faults, and a prefix of its own."""
    server.faults()
    server.requests()
    server.seen.clear()
    yield server, f"s3://{server.bucket}/{request.node.name.replace('[', '-').replace(']', '')}/runs"
    server.faults()


def replayed_elsewhere(folder, url, *words, outer=NEW, **environment):
    done = Machine(folder, **environment).run(
        program(outer), "--flor", "np", "--flor_spool", url, "--replay_flor", *words
    )
    assert "0 differ" in done.stderr, done.stderr
    return done


def test_a_folder_has_the_same_names_and_is_replayed_elsewhere(tmp_path):
    one, url = Machine(tmp_path / "one"), str(tmp_path / "spool")
    done = one.run(program(), "--flor", "np", "--flor_spool", url)
    assert f"copied np@1 to {url}: 8 checkpoints" in done.stderr
    files = {path.relative_to(one.home): path.read_bytes() for path in one.home.rglob("*") if path.is_file()}
    copies = {path.relative_to(url): path.read_bytes() for path in Path(url).rglob("*") if path.is_file()}
    del copies[Path("np/1/spool.json")]
    assert copies == files
    shutil.rmtree(one.home)
    assert "8 restored; 8 values and states equal" in replayed_elsewhere(tmp_path / "two", url).stderr
    # The copy is a folder of recordings itself.
    whole = Machine(tmp_path / "three").run(program(), "--flor", "np", "--replay_flor", FLOR_HOME=url)
    assert "8 restored; 8 values and states equal" in whole.stderr


def test_a_segment_fetches_only_the_checkpoints_that_it_needs(tmp_path):
    url = str(tmp_path / "spool")
    Machine(tmp_path / "one").run(program(), "--flor", "np", "--flor_spool", url)
    done = replayed_elsewhere(tmp_path / "two", url, "3/4")
    assert done.stdout == ""
    assert Machine(tmp_path / "two").checkpoints() == [f"epoch={epoch}.safetensors" for epoch in (3, 4, 5)]


PUT, GET = {"method": "PUT", "count": 2}, {"method": "GET", "count": 2}
FAULTS = {
    "none": [],
    "writing": [
        PUT | {"match": "epoch%3D1", "do": "status", "status": 500, "code": "InternalError"},
        PUT | {"match": "epoch%3D2", "do": "status", "status": 503, "code": "SlowDown"},
        PUT | {"match": "epoch%3D3", "do": "reset"},
        PUT | {"match": "epoch%3D4", "do": "slow", "seconds": 0.2},
        PUT | {"match": "log.jsonl", "do": "late error", "code": "InternalError"},
        PUT | {"match": "spool.json", "do": "lose answer"},
    ],
    "writing fails for longer": [PUT | {"match": "epoch", "do": "reset", "count": 4}],
    "reading": [
        GET | {"match": "epoch%3D1", "do": "status", "status": 503, "code": "SlowDown"},
        GET | {"match": "epoch%3D2", "do": "truncate"},
        GET | {"match": "epoch%3D3", "do": "reset"},
        GET | {"match": "log.jsonl", "do": "truncate"},
        GET | {"match": "version.json", "do": "reset"},
        GET | {"match": "spool.json", "do": "truncate"},
    ],
}


@pytest.mark.parametrize("faults", list(FAULTS))
def test_s3_with_faults(tmp_path, bucket, faults):
    server, url = bucket
    one = Machine(tmp_path / "one", FLOR_SPOOL=url, **server.environment)
    server.faults(*FAULTS[faults])
    done = one.run(program(), "--flor", "np")
    assert f"copied np@1 to {url}: 8 checkpoints" in done.stderr
    assert done.stderr.count("WARNING") <= 1, done.stderr
    done = replayed_elsewhere(tmp_path / "two", url, **server.environment)
    assert done.stdout == ""
    assert "8 restored; 8 values and states equal the record to the bit" in done.stderr
    names = [line.split()[1].partition("?")[0] for line in server.requests() if line.startswith("PUT")]
    assert names[-2].endswith("spool.json"), names  # the last one is that of the replay's new values
    assert "/replays/" in names[-1]


def test_a_spool_that_is_away_stops_nothing_and_the_rest_is_copied_later(tmp_path, bucket):
    server, url = bucket
    one = Machine(tmp_path / "one", FLOR_SPOOL=url, FLOR_SPOOL_TIMEOUT="2", **server.environment)
    server.faults({"match": "np", "do": "status", "status": 503, "code": "SlowDown", "skip": 4, "count": 10000})
    began = time.monotonic()
    done = one.run(program("time.sleep(0.6)"), "--flor", "np")
    assert time.monotonic() - began < 30
    assert done.stdout.count("step") == 8
    assert done.stderr.count("cannot copy to") == 1, done.stderr
    assert f"of 8 checkpoints of np@1 are not copied to {url}" in done.stderr
    assert f"python -m espalier.flor spool np {url}" in done.stderr
    server.faults()
    assert "np@1 -> s3://" in one.flor("spool", "np", url)
    server.requests()
    assert ": 0 files copied" in one.flor("spool", "np", url)
    assert not any(line.startswith("PUT") for line in server.requests())
    assert "8 restored" in replayed_elsewhere(tmp_path / "two", url, **server.environment).stderr


def test_ctrl_c_ends_the_wait_for_a_spool_that_does_not_answer(tmp_path, bucket):
    server, url = bucket
    server.faults({"method": "PUT", "match": "checkpoints", "do": "stall", "seconds": 60, "count": 100})
    one = Machine(tmp_path / "one", FLOR_SPOOL=url, FLOR_SPOOL_TIMEOUT="60", **server.environment)
    process = one.start(program(), "--flor", "np")
    for line in process.stderr:
        if "Ctrl-C" in line:
            break
    process.send_signal(signal.SIGINT)
    assert "of 8 checkpoints of np@1 are not copied" in process.communicate(timeout=10)[1]
    assert process.returncode == 0


@pytest.mark.parametrize("both", [False, True], ids=["program", "program and copier"])
def test_what_was_copied_before_kill_9_is_replayed(tmp_path, bucket, both):
    server, url = bucket
    one = Machine(tmp_path / "one", FLOR_SPOOL=url, **server.environment)
    if both:
        server.faults({"method": "PUT", "match": "checkpoints", "do": "slow", "seconds": 2, "count": 1000})
    recorded = one.home / "np" / "1" / "checkpoints" / "a%2Eb%2Fc d" / "epoch=6.safetensors"
    outer = f"while epoch == 6 and not os.path.exists({str(recorded)!r}): time.sleep(0.05)\n"
    process = one.start(program(outer + "    time.sleep(600 if epoch == 7 else 0.05)"), "--flor", "np")
    for line in process.stdout:
        if line == "step 7\n":
            break
    copier = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])
    while both and not server.indexed("epoch%3D0"):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    if both:
        os.kill(copier, signal.SIGKILL)
    said = process.communicate()[1]
    server.faults()
    done = replayed_elsewhere(tmp_path / "two", url, **server.environment)
    assert "did not end" in done.stderr
    if both:
        assert 1 <= len(Machine(tmp_path / "two").checkpoints()) < 7
        assert "np@1 -> " in one.flor("spool", "np", url)  # takes up where the copier was
        done = replayed_elsewhere(tmp_path / "three", url, **server.environment)
    else:
        assert f"copied np@1 to {url}: 7 checkpoints" in said
    assert "0 blocks executed, 7 restored" in done.stderr, done.stderr


def test_two_machines_with_one_name_get_different_versions(tmp_path, bucket):
    server, url = bucket
    one, two = (Machine(tmp_path / name, FLOR_SPOOL=url, **server.environment) for name in ("one", "two"))
    processes = [machine.start(program(), "--flor", "np") for machine in (one, two)]
    for process in processes:
        assert f"to {url}: 8 checkpoints" in process.communicate()[1]
    numbers = [int(path.name) for machine in (one, two) for path in (machine.home / "np").iterdir()]
    assert sorted(numbers) == [1, 2]
    listed = one.flor("ls", "--spool", url)
    assert "np@1" in listed
    assert "np@2" in listed
    three = Machine(tmp_path / "three", **server.environment)
    assert "replaying np@2" in replayed_elsewhere(three.folder, url, **server.environment).stderr
    assert "np@1 -> " in three.flor("fetch", "np@1", url)
    assert len(three.checkpoints()) == 8


def test_tables_have_what_other_machines_recorded_and_replayed(tmp_path, monkeypatch):
    import espalier.flor as flor

    url = str(tmp_path / "spool")
    Machine(tmp_path / "one").run(program(), "--flor", "np", "--flor_spool", url)
    for k in (1, 2):
        replayed_elsewhere(tmp_path / f"replay{k}", url, f"{k}/2")
    monkeypatch.setenv("FLOR_HOME", str(tmp_path / "table"))
    rows = flor.rows("total", "maximum", experiment="np", spool=url)
    assert sorted((row.name, row.source) for row in rows) == [("maximum", "replay")] * 8 + [("total", "forward")] * 8
    assert not list((tmp_path / "table").rglob("epoch*"))


def test_the_number_of_another_recording_is_not_overwritten(tmp_path):
    url = tmp_path / "spool"
    one, two = Machine(tmp_path / "one"), Machine(tmp_path / "two")
    one.run(program(), "--flor", "np", "--flor_spool", str(url))
    two.run(program(), "--flor", "np")
    before = (url / "np/1/log.jsonl").read_bytes()
    assert "np/1 is another recording" in two.flor("spool", "np", str(url), fails=True)
    assert (url / "np/1/log.jsonl").read_bytes() == before
    done = two.run(program(), "--flor", "np@1", "--replay_flor", "--flor_spool", str(url), fails=True)
    assert "is another recording than that in" in done.stderr


def test_a_damaged_copy_is_never_used(tmp_path):
    url = tmp_path / "spool"
    one = Machine(tmp_path / "one")
    one.run(program(), "--flor", "np", "--flor_spool", str(url))
    path = next(url.glob("np/1/checkpoints/*/epoch=3.safetensors"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 4]) + whole[-8:])
    done = replayed_elsewhere(tmp_path / "two", str(url))
    assert "a checkpoint cannot be fetched, and its block is executed instead" in done.stderr
    assert "epoch=3.safetensors is damaged" in done.stderr
    assert "1 blocks executed, 7 restored" in done.stderr
    refused = Machine(tmp_path / "three").run(
        program(), "--flor", "np", "--flor_spool", str(url), "--replay_flor", "5/8", fails=True
    )
    assert "epoch=3.safetensors is damaged" in refused.stderr
    # Here it is damaged, there it is whole.
    path.write_bytes(whole)
    here = one.home / path.relative_to(url)
    here.write_bytes(whole[:-1])
    again = one.run(program(), "--flor", "np", "--flor_spool", str(url), "--replay_flor")
    assert "is damaged: it is fetched from the spool again" in again.stderr
    assert here.read_bytes() == whole


def test_a_full_spool_has_what_came_before_and_the_rest_when_there_is_room(tmp_path, monkeypatch):
    one = Machine(tmp_path / "one")
    one.run(program(), "--flor", "np")
    monkeypatch.setenv("FLOR_HOME", str(one.home))
    version = store.find_version("np")
    target = targets.Folder(tmp_path / "spool")
    full, put = [True], target.put

    def limited(name, path, size):
        if full[0] and "epoch=5" in name:
            raise OSError(errno.ENOSPC, "No space left on device")
        put(name, path, size)

    monkeypatch.setattr(target, "put", limited)
    copier = spooling.Copier(lambda: target, version)
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            copier.round(last=True)
    assert copier.left()[1] == 3
    done = Machine(tmp_path / "two").run(program(NEW), "--flor", "np", "--flor_spool", target.url, "--replay_flor")
    assert "3 blocks executed, 5 restored" in done.stderr  # those before it are of use
    full[0] = False
    copier.round(last=True)
    assert copier.left() == (0, 0)
    assert "8 restored" in replayed_elsewhere(tmp_path / "three", target.url).stderr


def test_a_spool_that_is_away_for_a_moment_is_not_made_anew(tmp_path):
    spool, away, there = tmp_path / "spool", tmp_path / "away", Path("np/1/checkpoints/a%2Eb%2Fc d/epoch=1.safetensors")
    text = program(
        f"while epoch == 2 and not os.path.exists({str(spool / there)!r}): time.sleep(0.05)\n"
        f"    if epoch == 2: os.rename({str(spool)!r}, {str(away)!r})\n"
        f"    while epoch == 7 and not os.path.exists({str(spool)!r}): time.sleep(0.05)"
    )
    process = Machine(tmp_path / "one").start(text, "--flor", "np", "--flor_spool", str(spool))
    said = ""
    while "cannot copy to" not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    time.sleep(2)  # for another try
    away.rename(spool)  # fails if a file was written there again
    said += process.communicate()[1]
    assert f"copies go to {spool}, a new folder" in said
    assert said.count("cannot copy to") == 1, said
    assert "is gone: renamed, or not mounted. Training goes on: it is tried again" in said
    assert "works again" in said
    assert f"copied np@1 to {spool}: 8 checkpoints" in said
    assert "8 restored" in replayed_elsewhere(tmp_path / "two", str(spool), FLOR_STRICT="1").stderr


def test_a_spool_that_goes_between_check_and_write_is_not_made_anew(tmp_path, monkeypatch):
    spool = tmp_path / "spool"
    target = targets.Folder(spool)
    target.put_bytes("np/1/spool.json", b"{}")
    target.expect("np/1/spool.json", b"{")
    check = target._check

    def check_and_lose():
        check()
        spool.rename(tmp_path / "away")

    monkeypatch.setattr(target, "_check", check_and_lose)
    for name in ("np/1/log.jsonl", "np/2/checkpoints/block/epoch=1.safetensors"):
        with pytest.raises(Unavailable, match="is gone: renamed, or not mounted"):
            target.put_bytes(name, b"{}")
        assert not spool.exists()
        (tmp_path / "away").rename(spool)


@pytest.mark.parametrize("gone", ["np/1", "np", "."])
def test_a_copier_writes_nothing_beside_what_was_moved_away(tmp_path, monkeypatch, gone):
    one = Machine(tmp_path / "one")
    one.run(program(), "--flor", "np")
    monkeypatch.setenv("FLOR_HOME", str(one.home))
    version, target = store.find_version("np"), targets.Folder(tmp_path / "spool")
    replayed = version.folder / "replays" / "1.jsonl"
    copier = spooling.Copier(lambda: target, version)
    copier.round(last=True)
    (tmp_path / "spool" / gone).rename(tmp_path / "away")
    replayed.write_bytes(b"{}\n")
    for last in (False, True, True):
        with pytest.raises(Unavailable, match="is gone"):
            copier.round(last)
    assert not list((tmp_path / "spool").rglob("*.*"))
    if gone == ".":  # another one is mounted there
        (tmp_path / "spool/np/1").mkdir(parents=True)
        (tmp_path / "spool/np/1/spool.json").write_bytes(spooling.Index("other").encode())
        with pytest.raises((Unavailable, FailedPrecondition), match="another recording"):
            copier.round(last=True)
        shutil.rmtree(tmp_path / "spool")
    (tmp_path / "away").rename(tmp_path / "spool" / gone)
    copier.round(last=True)
    assert (tmp_path / "spool/np/1/replays/1.jsonl").read_bytes() == b"{}\n"


def test_the_command_spool_repairs_what_the_index_names_and_is_not_there(tmp_path):
    url = tmp_path / "spool"
    one = Machine(tmp_path / "one")
    one.run(program(), "--flor", "np", "--flor_spool", str(url))
    (url / "np/1/version.json").unlink()
    shutil.rmtree(url / "np/1/initial")
    for path in url.glob("np/1/checkpoints/*/epoch=[345].safetensors"):
        path.unlink()
    cut = next(url.glob("np/1/checkpoints/*/epoch=6.safetensors"))
    cut.write_bytes(cut.read_bytes()[:-1])
    (url / "np/1/log.jsonl").write_bytes(b"")
    before = len(list(one.home.rglob("initial/*")))
    assert f": {6 + before} files copied" in one.flor("spool", "np", str(url))
    assert ": 0 files copied" in one.flor("spool", "np", str(url))
    assert "8 checkpoints fetched" in Machine(tmp_path / "two").flor("fetch", "np", str(url))
    assert "8 restored" in replayed_elsewhere(tmp_path / "three", str(url)).stderr


def test_a_misspelled_spool_is_refused_before_training_and_makes_no_folder(tmp_path):
    one = Machine(tmp_path / "one")
    url = str(tmp_path / "mispelled" / "spool")
    done = one.run(program(), "--flor", "np", "--flor_spool", url, fails=True)
    assert f"there is no folder {url}, nor {tmp_path / 'mispelled'}, in which it could be made" in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    one.run(program(), "--flor", "np")
    assert "there is no folder" in one.flor("spool", "np", url, fails=True)
    assert "there is no folder" in one.flor("fetch", "np", url, fails=True)
    assert f"there is no folder {url}" in one.flor("ls", "--spool", url, fails=True)
    assert not (tmp_path / "mispelled").exists()
    (tmp_path / "mispelled").mkdir()
    assert f"copies go to {url}, a new folder" in one.run(program(), "--flor", "np", "--flor_spool", url).stderr


def test_the_index_is_written_after_what_it_names(tmp_path, monkeypatch):
    one = Machine(tmp_path / "one")
    one.run(program(), "--flor", "np")
    monkeypatch.setenv("FLOR_HOME", str(one.home))
    target, there = targets.Folder(tmp_path / "spool"), {}
    put, put_bytes = target.put, target.put_bytes

    def counted(name, path, size):
        put(name, path, size)
        there[name[len("np/1/") :]] = size

    def checked(name, data):
        for inner, entry in spooling.decode(data, name).files.items():
            assert there[inner] == entry.size
        put_bytes(name, data)

    monkeypatch.setattr(target, "put", counted)
    monkeypatch.setattr(target, "put_bytes", checked)
    monkeypatch.setattr(spooling, "_PACE", 0)
    monkeypatch.setattr(spooling, "_RARE", 0)
    spooling.Copier(lambda: target, store.find_version("np")).round()
    assert len(there) > 10


def test_an_index_leads_nowhere_else(tmp_path):
    entry = [1, "0" * 64]
    good = {"format": 1, "id": "x", "files": {"checkpoints/b/epoch=1.safetensors": entry, "log.jsonl": entry}}
    assert spooling.decode(json.dumps(good).encode(), "here").identity == "x"
    for name in ("../log.jsonl", "/etc/passwd", "checkpoints/../../x", "checkpoints/a/../b", "initial/.x", "a", "",
                 "checkpoints/a\\b/c", "replays/x.jsonl", "checkpoints/a/b/c"):  # fmt: skip
        with pytest.raises(DataLoss, match="is no index of a recording"):
            spooling.decode(json.dumps(good | {"files": {name: entry}}).encode(), "here")
    for bad in (
        b"",
        b"[]",
        b"{}",
        json.dumps(good | {"format": 2}).encode(),
        b'{"format":1,"id":"x","files":{"log.jsonl":[-1,""]}}',
    ):
        with pytest.raises(DataLoss, match="is no index of a recording"):
            spooling.decode(bad, "here")


def test_urls_and_flags(tmp_path, monkeypatch):
    assert targets.check("s3://bucket/some/prefix/") == ("s3", "bucket", "some/prefix")
    assert targets.check("file:///tmp/a%20b") == ("", "/tmp/a b", "")
    for url in ("gs://bucket/x", "s3:///x", "file://host/x", "s3://b/x?y"):
        with pytest.raises(InvalidArgument, match="accepted are a folder"):
            targets.check(url)
    monkeypatch.setenv("FLOR_HOME", str(tmp_path))
    with pytest.raises(InvalidArgument, match="the recordings themselves are there"):
        targets.check(str(tmp_path))
    flags, left = command_line.parse(["--flor", "np", "--flor_spool=s3://b/p", "x"], {"FLOR_SPOOL": "/y"})
    assert (flags.SPOOL, left) == ("s3://b/p", ["x"])
    assert command_line.parse(["--flor", "np"], {"FLOR_SPOOL": "/y"})[0].SPOOL == "/y"
    for words in (["--flor_spool", "/y"], ["--flor", "np", "--flor_spool"]):
        with pytest.raises(InvalidArgument, match="--flor_spool needs"):
            command_line.parse(words, {})


def test_without_boto3_the_remedy_is_said_before_training(tmp_path):
    text = "import sys; sys.modules['boto3'] = None\nimport importlib.util as u; find = u.find_spec\n"
    text += "u.find_spec = lambda name, *more: None if name == 'boto3' else find(name, *more)\n" + program()
    done = Machine(tmp_path / "one").run(text, "--flor", "np", "--flor_spool", "s3://bucket/x", fails=True)
    assert "needs the package boto3: pip install 'espalier[s3]'" in done.stderr
    assert done.stdout == ""


def test_workers_of_a_data_loader_do_not_keep_the_copier_of_a_killed_program(tmp_path):
    url = str(tmp_path / "spool")
    child = "(os.fork() == 0 and (os.close(1), os.close(2), time.sleep(120), os._exit(0))) if epoch == 0 else None"
    killed = "time.sleep(0.2)\n    if epoch == 7: os.kill(os.getpid(), 9)"
    began = time.monotonic()
    done = Machine(tmp_path / "one").run(
        program(child + "\n    " + killed), "--flor", "np", "--flor_spool", url, fails=True
    )
    assert time.monotonic() - began < 15
    assert "copied np@1" in done.stderr


def test_fetching_is_tried_again_and_a_local_recording_needs_no_spool(tmp_path, monkeypatch):
    one = Machine(tmp_path / "one")
    one.run(program(), "--flor", "np")
    monkeypatch.setenv("FLOR_HOME", str(one.home))
    away = tmp_path / "file"
    away.write_bytes(b"")
    assert str(fetching.find_version(str(away / "spool"), "np")) == "np@1"
    with pytest.raises((OSError, LookupError)):
        fetching.find_version(str(away / "spool"), "other")
    with contextlib.suppress(FailedPrecondition):
        fetching.bring_records(str(tmp_path / "empty"), "np")
