#!/usr/bin/python3
"""Trains models of real size from the files that PyTorch exports, on one worker and on two, and compares with PyTorch.

    bazel run --config=release //tests/benchmarks:full_size_models -- --models=ResNet-50,GPT-2

For each model: dry run, three steps of SGD on one batch with a checkpoint in between, the download of the result. Losses must be
PyTorch's. Printed are the resident memory of the coordinator and of the workers, and seconds per step of both. Dropout is 0: the random masks of two frameworks cannot agree. mT5-small takes 8 GB of memory and 5 GB of disk.
"""
import argparse
import gc
import json
import os
import re
import shutil
import sys
import tempfile
import time
import warnings

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # see training_throughput.py

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "e2e"), os.path.join(HERE, "..", "conformance")]
import numpy as np  # noqa: E402
import torch  # noqa: E402
from cluster import Cluster  # noqa: E402
from models import Model, bert, classes, gpt2, images, resnet, t5, tokens, vgg, vit  # noqa: E402
from torch.nn import functional as F  # noqa: E402

STEPS = 3
LARGEST_ERROR = 1e-3  # of a loss, relative

MODELS = [
    Model("ResNet-50", resnet.resnet50, images(3, 224), classes(1000), learning_rate=0.00002),
    Model("VGG-16", lambda: vgg.vgg16(dropout=0.0), images(3, 224), classes(1000), learning_rate=0.001),
    Model("BERT-base", lambda: bert.Bert(dropout=0.0), lambda n: bert.inputs(n, vocabulary=30522, length=64),
          classes(30522, 64), batch=2),
    Model("GPT-2", lambda: gpt2.Gpt2(dropout=0.0), tokens(50257, 64), classes(50257, 64), batch=2),
    Model("ViT-B/16", lambda: vit.VisionTransformer(dropout=0.0), images(3, 224), classes(1000)),
    Model("mT5-small", lambda: t5.Mt5(dropout=0.0), lambda n: t5.inputs(n, vocabulary=250112), classes(250112, 12), batch=2),
]


def memory(process, field):
    with open(f"/proc/{process.pid}/status") as status:
        return int(re.search(field + r":\s+(\d+) kB", status.read()).group(1)) << 10


def mib(count):
    return f"{count / 2**20:,.0f}"


def prepare(model, folder):
    """Writes model.onnx and data.npz; returns PyTorch's losses and seconds per step."""
    torch.manual_seed(model.seed)
    module = model.make().train()
    columns, labels = model.inputs(model.batch), model.labels(model.batch)
    np.savez(os.path.join(folder, "data.npz"), labels=labels.numpy(), **{name: x.numpy() for name, x in columns.items()})
    state = {name: x.clone() for name, x in module.state_dict().items()}
    path = os.path.join(folder, "model.onnx")
    torch.onnx.export(module, tuple(columns.values()), path, opset_version=model.opset,
                      training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, input_names=list(columns),
                      output_names=["prediction"], dynamic_axes={name: {0: "batch"} for name in [*columns, "prediction"]})
    module.load_state_dict(state)  # the exporter runs the module, which moves running statistics
    del state
    optimizer = torch.optim.SGD(module.parameters(), lr=model.learning_rate)
    losses, seconds = [], []
    for _ in range(STEPS):
        start = time.monotonic()
        optimizer.zero_grad(set_to_none=True)
        prediction = module(*columns.values())
        loss = F.cross_entropy(prediction.reshape(-1, prediction.shape[-1]), labels.reshape(-1))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.monotonic() - start)
    parameters = sum(p.numel() for p in module.parameters())
    return parameters, losses, min(seconds)


