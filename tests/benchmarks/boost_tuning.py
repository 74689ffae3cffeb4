#!/usr/bin/python3
"""Gain of boost-tuning with an LLM and SSM like the quickstart's: tokens per LLM step on held-out prompts.

    bazel run --config=release //tests/benchmarks:boost_tuning -- --text=FILE

Real processes on loopback: a coordinator and two workers, one thread for each. LLM and SSM are the quickstart's, trained on the text as there, with
so many steps as the flags say (the LLM less than there, so that a run takes minutes). Then `espalier boost-tune` with two SSMs from that one; greedy,
and with --temperatures sampled. A single SSM tuned for as many steps as both shows what the second one adds. With --soft-labels=N it is also tuned
to the LLM's N most probable tokens (0: to the sampled tokens only).
"""
import argparse
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from cluster import DATA, Cluster  # noqa: E402


def train(cluster, name, model, text, steps, rate):
    job = cluster.train(f"--model={model}", "-d", text, "--sequence-length=256", "-b", "8", f"--steps={steps}", f"--lr={rate}",
                        "--schedule=cosine", "--warmup=20", "--clip-norm=1", "--holdout=0.02", "--checkpoint-every=50", f"--name={name}")
    state = cluster.wait_for_job(job, 3600)
    assert state["state"].upper() == "SUCCEEDED", state["error"]
    print(f"{name}: {model}, {state['parameters'] / 1e6:.2f} M parameters, {steps} steps, held-out loss {state['evaluation']['loss']:.3f}", flush=True)


def worth(measure):
    return f"{measure['tokens_per_verification']:.2f}" if measure else ""


def tune(cluster, name, flags, ssms, steps, temperature, labels):
    begin = time.time()
    job = cluster.run("boost-tune", "llm", *["--ssm=ssm"] * ssms, "-d", flags.text, f"--name={name}", f"--max-prompts={flags.prompts}",
                      f"--prompt-tokens={flags.prompt_tokens}", f"--continuation-tokens={flags.tokens}", f"--steps={steps}", "-b", "16",
                      "--lr=2e-3", "--schedule=cosine", "--clip-norm=1", f"--expansion={flags.expansion}", f"--temperature={temperature}", f"--soft-labels={labels}",
                      f"--holdout={flags.holdout}")
    seconds = time.time() - begin
    for ssm in job["ssms"]:
        print(f"| {temperature:>11} | {labels:>6} | {ssm['output']:14} | {steps:>5} | {ssm['samples']:>7} | {ssm['learned']:>6} "
              f"| {worth(ssm.get('before')):>6} | {worth(ssm.get('after')):>5} |")
    if ssms > 1:
        print(f"| {temperature:>11} | {labels:>6} | {'merged':14} | {'':5} | {'':7} | {'':6} | {worth(job.get('before')):>6} | {worth(job.get('after')):>5} |", flush=True)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", default=os.path.join(DATA, "genesis.txt"))
    parser.add_argument("--llm", default="llama:llm")
    parser.add_argument("--ssm", default="llama:ssm")
    parser.add_argument("--llm-steps", type=int, default=200)
    parser.add_argument("--ssm-steps", type=int, default=300)
    parser.add_argument("--steps", type=int, default=200, help="of each SSM's tuning")
    parser.add_argument("--prompts", type=int, default=600)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--expansion", default="1,1,3,1,1")
    parser.add_argument("--temperatures", default="0.8,0")
    parser.add_argument("--soft-labels", default="0")
    parser.add_argument("--ssms", default="2,1", help="how many are tuned in turn; one trains for as many steps as the most of them together")
    parser.add_argument("--holdout", type=float, default=0.1)
    flags = parser.parse_args()
    numbers = [int(number) for number in flags.ssms.split(",")]
    with Cluster(lease=600.0) as cluster:  # workers may be stopped for a while, but do not die
        train(cluster, "llm", flags.llm, flags.text, flags.llm_steps, "2e-3")
        train(cluster, "ssm", flags.ssm, flags.text, flags.ssm_steps, "4e-3")
        print("\n| temperature | labels | SSM            | steps | samples | learnt | before | after |")
        print("|------------:|-------:|----------------|------:|--------:|-------:|-------:|------:|")
        seconds = {}
        for temperature in flags.temperatures.split(","):
            tag = temperature.replace(".", "-")
            for labels in flags.soft_labels.split(","):
                for ssms in numbers:
                    steps = flags.steps * max(numbers) // ssms
                    name = f"of-{ssms}-{tag}-{labels}"
                    seconds[name] = tune(cluster, name, flags, ssms, steps, temperature, labels)
        print("\nseconds: " + ", ".join(f"{name}: {s:.0f}" for name, s in seconds.items()))


if __name__ == "__main__":
    main()
