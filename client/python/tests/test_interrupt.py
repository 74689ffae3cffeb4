"""Ctrl-C in fit, and a coordinator that dies: nothing hangs, and the job's fate is said."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
import small

import espalier
from espalier import errors, optimizers
from espalier.training import Callback, fit
from espalier.v1 import training_pb2

PACKAGE = Path(__file__).absolute().parents[1]
SCRIPT = """
import sys
sys.path[:0] = [{tests!r}, {package!r}]
import espalier, small
client = espalier.Client({address!r})
print("begin", flush=True)
graph = small.graph("interrupted")
espalier.fit(graph, small.examples(), optimizer="sgd", batch_size=32, steps=3_000_000, client=client)
"""


def script(client):
    return SCRIPT.format(tests=str(Path(__file__).parent), package=str(PACKAGE), address=client.address)


# Reads the events of a job again and again, and is interrupted at a random moment.
MANY = """
import os, random, signal, sys, threading, time
sys.path[:0] = [{tests!r}, {package!r}]
import espalier
from espalier.job import Position
job = espalier.Client({address!r}).job({job!r})
interrupted = 0
for _ in range(300):
    reading = threading.Event()
    def interrupt():
        reading.wait()
        time.sleep(random.uniform(0.0, 0.02))
        os.kill(os.getpid(), signal.SIGINT)
    thread = threading.Thread(target=interrupt)
    try:
        thread.start()
        while True:
            for event in job._events_after(Position()):
                reading.set()
    except KeyboardInterrupt:
        interrupted += 1
    thread.join()
print(interrupted)
"""


def running_job(client, known):
    end = time.monotonic() + 20
    while time.monotonic() < end:
        for job in client.jobs():
            if job.id not in known and job.steps_done > 0:
                return client.job(job.id)
        time.sleep(0.05)
    pytest.fail("no job runs")
    return None


class Program:
    """fit in a process of its own, with or without a terminal."""

    def __init__(self, client, terminal):
        self.known = {job.id for job in client.jobs()}
        self.master, slave = pty.openpty() if terminal else (None, subprocess.PIPE)
        self.process = subprocess.Popen(
            [sys.executable, "-c", script(client)],
            stdin=slave if terminal else subprocess.DEVNULL,
            stdout=slave if terminal else subprocess.PIPE,
            stderr=slave if terminal else subprocess.STDOUT,
            start_new_session=True,
        )
        if terminal:
            os.close(slave)
        self.output = ""
        self.job = running_job(client, self.known)

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)

    def read_until(self, pattern, seconds=20):
        end = time.monotonic() + seconds
        while not re.search(pattern, self.output):
            if time.monotonic() > end or not select.select([self.master], [], [], 1)[0]:
                if time.monotonic() > end:
                    pytest.fail(f"no {pattern!r} in {self.output[-2000:]!r}")
                continue
            try:
                self.output += os.read(self.master, 65536).decode(errors="replace")
            except OSError:
                break

    def answer(self, text):
        self.output = ""
        os.write(self.master, text.encode())

    def end(self):
        """Drains the terminal until the program has ended; its exit code."""
        end = time.monotonic() + 20
        while self.process.poll() is None and time.monotonic() < end:
            if self.master is None:
                self.output += self.process.communicate(timeout=20)[0].decode()
            elif select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.output += os.read(self.master, 65536).decode(errors="replace")
                except OSError:
                    self.process.wait(10)
        return self.process.wait(1)


def test_ctrl_c_without_a_terminal_cancels_the_job(daemon):
    program = Program(daemon, terminal=False)
    program.interrupt()
    assert program.end() in (1, -signal.SIGINT)
    assert f"job {program.job.id} was cancelled" in program.output
    assert "KeyboardInterrupt" in program.output
    assert program.job.state == "cancelled"


@pytest.mark.parametrize("answer", ["c\n", "\x03"], ids=["answer", "second ctrl-c"])
def test_ctrl_c_in_a_terminal_cancels_if_asked(daemon, answer):
    program = Program(daemon, terminal=True)
    program.interrupt()
    program.read_until(r"\[w\]ait on, \[c\]ancel it, or \[l\]eave it running\?")
    assert program.job.state == "running"
    if answer == "\x03":
        program.interrupt()
    else:
        program.answer(answer)
    assert program.end() in (1, -signal.SIGINT)
    assert program.job.state == "cancelled"


def test_ctrl_c_in_a_terminal_waits_on_or_leaves_it(daemon):
    program = Program(daemon, terminal=True)
    program.interrupt()
    program.read_until(r"running\?")
    program.answer("w\n")
    program.read_until(r"step +\d+/3000000")
    program.interrupt()
    program.read_until(r"running\?")
    program.answer("l\n")
    assert program.end() in (1, -signal.SIGINT)
    assert f"job {program.job.id} goes on" in program.output
    assert program.job.state == "running"
    assert program.job.cancel() == "cancelled"


def test_many_interrupts_leave_the_connection_usable(daemon):
    """gRPC's locks survive an exception of a signal handler, wherever it comes."""
    # Of a job that has ended: one that runs would take the processors from the reader.
    job = fit(small.graph(), small.examples(), optimizer="sgd", batch_size=32, steps=2000, verbose=0).job
    places = {"tests": str(Path(__file__).parent), "package": str(PACKAGE)}
    many = MANY.format(**places, address=daemon.address, job=job.id)
    found = subprocess.run([sys.executable, "-c", many], capture_output=True, text=True, timeout=90, check=False)
    assert found.stdout.strip() == "300", found.stderr[-2000:]


