"""Milliseconds of a training step by hand (zero_gradients, forward, backward, update) over those of Session.step.

Both train a small CNN on the same rows of a dataset, by turns in one session each. Prints medians of the turns.

    python_session_loop.py [TURNS]      by default 11, of 100 steps each
"""

import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(HERE, "..", "..", "client", "python")
sys.path[:0] = [HERE, os.path.join(PACKAGE, "tests"), os.path.join(PACKAGE, "tests", "torch"), PACKAGE]
if __name__ == "__main__" and os.environ.get("ESPALIER_ENVIRONMENT") != "torch":
    from torch_environment import ENVIRONMENT

    os.environ["ESPALIER_ENVIRONMENT"] = "torch"
    os.execv(ENVIRONMENT.python(), [ENVIRONMENT.python(), *sys.argv])

import espalier
import numpy as np
import python_streaming

STEPS, BATCH, EXAMPLES = 100, 32, 512


def loop(session):
    session.zero_gradients()
    session.forward()
    session.backward()
    session.update()


def milliseconds(session, step):
    begin = time.perf_counter()
    for _ in range(STEPS):
        step(session)
    assert session.updates % STEPS == 0  # waits for the last one
    return (time.perf_counter() - begin) / STEPS * 1e3


def main():
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 11
    if "ESPALIER_BIN" not in os.environ:
        os.environ["ESPALIER_BIN"] = python_streaming.programs()
    rng = np.random.default_rng(1)
    side = python_streaming.SIDE
    data = {"x": rng.normal(size=(EXAMPLES, 3, side, side)).astype(np.float32), "labels": rng.integers(0, 10, EXAMPLES)}
    graph = python_streaming.graph(((16, 2), (32, 2)))
    for workers, strategy in ((1, "single_device"), (2, "data_parallel")):
        with espalier.local(workers=workers, flags=["--measure-seconds=0"]) as client:
            arguments = {"optimizer": "sgd", "batch_size": BATCH, "search": {"strategy": strategy}, "client": client}
            with espalier.Session(graph, data, **arguments) as session:
                times = {"loop": [], "step": []}
                for turn in range(turns + 1):
                    stepped = milliseconds(session, lambda s: s.step())
                    looped = milliseconds(session, loop)
                    if turn > 0:
                        times["step"].append(stepped)
                        times["loop"].append(looped)
        step, by_hand = statistics.median(times["step"]), statistics.median(times["loop"])
        over = statistics.median(a - b for a, b in zip(times["loop"], times["step"], strict=True))
        print(f"{workers} worker(s): step {step:.2f} ms, by hand {by_hand:.2f} ms, over it {over:.2f} ms", flush=True)


if __name__ == "__main__":
    main()
