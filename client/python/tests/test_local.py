"""espalier.local(): nothing stays behind, whatever ends the program."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import small

import espalier
from espalier import errors
from espalier.local_cluster import LocalCluster, find_program
from espalier.training_spec import make_spec
from espalier.v1 import training_pb2

PACKAGE = Path(__file__).absolute().parents[1]


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(pid):
    return [
        int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()
    ]


def gone(pids, seconds=15):
    end = time.monotonic() + seconds
    while any(map(alive, pids)):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


PROGRAM = """
import espalier, sys, time, os
from pathlib import Path
cluster = espalier.local(workers=1, flags=["--measure-seconds=0"])
{begin}
children = [int(c) for t in Path(f"/proc/{{cluster.pid}}/task").iterdir() for c in (t / "children").read_text().split()]
print(cluster.pid, *children, cluster.log.parent, flush=True)
{end}
"""


def start(begin, end):
    environment = dict(os.environ, PYTHONPATH=str(PACKAGE))
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(begin=begin, end=end)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    words = process.stdout.readline().split()
    if not words:
        pytest.fail(process.stderr.read())
    pids = [int(word) for word in words[:-1]]
    assert len(pids) >= 2
    assert all(map(alive, pids))
    return process, pids, Path(words[-1])


@pytest.mark.parametrize(
    ("begin", "end", "send"),
    [
        ("cluster.start()", "", None),  # no stop, no context
        ("cluster.start()", "sys.exit(3)", None),
        ("cluster.start()", "raise ValueError('x')", None),
        ("cluster.__enter__()", "time.sleep(60)", signal.SIGINT),
        ("cluster.start()", "time.sleep(60)", signal.SIGTERM),
        ("cluster.start()", "time.sleep(60)", signal.SIGKILL),
        ("cluster.start()", "os._exit(0)", None),
    ],
    ids=["end", "exit", "exception", "ctrl-c", "term", "kill", "os-exit"],
)
def test_no_process_and_no_folder_stays(begin, end, send):
    process, pids, folder = start(begin, end)
    assert folder.exists()
    if send is not None:
        process.send_signal(send)
    process.wait(20)
    assert gone(pids)
    end_at = time.monotonic() + 10
    while folder.exists() and time.monotonic() < end_at:
        time.sleep(0.05)
    assert not folder.exists()


def test_a_context_ends_the_daemon_after_an_exception():
    pids = []
    cluster = espalier.local(workers=1)

    def fails():
        with cluster as client:
            pids.extend([cluster.pid, *children(cluster.pid)])
            assert len(client.status().workers) == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert gone(pids, 0.1)
    assert cluster.pid is None


def test_a_client_of_an_ended_daemon_says_so():
    with espalier.local(workers=0) as client:
        assert client.jobs() == []
    with pytest.raises(errors.Unavailable, match=r"of espalier.local\(\) has ended.*within its context"):
        client.jobs()


def test_a_child_made_by_fork_does_not_end_it():
    with LocalCluster(0) as client:
        child = os.fork()
        if child == 0:
            import atexit

            atexit._run_exitfuncs()
            os._exit(0)
        os.waitpid(child, 0)
        assert len(client.status().workers) == 0


def test_a_data_folder_stays(tmp_path):
    with espalier.local(workers=0, data_dir=tmp_path / "data") as client:
        name = client.upload({"x": [1, 2, 3]})
    with espalier.local(workers=0, data_dir=tmp_path / "data") as client:
        assert [artifact.name for artifact in client.artifacts()] == [name]


def test_a_daemon_that_does_not_start_shows_its_log():
    with pytest.raises(errors.InternalError, match=r"ended at once(.|\n)*no-such-flag"):
        espalier.local(workers=0, flags=["--no-such-flag"]).start()


def test_where_programs_are_found(monkeypatch, tmp_path):
    real = find_program()
    monkeypatch.setenv("ESPALIER_BIN", str(tmp_path))
    with pytest.raises(errors.NotFound, match=f"looked for {tmp_path}.*ESPALIER_BIN=FOLDER"):
        espalier.local().start()
    monkeypatch.delenv("ESPALIER_BIN")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(errors.NotFound, match="and the PATH"):
        find_program()
    (tmp_path / "espalierd").symlink_to(real)
    assert find_program() == tmp_path / "espalierd"
    for workers in (-1, "2", 1.0):
        with pytest.raises(errors.InvalidArgument, match=f"workers is {workers!r}; accepted: an integer of 0 or more"):
            espalier.local(workers=workers)


def test_nobody_waits_for_a_daemon_that_has_ended():
    cluster = espalier.local(workers=1, flags=["--measure-seconds=0"])
    client = cluster.start()
    try:
        graph = small.graph()
        spec = make_spec(graph, optimizer="sgd", batch_size=16, steps=3_000_000)
        spec.dataset.uri = "artifact:" + client.upload(small.examples())
        spec.dataset.format = training_pb2.Dataset.NPZ
        job = client.submit(spec, graph=graph)
        os.kill(cluster.pid, signal.SIGKILL)
        begin = time.monotonic()
        with pytest.raises(errors.Unavailable, match=r"ended by itself .*-9"):
            job.wait()
        assert time.monotonic() - begin < 60  # the connection's own time is 120 s
    finally:
        cluster.stop()