class Listen(Callback):
    """Reads all events of a job in a thread."""

    def on_begin(self, run):
        self.messages = []
        self.thread = threading.Thread(target=self.read, args=[run.job])
        self.thread.start()

    def read(self, job):
        for event in job.events():
            if event.WhichOneof("event") == "message":
                self.messages.append(event.message)


class Kill(Callback):
    """Kills the daemon at a step, and starts it again after a while."""

    def __init__(self, cluster, step, restart):
        self.cluster, self.step, self.restart = cluster, step, restart

    def on_step(self, run, step, values):
        if step == self.step:
            self.step = -1
            os.kill(self.cluster.pid, signal.SIGKILL)
            threading.Timer(1.0, self.restart).start()


def free_port():
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def test_fit_goes_on_when_the_coordinator_comes_back(tmp_path):
    """The daemon is killed in the middle: fit reconnects, and the curve is the undisturbed one."""
    flags = [f"--listen=127.0.0.1:{free_port()}", "--measure-seconds=0", "--worker-return-timeout=1"]
    data = small.examples(512)
    first = espalier.local(workers=1, data_dir=tmp_path / "data", flags=flags)
    second = espalier.local(workers=1, data_dir=tmp_path / "data", flags=flags)
    client = first.start()
    listen = Listen()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = fit(
                small.graph(),
                data,
                optimizer=optimizers.SGD(0.05),
                batch_size=16,
                steps=12_000,
                checkpoint_every=500,
                shuffle=False,
                client=client,
                callbacks=[listen, Kill(first, 3000, second.start)],
                verbose=0,
            )
        assert result.job.record.attempts == 2
        said = [str(warning.message) for warning in caught if issubclass(warning.category, errors.EspalierWarning)]
        assert any("connection to the coordinator" in text for text in said)
        assert any("the coordinator was started again; going on from step" in text for text in said)
        losses, _, _ = small.train(data, 12_000, 16, 0.05)
        assert result.history["loss"] == pytest.approx(losses, abs=1e-4)
        assert len(result.weights()) == 4
        listen.thread.join(20)
        record = client.call("Training", "Get", training_pb2.GetJobRequest(job_id=result.job.id, with_reports=True))
        assert [m for m in listen.messages if "connection to the coordinator" not in m.text] == list(record.messages)
    finally:
        second.stop()
        first.stop()


def test_a_coordinator_that_stays_away_ends_fit_with_a_remedy(tmp_path):
    cluster = espalier.local(workers=1, flags=[f"--listen=127.0.0.1:{free_port()}", "--measure-seconds=0"])
    client = cluster.start()
    object.__setattr__(client._settings, "watch_retry_for", 2.0)
    start = time.monotonic()
    try:
        with (
            pytest.warns(errors.EspalierWarning, match="connection to the coordinator at .* lost, trying for 2 s"),
            pytest.raises(errors.Unavailable, match=r"client\.job\('job-1'\)\.wait\(\)"),
        ):
            fit(
                small.graph(),
                small.examples(),
                optimizer="sgd",
                batch_size=32,
                steps=3_000_000,
                client=client,
                callbacks=[Kill(cluster, 100, lambda: None)],
                verbose=0,
            )
        assert time.monotonic() - start < 25
    finally:
        cluster.stop()