def follow(model, workers, threads, folder, losses):
    """A row of the table for `workers` workers."""
    with Cluster(workers=workers, lease=30.0, worker_flags=[f"--threads={threads}"]) as cluster:
        start = memory(cluster.daemon, "VmRSS")
        common = [f"--onnx={folder}/model.onnx", f"--dataset={folder}/data.npz", "--loss=sparse_categorical_crossentropy",
                  "--holdout=0", "-b", str(model.batch), f"--steps={STEPS}", "--optimizer=sgd", f"--lr={model.learning_rate}",
                  "--checkpoint-every=2", "--name=model"]
        dry = cluster.run("train", "--dry-run", *common)
        if not dry["would_run"]:
            raise AssertionError(dry)
        job_id = cluster.train(*common)
        job = cluster.wait_for_job(job_id, 1200)
        if job["state"].upper() != "SUCCEEDED":
            raise AssertionError(job)
        _, reports, _ = cluster.job(job_id)
        found = [r["values"]["loss"] for r in reports]
        error = max(abs(ours / theirs - 1) for ours, theirs in zip(found, losses))
        if len(found) != STEPS or not error <= LARGEST_ERROR:
            raise AssertionError(f"{model.name} on {workers}: losses {found}, PyTorch's {losses}")
        downloaded = os.path.join(folder, "trained")
        cluster.cli("models", "download", "model", downloaded)
        files = {name: os.path.getsize(os.path.join(downloaded, name)) for name in os.listdir(downloaded)}
        shutil.rmtree(downloaded)
        time.sleep(1)
        return {
            "model": model.name, "workers": workers, "loss": found, "error": error,
            "step_seconds": min(float(r["seconds"]) for r in reports),
            "coordinator_at_start": start, "coordinator_at_most": memory(cluster.daemon, "VmHWM"),
            "coordinator_after": memory(cluster.daemon, "VmRSS"),
            "workers_at_most": [memory(w, "VmHWM") for w in cluster.workers],
            "workers_after": [memory(w, "VmRSS") for w in cluster.workers],
            "predicted": [int(m["needed_bytes"]) for m in dry["memory"]],
            "measured": [int(b) for b in job["measured_peak_bytes"]], "files": files,
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(m.name for m in MODELS))
    parser.add_argument("--workers", default="1,2")
    parser.add_argument("--threads", type=int, default=1, help="of each worker, and of PyTorch")
    parser.add_argument("--json_file", default="", help="also write the rows here")
    options = parser.parse_args()
    wanted = options.models.split(",")
    unknown = set(wanted) - {m.name for m in MODELS}
    if unknown:
        raise SystemExit(f"unknown models {sorted(unknown)}; there are {', '.join(m.name for m in MODELS)}")
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    rows = []
    print("| model | parameters | ONNX, MiB | workers | loss of PyTorch, ours | largest error | step, s | PyTorch's | "
          "coordinator, MiB: start | most | after | worker: most | after |\n|" + "---|" * 13, flush=True)
    for model in [m for m in MODELS if m.name in wanted]:
        with tempfile.TemporaryDirectory(prefix="espalier-full-size-") as folder:
            parameters, losses, seconds = prepare(model, folder)
            gc.collect()
            size = os.path.getsize(os.path.join(folder, "model.onnx"))
            for workers in map(int, options.workers.split(",")):
                row = follow(model, workers, options.threads, folder, losses)
                row.update(parameters=parameters, onnx=size, torch_loss=losses, torch_seconds=seconds)
                rows.append(row)
                print(f"| {model.name} | {parameters:,} | {mib(size)} | {workers} | {losses[-1]:.5f}, {row['loss'][-1]:.5f} | "
                      f"{row['error']:.1e} | {row['step_seconds']:.2f} | {seconds:.2f} | {mib(row['coordinator_at_start'])} | "
                      f"{mib(row['coordinator_at_most'])} | {mib(row['coordinator_after'])} | "
                      f"{', '.join(map(mib, row['workers_at_most']))} | {', '.join(map(mib, row['workers_after']))} |",
                      flush=True)
    if options.json_file:
        with open(options.json_file, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
