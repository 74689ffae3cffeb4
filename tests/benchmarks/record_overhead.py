"""What recording costs: seconds of training with --record=adaptive against --record=off, in turns, on two workers.

Jobs: the LLM of deploy/quickstart.sh, and the CNN on handwritten digits for ten times its epochs. Seconds are those from
a job's first step until its model is there, by the coordinator's clock, medians over the rounds. The stall of the steps at a
checkpoint is compared with a copy of as many bytes within this process.

    record_overhead.py [--rounds=9] [--llm-steps=600] [--digits-epochs=200] [--only=llm|digits]
"""
import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "e2e"))
from cluster import DATA, Cluster, read  # noqa: E402

CHECKPOINT = re.compile(r"job id=(\S+) checkpoint step=(\d+) stall_seconds=([\d.]+) write_seconds=([\d.]+)")


def bible(folder):
    """The King James Bible, as the quickstart has it, or Genesis several times."""
    path = os.path.join(folder, "kjv.txt")
    program = shutil.which("bible") or "/usr/games/bible"
    with open(path, "wb") as file:
        if os.path.exists(program):
            subprocess.run([program, "-f", "gen1:1-rev22:21"], stdout=file, check=True)
        else:
            with open(os.path.join(DATA, "genesis.txt"), "rb") as genesis:
                file.write(genesis.read() * 20)
    return path


def jobs_of(cluster, options):
    jobs = {
        "llm": ["--model=llama:llm", f"--dataset={bible(cluster.folder)}", "--sequence-length=256", "--batch-size=8",
                f"--steps={options.llm_steps}", "--lr=2e-3", "--schedule=cosine", "--warmup=20", "--clip-norm=1",
                "--holdout=0.02"],
        "digits": [f"--onnx={DATA}/digits_cnn.onnx", f"--dataset={DATA}/digits.npz", "--input", "labels=y",
                   "--batch-size=64", f"--epochs={options.digits_epochs}", "--lr=2e-3", "--schedule=cosine",
                   "--holdout=0.2"],
    }
    return {name: flags for name, flags in jobs.items() if options.only in ("", name)}


def train(cluster, flags, record):
    """Seconds of the training, the job, and its checkpoints as (step, stall, seconds until it was durable)."""
    job_id = cluster.train(*flags, f"--record={record}")
    job = {}
    while job.get("state", "").upper() not in ("SUCCEEDED", "FAILED", "CANCELLED"):
        time.sleep(1)  # without the reports of all steps, which would cost the training something
        job = next(job for job in cluster.run("jobs", "--limit=1")["jobs"] if job["id"] == job_id)
    if job["state"].upper() != "SUCCEEDED":
        raise SystemExit(f"{job_id} is {job['state']}: {job.get('error')}")
    checkpoints = [(int(step), float(stall), float(write))
                   for found, step, stall, write in CHECKPOINT.findall(read(cluster.logs[0])) if found == job_id]
    return (int(job["finished_unix_ms"]) - int(job["started_unix_ms"])) / 1000, job, checkpoints


def copy_seconds(size):
    """Of a copy of so many bytes into memory that has been written to before; the median of five."""
    source, target = bytearray(os.urandom(1 << 20)) * (size >> 20 or 1), bytearray(max(size >> 20, 1) << 20)
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        target[:] = source
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--llm-steps", type=int, default=600)
    parser.add_argument("--digits-epochs", type=int, default=200)
    parser.add_argument("--only", default="", choices=["", "llm", "digits"])
    options = parser.parse_args()
    with Cluster(workers=2, measure=True) as cluster:
        for name, flags in jobs_of(cluster, options).items():
            train(cluster, flags if name != "llm" else [*flags, "--steps=20"], "off")  # measures the operators
            seconds = {"off": [], "adaptive": []}
            stalls, writes, counts, job = [], [], [], None
            for number in range(options.rounds):
                for record in ("off", "adaptive") if number % 2 == 0 else ("adaptive", "off"):
                    took, job_now, checkpoints = train(cluster, flags, record)
                    seconds[record].append(took)
                    print(f"  {name} {record}: {took:.2f} s, {len(checkpoints)} checkpoints, load {os.getloadavg()[0]:.1f}",
                          flush=True)
                    if record == "adaptive":
                        job = job_now
                        counts.append(len(checkpoints))
                        stalls.extend(stall for _, stall, _ in checkpoints)
                        writes.extend(write for _, _, write in checkpoints)
            off, adaptive = (statistics.median(seconds[record]) for record in ("off", "adaptive"))
            least = min(seconds["adaptive"]) / min(seconds["off"]) - 1
            size = int(job["recorded_bytes"]) // max(1, int(job["recorded_checkpoints"]))
            print(f"{name}: {off:.2f} s without, {adaptive:.2f} s with a recording of {statistics.median(counts):g} checkpoints: "
                  f"{(adaptive / off - 1) * 100:+.2f} %, of the fastest runs {least * 100:+.2f} %")
            print(f"{name}: for a checkpoint of {size} bytes the steps wait {statistics.median(stalls) * 1e3:.2f} ms, after "
                  f"{statistics.median(writes) * 1e3:.2f} ms it is durable; a copy of half of the bytes, as each worker makes, takes "
                  f"{copy_seconds(size // 2) * 1e3:.2f} ms", flush=True)


if __name__ == "__main__":
    main()
