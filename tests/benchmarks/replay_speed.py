"""How fast recorded training answers: a full replay on two workers against one, a question about one epoch of 200 against
an epoch of the training, and questions on parameters at all checkpoints, and evaluations of them, against the training.

The job is the CNN on handwritten digits, or a small language model on part of Genesis, whose epochs take longer than loading it;
one worker of one thread trains. Seconds are the coordinator's, from the start of a job or replay to its end; medians over the
rounds, in turns. Each round asks about another epoch, as a checkpoint may lie just before it or long before.

    replay_speed.py [--job=digits|llm] [--rounds=5] [--epochs=200] [--only=one]
"""
import argparse
import collections
import json
import os
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))
from cluster import DATA, Cluster  # noqa: E402


def flags_of(job, folder):
    if job == "digits":
        return [f"--onnx={DATA}/digits_cnn.onnx", f"--dataset={DATA}/digits.npz", "--input", "labels=y", "--batch-size=64", "--lr=2e-3"]
    text = os.path.join(folder, "text.txt")
    with open(os.path.join(DATA, "genesis.txt"), "rb") as genesis, open(text, "wb") as part:
        part.write(genesis.read(40000))
    return ["--model=llama:tiny", f"--dataset={text}", "--sequence-length=32", "--batch-size=8", "--lr=2e-3"]


def replay(cluster, *flags):
    """Its seconds, and the replay."""
    lines = cluster.cli("replay", "recorded", *flags, "--json").stdout.splitlines()
    [done] = [line["replay"] for line in map(json.loads, lines) if isinstance(line.get("replay"), dict)]
    assert done["state"] == "REPLAY_SUCCEEDED", done
    assert all(segment["comparison"]["bits"] for segment in done["segments"] if "comparison" in segment), done
    return (done["finished_unix_ms"] - done["created_unix_ms"]) / 1000, done


def report(median, training, checkpoints, epochs):
    if "full, 2 workers" in median:
        print(f"full replay on two workers: {median['full, 1 worker'] / median['full, 2 workers']:.2f} times as fast as on one")
    if "one epoch" in median:
        epoch = training / epochs
        print(f"one epoch of {epochs}: {median['one epoch']:.3f} s, of which {median['one step']:.3f} s are those of a question about the "
              f"first step after a checkpoint; {(median['one epoch'] - median['one step']) / epoch:.2f} times an epoch's training "
              f"of {epoch:.3f} s")
    if "all checkpoints" in median:
        print(f"parameters at {checkpoints} checkpoints: {training / median['all checkpoints']:.0f} times as fast as the training")
    if "evaluations" in median:
        evaluated = checkpoints + 1
        print(f"evaluations at {evaluated} checkpoints: {median['evaluations']:.2f} s, "
              f"{1000 * median['evaluations'] / evaluated:.0f} ms each")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--job", default="digits", choices=["digits", "llm"])
    parser.add_argument("--only", default="", help="the questions with this in their names")
    options = parser.parse_args()
    with Cluster(workers=2, measure=True) as cluster:
        job = cluster.train(*flags_of(options.job, cluster.folder), f"--epochs={options.epochs}", "--holdout=0.2", "--max-devices=1",
                            "--name=recorded")
        record = cluster.wait_for_job(job, 1200)
        training = (record["finished_unix_ms"] - record["started_unix_ms"]) / 1000
        steps = record["total_steps"]
        epoch = steps // options.epochs
        print(f"training: {training:.2f} s, {steps} steps, {record['recorded_checkpoints']} checkpoints")
        kept = cluster.run("runs", "get", "recorded")["checkpoints"]
        checkpoints = [0, *(int(checkpoint["steps_done"]) for checkpoint in kept)]
        seconds = collections.defaultdict(list)

        def asked(number):
            first = options.epochs * (2 * number + 1) // (2 * options.rounds) * epoch
            loaded = max(step for step in checkpoints if step <= first)
            return {"full, 1 worker": ["--workers=1"], "full, 2 workers": ["--workers=2"],
                    "one epoch": [f"--steps={first}:{first + epoch}", "--log=norm(grad(*))", "--workers=1"],
                    "one step": [f"--steps={loaded}:{loaded + 1}", "--log=norm(grad(*))", "--workers=1"],
                    "all checkpoints": ["--at=checkpoints", "--log=norm(param(*))"],
                    "evaluations": ["--at=checkpoints", "--evaluate=holdout", "--workers=1"]}

        for number in range(options.rounds):
            for name, flags in asked(number).items():
                if options.only not in name:
                    continue
                took, done = replay(cluster, *flags)
                seconds[name].append(took)
                trained = sum(segment["end_step"] - segment["checkpoint_step"] for segment in done["segments"]
                              if segment["kind"] == "TRAINING")
                print(f"  {name}: {took:.3f} s, {trained} steps trained, {len(done['segments'])} segments, load "
                      f"{os.getloadavg()[0]:.1f}", flush=True)
        median = {name: statistics.median(values) for name, values in seconds.items()}
        report(median, training, record["recorded_checkpoints"], options.epochs)


if __name__ == "__main__":
    main()
