#!/usr/bin/python3
"""Pipeline-parallel serving under load: two stages with one step in flight and with one per stage, compared with a single worker
and with tensor parallelism over two.

    bazel run --config=release //tests/benchmarks:pipeline_parallel_serving

Real processes on loopback, one thread for each worker. The model (hidden 512, 8 layers, 8 heads, 4 KV heads, intermediate 1408,
47 MB of f32 weights) is trained for one step; all ways of serving it must give equal outputs.
Greedy answers of 32 tokens after prompts of 64; with --ngram, trees of n-gram drafts of up to 4 tokens for each request, which
make steps of many rows. Then one prompt of 768 tokens, in chunks of 96. All ways take turns; medians are printed, and
those of the ratios to one step at a time of the same round.
"""
import argparse
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from cluster import DATA, Cluster  # noqa: E402

MODEL = "llama:hidden=512,layers=8,heads=8,kv_heads=4,intermediate=1408,positions=1024"
STAGES = ["--pipeline-parallel=2"]
BASE = "two stages, one step"
WAYS = {"one worker": ["--tensor-parallel=1"], "two, tensor parallel": ["--tensor-parallel=2"],
        BASE: [*STAGES, "--concurrent-steps=1"], "two stages, two steps": STAGES}
PROMPT = 768


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--rounds", type=int, default=5)
    flags.add_argument("--concurrency", default="1,4,16,32")
    flags.add_argument("--ngram", type=int, default=0)
    flags = flags.parse_args()
    loads = [int(load) for load in flags.concurrency.split(",")]
    rates = {way: {what: [] for what in [*loads, "prompt"]} for way in WAYS}
    with Cluster() as cluster:
        job = cluster.train(f"--model={MODEL}", "-d", os.path.join(DATA, "genesis.txt"), "--sequence-length=16", "-b", "2",
                            "--steps=1", "--name=lm")
        state = cluster.wait_for_job(job)
        assert state["state"].upper() == "SUCCEEDED", state
        text = os.path.join(DATA, "genesis.txt")
        extra = [f"--ngram={flags.ngram}"] if flags.ngram else []
        for _ in range(flags.rounds):
            for way, where in WAYS.items():
                served = cluster.run("serve", "lm", "--name=it", "--max-requests-per-batch=32", "--no-prefix-cache",
                                     "--max-tokens-per-batch=96", *extra, *where)
                assert served["concurrent_steps"] == (2 if way == "two stages, two steps" else 1), served
                for load in loads:
                    done = cluster.run("bench", "it", f"--requests={2 * load}", f"--concurrency={load}", "--prompt-length=64",
                                       f"--prompts-from={text}", "--max-tokens=32")
                    assert done["failed"] == 0, done
                    rates[way][load].append(done["output_throughput"])
                speed = cluster.run("bench", "it", f"--pp={PROMPT}", "--repetitions=3")
                rates[way]["prompt"].append(speed[0]["avg_ts"])
                cluster.run("unserve", "it")
    print(f"{'':24}" + "".join(f"{load:>9} at once" for load in loads) + f"{'prompt':>17}")
    for way, of in rates.items():
        print(f"{way:24}" + "".join(f"{statistics.median(of[what]):11.0f} tok/s" for what in of))
        if way != BASE:
            ratios = {what: [a / b for a, b in zip(of[what], rates[BASE][what])] for what in of}
            print(f"{'':24}" + "".join(f"{statistics.median(ratios[what]):12.2f} x   " for what in of))


if __name__ == "__main__":
    main()
