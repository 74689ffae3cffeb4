"""Seconds from a call of espalier.fit to its first step, against `espalier train` with the same graph and data.

The command's time includes the start of its process; fit's is taken in a program that runs, and in a new one, too.
The dataset is known to the daemon, the plan is that of a single device. Alternates the three, prints medians.

    python_submit.py [RUNS]      by default 15
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
PACKAGE = os.path.join(ROOT, "client", "python")
sys.path[:0] = [os.path.join(PACKAGE, "tests"), PACKAGE]
if __name__ == "__main__" and os.environ.get("ESPALIER_ENVIRONMENT") != "python":
    from python_environment import NEWEST

    os.environ["ESPALIER_ENVIRONMENT"] = "python"
    os.execv(NEWEST.python(), [NEWEST.python(), *sys.argv])

import espalier
import numpy as np
import small
from espalier.training import Callback, fit

STEPS, BATCH = 50, 32
SEARCH = {"strategy": "single_device"}


def programs():
    for folder in (os.path.join(ROOT, "build", "bin"), ROOT):
        if os.path.exists(os.path.join(folder, "server", "espalierd")):
            return folder
    raise SystemExit(
        "no espalierd: bazel build --config=release //server:espalierd //worker:espalier-worker //client:espalier"
    )


class FirstStep(Callback):
    def __init__(self):
        self.at = None

    def on_step(self, run, step, values):
        self.at = self.at or time.perf_counter()


def by_fit(client, data):
    first = FirstStep()
    begin = time.perf_counter()
    fit(
        small.graph(),
        data,
        optimizer="sgd",
        batch_size=BATCH,
        steps=STEPS,
        search=SEARCH,
        client=client,
        verbose=0,
        callbacks=[first],
    )
    return first.at - begin


def by_command(client, graph, data):
    command = [
        os.path.join(os.environ["ESPALIER_BIN"], "client", "espalier"),
        "train",
        "--json",
        "--single-device",
        f"--graph={graph}",
        f"-d={data}",
        f"--steps={STEPS}",
        f"-b={BATCH}",
        "--holdout=0",
        "--optimizer=sgd",
        f"--coordinator={client.address}",
    ]
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    at = None
    for line in process.stdout:
        if at is None and "step" in json.loads(line):
            at = time.perf_counter()
    if process.wait() != 0 or at is None:
        raise SystemExit("espalier train failed")
    return at - begin


def by_new_program(client):
    program = [sys.executable, __file__, "--once", client.address]
    begin = time.perf_counter()
    process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    took = time.perf_counter() - begin
    process.communicate()
    if process.returncode != 0 or line != "first\n":
        raise SystemExit("fit in a new program failed")
    return took


def once(address):
    class Say(Callback):
        def on_step(self, run, step, values):
            if step == 0:
                print("first", flush=True)

    fit(
        small.graph(),
        small.examples(),
        optimizer="sgd",
        batch_size=BATCH,
        steps=STEPS,
        search=SEARCH,
        verbose=0,
        client=espalier.Client(address),
        callbacks=[Say()],
    )


def main():
    if sys.argv[1:2] == ["--once"]:
        once(sys.argv[2])
        return
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    os.environ["ESPALIER_BIN"] = programs()
    data = small.examples()
    times = {"espalier train": [], "fit": [], "fit in a new program": []}
    with (
        tempfile.TemporaryDirectory() as folder,
        espalier.local(workers=1, flags=["--measure-seconds=0"]) as client,
    ):
        graph, npz = os.path.join(folder, "graph.pb"), os.path.join(folder, "data.npz")
        with open(graph, "wb") as file:
            file.write(small.graph().proto.SerializeToString())
        np.savez(npz, **data)
        for run in range(runs + 1):
            found = (
                by_command(client, graph, npz),
                by_fit(client, data),
                by_new_program(client),
            )
            if run > 0:  # the first one uploads
                for name, took in zip(times, found, strict=True):
                    times[name].append(took)
    base = statistics.median(times["espalier train"])
    print(f"{'':22}{'median ms':>10}{'least ms':>10}{'over train':>12}")
    for name, found in times.items():
        median = statistics.median(found)
        print(
            f"{name:22}{1e3 * median:10.1f}{1e3 * min(found):10.1f}{1e3 * (median - base):12.1f}"
        )


if __name__ == "__main__":
    main()
