#!/usr/bin/python3
"""Trains models of real size from the files that PyTorch exports, on one worker and on two, and compares with PyTorch.

    bazel run --config=release //tests/benchmarks:full_size_models -- --models=ResNet-50,GPT-2

For each model: dry run, three steps of SGD on one batch with a checkpoint in between, the download of the result. Losses must be
PyTorch's. Printed are the resident memory of the coordinator and of the workers, and seconds per step of both. Needs PyTorch, of any
version from 1.13. mT5-small takes 8 GB of memory and 5 GB of disk.
"""
import gc
import os
import shutil
import statistics
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))  # beside the programs, not where the link points

import full_size  # noqa: E402
import torch  # noqa: E402
from full_size import memory, progress  # noqa: E402

STEPS = 3


def mib(count):
    return f"{count / 2**20:,.0f}"


def prepare(model, exporter, folder):
    """Writes the model's files; returns what is known of it, with PyTorch's losses and seconds per step."""
    step = full_size.Step(model)
    size = full_size.export(model, step, exporter, folder)
    progress(f"{model.name}: exported, {mib(size)} MiB")
    done = [step.run() for _ in range(STEPS)]
    progress(f"{model.name}: PyTorch's losses {[loss for loss, _ in done]}")
    return {"model": model.name, "batch": model.batch, "parameters": sum(p.numel() for p in step.module.parameters()), "onnx": size,
            "exporter": exporter, "torch": torch.__version__, "torch_loss": [loss for loss, _ in done],
            "torch_seconds": statistics.median(seconds for _, seconds in done)}


def follow(model, workers, options, folder, losses):
    """What a job on `workers` workers did, and what the processes held."""
    with full_size.cluster_of(workers, options) as cluster:
        start = memory(cluster.daemon.pid, "VmRSS")
        workers_start = [memory(w.pid, "VmRSS") for w in cluster.workers]
        flags = [*full_size.train_flags(model, folder, STEPS), "--checkpoint-every=2", "--name=model"]
        after, workers_after = [], []
        for number in range(options.jobs):
            dry = cluster.run("train", "--dry-run", *flags)
            if not dry["would_run"]:
                raise AssertionError(dry)
            _, job, reports = full_size.run_job(cluster, flags, options.patience)
            found = [r["values"]["loss"] for r in reports]
            error = full_size.largest_error(f"{model.name} on {workers}", found, losses)
            downloaded = os.path.join(folder, "trained")
            cluster.cli("models", "download", "model", downloaded)
            files = {name: os.path.getsize(os.path.join(downloaded, name)) for name in os.listdir(downloaded)}
            shutil.rmtree(downloaded)
            time.sleep(2)
            after.append(memory(cluster.daemon.pid, "VmRSS"))
            workers_after.append([memory(w.pid, "VmRSS") for w in cluster.workers])
            progress(f"{model.name} on {workers}, job {number + 1}: error {error:.1e}, coordinator {mib(after[-1])} MiB, "
                     f"workers {', '.join(map(mib, workers_after[-1]))} MiB")
        return {
            "workers": workers, "loss": found, "error": error, "step_seconds": statistics.median(float(r["seconds"]) for r in reports),
            "coordinator_at_start": start, "coordinator_at_most": memory(cluster.daemon.pid, "VmHWM"), "coordinator_after": after,
            "workers_at_start": workers_start, "workers_at_most": [memory(w.pid, "VmHWM") for w in cluster.workers],
            "workers_after": workers_after, "predicted": [int(m["needed_bytes"]) for m in dry["memory"]],
            "measured": [int(b) for b in job["measured_peak_bytes"]], "files": files,
        }


def main():
    parser = full_size.option_parser(__doc__, threads=1)
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--jobs", type=int, default=1, help="jobs one after the other, to see that memory does not grow")
    parser.add_argument("--patience", type=int, default=3600, help="seconds that a job may take")
    options = parser.parse_args()
    rows = []
    print("| model | parameters | ONNX, MiB | workers | loss of PyTorch, ours | largest error | step, s | PyTorch's | "
          "coordinator, MiB: start | most | after | worker: start | most | after |\n|" + "---|" * 14, flush=True)
    for model, folder in full_size.each(options):
        known = prepare(model, options.exporter, folder)
        gc.collect()
        for workers in map(int, options.workers.split(",")):
            row = {**known, **follow(model, workers, options, folder, known["torch_loss"])}
            rows.append(row)
            print(f"| {model.name} | {row['parameters']:,} | {mib(row['onnx'])} | {workers} | "
                  f"{row['torch_loss'][-1]:.5f}, {row['loss'][-1]:.5f} | {row['error']:.1e} | {row['step_seconds']:.2f} | "
                  f"{row['torch_seconds']:.2f} | {mib(row['coordinator_at_start'])} | {mib(row['coordinator_at_most'])} | "
                  f"{mib(row['coordinator_after'][-1])} | {', '.join(map(mib, row['workers_at_start']))} | "
                  f"{', '.join(map(mib, row['workers_at_most']))} | {', '.join(map(mib, row['workers_after'][-1]))} |", flush=True)
            full_size.write_rows(rows, options)


if __name__ == "__main__":
    main()
