#!/usr/bin/python3
"""The largest batch that trains within a memory limit, with and without memory planning, and what it costs.

    tests/benchmarks/max_batch_size.py --programs build/bin [--memory-mib 64] [--rounds 3]

One worker with that limit trains LLaMAs of several depths. Batches are found by doubling and bisection on
whether the planner succeeds; then both batches train a few steps alternately, and the median time of an example is compared.
Swapped tensors lie in memory; copies and computation share the cores.
"""

import argparse
import json
import os
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))

NEVER = ["--no-swap", "--no-recompute"]
MODELS = {f"LLaMA, {n} layers": f"llama:hidden=64,layers={n},heads=4" for n in (8, 16, 32)}


def fits(cluster, model, memory_mib, batch, flags):
    try:
        cluster.run("plan", f"--model={model}", "-b", str(batch), "--single-device", "--devices=1", f"--device-memory={memory_mib / 1024}", *flags)
        return True
    except cluster_module.Failed as error:
        if "does not fit" not in error.err:
            raise
        return False


def largest(cluster, model, memory_mib, flags):
    low, high = 0, 1
    while fits(cluster, model, memory_mib, high, flags):
        low, high = high, 2 * high
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(cluster, model, memory_mib, middle, flags) else (low, middle)
    return low


def seconds_per_example(cluster, model, batch, text, flags):
    """None if the kernels' own workspace does not fit beside the program: the planner does not know it."""
    job = cluster.wait_for_job(cluster.train(f"--model={model}", f"--dataset={text}", "-b", str(batch), "--steps=8", "--single-device", "--holdout=0", *flags))
    if job["state"].upper() != "SUCCEEDED":
        if "workspace" in job["error"]:
            return None
        raise SystemExit(f"batch {batch} of {model}: {job['error']}")
    return job["median_step_seconds"] / batch


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", required=True, help="bazel-bin of a release build")
    parser.add_argument("--memory-mib", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.chdir(os.path.join(HERE, "..", ".."))
    global cluster_module
    import cluster as cluster_module

    for name, place in {"espalier": "client", "espalierd": "server", "espalier-worker": "worker"}.items():
        cluster_module.PROGRAMS[name] = os.path.abspath(os.path.join(options.programs, place, name))
    text = os.path.abspath("tests/data/genesis.txt")
    rows = []
    with cluster_module.Cluster(workers=1, worker_flags=[f"--memory-limit={options.memory_mib << 20}"]) as cluster:
        for name, model in MODELS.items():
            batches, times = [], []
            for flags in (NEVER, []):
                batch = largest(cluster, model, options.memory_mib, flags)
                while (seconds := seconds_per_example(cluster, model, batch, text, flags)) is None:
                    batch -= max(1, batch // 16)
                batches.append(batch)
                times.append([seconds])
            for _ in range(options.rounds - 1):
                for batch, flags, seconds in zip(batches, (NEVER, []), times):
                    seconds.append(seconds_per_example(cluster, model, batch, text, flags))
            without, planned = batches
            alone, swapping = (statistics.median(t) for t in times)
            rows.append(
                {
                    "model": name,
                    "largest batch without": without,
                    "with": planned,
                    "ratio": planned / without,
                    "ms per example without": 1e3 * alone,
                    "ms with": 1e3 * swapping,
                    "slowdown": swapping / alone,
                }
            )
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{options.memory_mib} MiB, {options.rounds} rounds, medians")
    print("model              batch without   with   ratio   ms/example without    with   slowdown")
    for row in rows:
        print("{model:18} {largest batch without:13d} {with:6d} {ratio:6.1f}x {ms per example without:20.2f} {ms with:7.2f} {slowdown:9.2f}x".format(**row))


if __name__ == "__main__":
    main()
