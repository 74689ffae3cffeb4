#!/usr/bin/python3
"""Throughput of a model with a large vocabulary on one worker that returns logits, or only sampled tokens, to the coordinator.

    bazel run --config=release //tests/benchmarks:worker_side_sampling [-- --baseline=DIR]

Real processes on loopback, of --threads each. The model (hidden 64, 2 layers, a vocabulary of 128,256) is trained for one step.
Outputs of 32 tokens after prompts of 32: greedy, sampled (temperature 1), with a repetition
penalty, with log-probabilities, and within a regular expression (--modes). DIR holds espalierd and espalier-worker of another
version, which takes turns with this one, first in every other round. A round before these does not count. Medians are printed, and
those of the ratios of the same round.
"""
import argparse
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import cluster as programs  # noqa: E402

MODEL = "llama:hidden=64,layers=2,heads=4,kv_heads=2,intermediate=128,positions=256,vocab=128256"
WAYS = {
    "greedy": [],
    "sampled": ["--temperature=1"],
    "penalties": ["--repetition-penalty=1.2"],
    "logprobs": ["--logprobs=5"],
    "form": ["--regex=[a-z ]{400,}"],
}


def start(folder, where, threads):
    now = dict(programs.PROGRAMS)
    for name in ("espalierd", "espalier-worker"):
        if folder:
            programs.PROGRAMS[name] = os.path.join(folder, name)
    made = programs.Cluster(workers=1, daemon_flags=[f"--serving-threads={threads}"], worker_flags=[f"--threads={threads}"])
    programs.PROGRAMS.update(now)
    text = os.path.join(programs.DATA, "genesis.txt")
    job = made.train(f"--model={MODEL}", "-d", text, "--sequence-length=16", "-b", "2", "--steps=1", "--name=lm")
    state = made.wait_for_job(job)
    assert state["state"].upper() == "SUCCEEDED", state
    made.run("serve", "lm", "--max-requests-per-batch=32", "--no-prefix-cache", *where)
    return made


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--rounds", type=int, default=5)
    flags.add_argument("--concurrency", default="1,4,16")
    flags.add_argument("--modes", default=",".join(WAYS))
    flags.add_argument("--baseline")
    flags.add_argument("--threads", type=int, default=1)
    flags.add_argument("--coordinator", action="store_true", help="served there, by no worker")
    flags.add_argument("--serve", default="", help="more flags of `espalier serve`, as --ssm=lm")
    flags = flags.parse_args()
    ways = {way: WAYS[way] for way in flags.modes.split(",")}
    loads = [int(load) for load in flags.concurrency.split(",")]
    where = [] if flags.coordinator else ["--tensor-parallel=1"]
    where += flags.serve.split()
    clusters = {"now": start(None, where, flags.threads)}
    if flags.baseline:
        clusters["baseline"] = start(flags.baseline, where, flags.threads)
    rates = {}
    try:
        for number in range(-1, flags.rounds):
            turns = list(clusters.items())[::-1 if number % 2 else 1]
            for way, how in ways.items():
                for load in loads:
                    for version, one in turns:
                        text = os.path.join(programs.DATA, "genesis.txt")
                        done = one.run("bench", "lm", f"--requests={2 * load}", f"--concurrency={load}", "--prompt-length=32",
                                       f"--prompts-from={text}", "--max-tokens=32", *how)
                        assert done["failed"] == 0, done
                        # Builds before the end of November 2026 had a name of their own.
                        rate = done.get("output_throughput") or done["output_tokens_per_second"]
                        if number >= 0:
                            rates.setdefault((way, load), {}).setdefault(version, []).append(rate)
    finally:
        for one in clusters.values():
            one.close()
    print(f"{'tokens/s':20}" + "".join(f"{load:>8} at once" for load in loads))
    for way in ways:
        for version in clusters:
            print(f"{way + ', ' + version:20}" + "".join(f"{statistics.median(rates[way, load][version]):16.0f}" for load in loads))
        if flags.baseline:
            ratios = [[a / b for a, b in zip(rates[way, load]["now"], rates[way, load]["baseline"])] for load in loads]
            print(f"{'  ratio':20}" + "".join(f"{statistics.median(r):9.2f} ± {statistics.stdev(r) if len(r) > 1 else 0:.2f}" for r in ratios))


if __name__ == "__main__":
    main()
