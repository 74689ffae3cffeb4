"""How fast recorded training answers: a full replay on two workers against one, a question about one epoch of 200 against
an epoch of the training, and questions on parameters at all checkpoints, and evaluations of them, against the training.

The job is the CNN on handwritten digits, trained by one worker of one thread. Seconds are the coordinator's, from the start
of a job or replay to its end; medians over the rounds, in turns.

    replay_speed.py [--rounds=5] [--epochs=200]
"""
import argparse
import json
import os
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))
from cluster import DATA, Cluster  # noqa: E402


def replay(cluster, *flags):
    """Its seconds, and the replay."""
    lines = cluster.cli("replay", "digits", *flags, "--json").stdout.splitlines()
    [done] = [line["replay"] for line in map(json.loads, lines) if isinstance(line.get("replay"), dict)]
    assert done["state"] == "REPLAY_SUCCEEDED", done
    assert all(segment["comparison"]["bits"] for segment in done["segments"] if "comparison" in segment), done
    return (done["finished_unix_ms"] - done["created_unix_ms"]) / 1000, done


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=200)
    options = parser.parse_args()
    with Cluster(workers=2, measure=True) as cluster:
        job = cluster.train(f"--onnx={DATA}/digits_cnn.onnx", f"--dataset={DATA}/digits.npz", "--input", "labels=y",
                            "--batch-size=64", f"--epochs={options.epochs}", "--lr=2e-3", "--holdout=0.2", "--max-devices=1",
                            "--name=digits")
        record = cluster.wait_for_job(job, 1200)
        training = (record["finished_unix_ms"] - record["started_unix_ms"]) / 1000
        steps = record["total_steps"]
        epoch = steps // options.epochs
        print(f"training: {training:.2f} s, {steps} steps, {record['recorded_checkpoints']} checkpoints")
        seconds = {"full, 1 worker": [], "full, 2 workers": [], "one epoch": [], "all checkpoints": [], "evaluations": []}
        middle = options.epochs // 2 * epoch
        asked = {"full, 1 worker": ["--workers=1"], "full, 2 workers": ["--workers=2"],
                 "one epoch": [f"--steps={middle}:{middle + epoch}", "--log=norm(grad(*))", "--workers=1"],
                 "all checkpoints": ["--at=checkpoints", "--log=norm(param(*))"],
                 "evaluations": ["--at=checkpoints", "--evaluate=holdout", "--workers=1"]}
        for _ in range(options.rounds):
            for name, flags in asked.items():
                took, done = replay(cluster, *flags)
                seconds[name].append(took)
                trained = sum(segment["end_step"] - segment["checkpoint_step"] for segment in done["segments"]
                              if segment["kind"] == "TRAINING")
                print(f"  {name}: {took:.3f} s, {trained} steps trained, {len(done['segments'])} segments, load "
                      f"{os.getloadavg()[0]:.1f}", flush=True)
        median = {name: statistics.median(values) for name, values in seconds.items()}
        print(f"full replay on two workers: {median['full, 1 worker'] / median['full, 2 workers']:.2f} times as fast as on one")
        print(f"one epoch of {options.epochs}: {median['one epoch']:.3f} s, an epoch's training takes "
              f"{training / options.epochs:.3f} s")
        print(f"parameters at {record['recorded_checkpoints']} checkpoints: {training / median['all checkpoints']:.0f} times as fast "
              f"as the training")
        evaluated = record["recorded_checkpoints"] + 1
        print(f"evaluations at {evaluated} checkpoints: {median['evaluations']:.2f} s, "
              f"{1000 * median['evaluations'] / evaluated:.0f} ms each")


if __name__ == "__main__":
    main()
