#!/usr/bin/python3
"""Tokens/s of one answer at a time: a model in the coordinator's process, on one worker, and cut over two.

    bazel run --config=release //tests/benchmarks:serving_on_workers

Real processes on loopback, one thread for each. The model (hidden 512, 8 layers, 8 heads, 4 KV heads, intermediate
1408, 47 MB of f32 weights) is trained for one step: what it says is of no interest. Greedy, without drafts, 64 tokens after a prompt of
16; all placements take turns, round by round, and the medians are printed.
"""
import argparse
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from cluster import DATA, Cluster  # noqa: E402

MODEL = "llama:hidden=512,layers=8,heads=8,kv_heads=4,intermediate=1408,positions=256"
PLACEMENTS = {"coordinator's process": [], "one worker": ["--tensor-parallel=1"],
              "two workers, tensor-parallel": ["--tensor-parallel=2"],
              "two workers, pipeline": ["--pipeline-parallel=2"]}


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--rounds", type=int, default=5)
    flags.add_argument("--tokens", type=int, default=64)
    flags = flags.parse_args()
    with Cluster() as cluster:
        job = cluster.train(f"--model={MODEL}", "-d", os.path.join(DATA, "genesis.txt"), "--sequence-length=16", "-b", "2",
                            "--steps=1", "--name=lm")
        state = cluster.wait_for_job(job)
        assert state["state"].upper() == "SUCCEEDED", state
        times = {name: [] for name in PLACEMENTS}
        answers = set()
        for _ in range(flags.rounds):
            # The two workers serve one model at a time.
            for name, placement in PLACEMENTS.items():
                cluster.run("serve", "lm", "--name=it", *placement)
                body = json.dumps({"model": "it", "prompt": "And God said, Le", "max_tokens": flags.tokens,
                                   "temperature": 0, "ignore_eos": True})
                for measured in (False, True):
                    begin = time.time()
                    status, text = cluster.request("POST", "/v1/completions", body)
                    assert status == 200, text
                    if measured:
                        times[name].append(time.time() - begin)
                answers.add(json.loads(text)["choices"][0]["text"])
                cluster.run("unserve", "it")
    print(f"{'where':32} {'tokens/s':>9} {'ms per token':>13}")
    for name, seconds in times.items():
        each = statistics.median(seconds) / flags.tokens
        print(f"{name:32} {1 / each:9.1f} {1000 * each:13.2f}")
    print("all answers are the same" if len(answers) == 1 else f"{len(answers)} different answers")


if __name__ == "__main__":
    main()
