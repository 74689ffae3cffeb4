#!/usr/bin/python3
"""Measured time per round of serving placements, compared with the predictions of --workers=auto: coordinator's process, one
and two workers, with and without an SSM.

    bazel run --config=release //tests/benchmarks:serving_placements

Real processes on loopback, one thread for each. The model (hidden 512, 8 layers, 8 heads, 4 KV heads, intermediate
1408, 47 MB of f32 weights) and the small one (hidden 256, 2 layers) are trained for one step: what they say is of no
interest. Greedy, one request at a time, after a prompt of 16 tokens that the cache has; drafts are chains of three. A round is
one step of the LLM and the drafting before it. All placements take turns, and medians are printed.
"""
import argparse
import json
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
from cluster import DATA, Cluster  # noqa: E402

MODELS = {"lm": "llama:hidden=512,layers=8,heads=8,kv_heads=4,intermediate=1408,positions=256",
          "ssm": "llama:hidden=256,layers=2,heads=4,kv_heads=2,intermediate=704,positions=256"}
DRAFTS = ["--ssm=ssm", "--expansion=1,1,1"]
# (LLM, SSM): tensor by pipeline parallel; 0 by 0: the coordinator's process. Workers are two, so that the small model
# beside an LLM on both shares one of them.
HERE, ONE, TENSOR, STAGES = (0, 0), (1, 1), (2, 1), (1, 2)
PLACES = [(HERE, None), (ONE, None), (TENSOR, None), (STAGES, None), (HERE, HERE), (ONE, HERE), (ONE, ONE), (TENSOR, HERE),
          (TENSOR, ONE), (STAGES, ONE)]
NAMES = {HERE: "coordinator", ONE: "one worker", TENSOR: "two, tensor", STAGES: "two, stages", None: "none"}


def degrees(place):
    return int(place.get("tensor_parallel", 0)), int(place.get("pipeline_parallel", 0))


def predictions(cluster, drafts):
    """Seconds of a round by place: of those that the search shows, the fastest workers for each."""
    served = cluster.run("serve", "lm", "--name=it", "--workers=auto", "--expected-requests=1", *drafts)
    cluster.run("unserve", "it")
    found = {}
    for candidate in served["candidates"]:
        if candidate.get("refused"):
            continue
        ssms = candidate.get("ssms", [])
        place = degrees(candidate.get("llm", {})), degrees(ssms[0]) if ssms else None
        seconds = candidate["llm_seconds"] + candidate.get("draft_seconds", 0)
        found[place] = min(seconds, found.get(place, seconds))
    return found


def flags_of(llm, ssm):
    flags = [] if llm == HERE else [f"--tensor-parallel={llm[0]}", f"--pipeline-parallel={llm[1]}"]
    if ssm is not None:
        flags += DRAFTS
        if ssm != HERE:
            flags += [f"--ssm-tensor-parallel={ssm[0]}", f"--ssm-pipeline-parallel={ssm[1]}"]
    return flags


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--rounds", type=int, default=5)
    flags.add_argument("--tokens", type=int, default=64)
    flags = flags.parse_args()
    with Cluster() as cluster:
        for name, model in MODELS.items():
            job = cluster.train(f"--model={model}", "-d", os.path.join(DATA, "genesis.txt"), "--sequence-length=16",
                                "-b", "2", "--steps=1", f"--name={name}")
            state = cluster.wait_for_job(job)
            assert state["state"].upper() == "SUCCEEDED", state
        predicted = {**predictions(cluster, []), **predictions(cluster, DRAFTS)}
        times = {place: [] for place in PLACES}
        answers = set()
        body = json.dumps({"model": "it", "prompt": "And God said, Le", "max_tokens": flags.tokens, "temperature": 0,
                           "ignore_eos": True})
        for _ in range(flags.rounds):
            for place in PLACES:
                cluster.run("serve", "lm", "--name=it", *flags_of(*place))
                for measured in (False, True):
                    begin = time.time()
                    status, text = cluster.request("POST", "/v1/completions", body)
                    seconds = time.time() - begin
                    assert status == 200, text
                reply = json.loads(text)
                answers.add(reply["choices"][0]["text"])
                rounds = reply["usage"].get("speculation", {}).get("verification_steps") or flags.tokens
                times[place].append(seconds / rounds)
                cluster.run("unserve", "it")
    print(f"{'LLM':12} {'small model':12} {'ms a round':>11} {'predicted':>10} {'off by':>8}")
    for place in sorted(PLACES, key=lambda p: (p[1] is not None, statistics.median(times[p]))):
        took = statistics.median(times[place])
        guess = predicted.get(place)
        text = f"{1000 * guess:10.2f} {100 * (guess / took - 1):+7.0f}%" if guess else f"{'not shown':>10}"
        print(f"{NAMES[place[0]]:12} {NAMES[place[1]]:12} {1000 * took:11.2f} {text}")
    print("all answers are the same" if len(answers) == 1 else f"{len(answers)} different answers")


if __name__ == "__main__":
    main()
