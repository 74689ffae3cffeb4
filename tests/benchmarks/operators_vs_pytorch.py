#!/usr/bin/python3
"""Single operators and whole training steps on one machine: Espalier against PyTorch, in turns.

    tests/benchmarks/operators_vs_pytorch.py --program build/bin/tests/benchmarks/operators_vs_pytorch

Both run with the same number of threads in float32, on data of ones where the values do not matter. Each row is the
median of several rounds in which one and then the other runs for about --seconds. PyTorch runs eagerly; "backward" is
its backward pass alone, over a graph that is kept, and ours the gradient kernel alone. A training step is forward,
backward and SGD with momentum, of the modules of tests/conformance/models; ours runs their ONNX export. Its peak
memory: ours is what the executor holds (arena, workspaces, the batch), PyTorch's the parameters, momenta and inputs
and the most that its allocator hands out during a step, by its profiler.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

# See training_throughput.py.
OUR_ENVIRONMENT = dict(os.environ)
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import torch
from torch.nn import functional as F

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "conformance"))
import models  # noqa: E402
import models_test  # noqa: E402
from models.alexnet import alexnet  # noqa: E402
from models.gpt2 import Gpt2  # noqa: E402
from models.resnet import resnet50  # noqa: E402


class Ours:
    def __init__(self, program, threads):
        self.process = subprocess.Popen([program, f"--threads={threads}"], text=True, env=OUR_ENVIRONMENT,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def run(self, count):
        return self.ask(run=count)["seconds"] / count

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def timed(function, count):
    start = time.monotonic()
    for _ in range(count):
        function()
    return (time.monotonic() - start) / count


def operand(x):
    """As our program takes it: values only where they are indices."""
    if x is None:
        return None
    if x.is_floating_point():
        return {"dtype": "f32", "dims": list(x.shape), "data": 0.1}
    return {"dtype": "i64", "dims": list(x.shape), "data": x.reshape(-1).tolist()}


def operators():
    """(name, our operator, attributes, inputs, PyTorch's function of the inputs)."""
    def rows(*dims):
        return torch.randn(*dims)

    linear = lambda m, i, o: (f"linear {m} x {i} -> {o}", "linear", {}, [rows(m, i), rows(o, i), rows(o)], F.linear)
    yield linear(2048, 256, 1024)
    yield linear(512, 768, 3072)
    yield ("matmul 16 x [128, 64] [64, 128]", "matmul", {}, [rows(16, 128, 64), rows(16, 64, 128)], torch.matmul)

    def conv(n, c, size, o, k, stride):
        pad = k // 2
        attributes = {"strides": [stride] * 2, "pads": [pad] * 4, "dilations": [1, 1], "groups": 1}
        return (f"conv2d {n} x {c} x {size}^2, {o} x {k}^2 / {stride}", "conv2d", attributes,
                [rows(n, c, size, size), rows(o, c, k, k)], lambda x, w: F.conv2d(x, w, None, stride, pad))

    yield conv(8, 3, 224, 64, 7, 2)
    yield conv(8, 64, 56, 64, 3, 1)
    yield conv(8, 256, 56, 64, 1, 1)
    yield conv(8, 128, 28, 128, 3, 1)
    yield conv(8, 256, 14, 256, 3, 1)
    yield conv(8, 512, 7, 512, 3, 1)
    for kind, function in (("max", F.max_pool2d), ("average", F.avg_pool2d)):
        yield (f"pool2d {kind} 8 x 64 x 112^2, 3^2 / 2", "pool2d",
               {"kind": kind, "kernel": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "count_include_pad": True},
               [rows(8, 64, 112, 112)], lambda x, f=function: f(x, 3, 2, 1))
    yield ("layer_norm 2048 x 768", "layer_norm", {"epsilon": 1e-5}, [rows(2048, 768), rows(768), rows(768)],
           lambda x, w, b: F.layer_norm(x, (768,), w, b))
    yield ("softmax 16 x 8 x 128 x 128", "softmax", {"axis": -1}, [rows(16, 8, 128, 128)],
           lambda x: torch.softmax(x, -1))
    yield ("gelu 2048 x 3072", "gelu", {"approximate": "none"}, [rows(2048, 3072)], F.gelu)
    yield ("relu 8 x 64 x 112^2", "relu", {}, [rows(8, 64, 112, 112)], F.relu)
    yield ("add 2048 x 3072", "add", {}, [rows(2048, 3072), rows(2048, 3072)], torch.add)
    yield ("embedding 2048 of 50257 x 768", "embedding", {}, [torch.randint(0, 50257, (16, 128)), rows(50257, 768)],
           F.embedding)
    yield ("cross-entropy 512 x 50257", "sparse_categorical_crossentropy", {},
           [rows(512, 50257), torch.randint(0, 50257, (512,))], F.cross_entropy)
    b, s, h, d = 8, 256, 12, 64

    def attention(q, k, v):
        q, k, v = (x.view(b, s, h, d).transpose(1, 2) for x in (q, k, v))
        mask = torch.full((s, s), float("-inf")).triu(1)
        weights = torch.softmax(torch.matmul(q, k.transpose(2, 3)) / d ** 0.5 + mask, -1)
        return torch.matmul(weights, v).transpose(1, 2).reshape(b, s, h * d)

    yield (f"attention {b} x {s}, {h} heads of {d}, causal", "attention", {"head_dim": d, "causal": True},
           [rows(b, s, h * d) for _ in range(3)], attention)


def batch_norm():
    """Ours is two operators, one after the other."""
    x, count = torch.randn(8, 64, 56, 56), 8 * 56 * 56
    ones = torch.ones(64)
    stats = ("batch_norm_stats", {"count": count}, [x])
    norm = ("batch_norm", {"epsilon": 1e-5, "momentum": 0.1, "count": count},
            [x, ones, ones, ones.clone(), ones.clone(), torch.ones(2, 64)])
    return "batch_norm 8 x 64 x 56^2, training", [stats, norm], x, ones


def measure(ours, prepare_ours, theirs, options):
    """Medians of (ours, theirs), seconds per run; several programs of ours in a row are summed."""
    def count_for(seconds):
        return max(1, int(options.seconds / max(seconds, 1e-7)))

    theirs()
    their_count = count_for(timed(theirs, 1))
    our_times, their_times = [], []
    for _ in range(options.rounds):
        total = 0
        for request in prepare_ours:
            if len(prepare_ours) > 1 or not our_times:
                ours.ask(**request)
                ours.run(1)
            total += ours.run(count_for(ours.run(1)))
        our_times.append(total)
        their_times.append(timed(theirs, their_count))
    return statistics.median(our_times), statistics.median(their_times)


def operator_rows(ours, options):
    def row(name, requests, theirs):
        try:
            a, b = measure(ours, requests, theirs, options)
            return [name, a * 1e3, b * 1e3, b / a]
        except RuntimeError as error:
            return [name, str(error)[:60], "", ""]

    for name, op, attributes, inputs, function in operators():
        if options.only not in name:
            continue
        request = {"op": op, "attributes": attributes, "inputs": [operand(x) for x in inputs]}
        with torch.no_grad():
            yield row(name, [request], lambda: function(*inputs))
        if op == "add":  # both hand the gradient on as it is
            continue
        leaves = [x.requires_grad_() if x.is_floating_point() else x for x in inputs]
        y = function(*leaves)
        g = torch.ones_like(y)
        wanted = [x for x in leaves if x.requires_grad]
        yield row(name + ", backward", [{**request, "backward": True}],
                  lambda: torch.autograd.grad(y, wanted, g, retain_graph=True))
    name, parts, x, ones = batch_norm()
    if options.only in name:
        requests = [{"op": op, "attributes": a, "inputs": [operand(t) for t in inputs]} for op, a, inputs in parts]
        with torch.no_grad():
            yield row(name, requests, lambda: F.batch_norm(x, ones.clone(), ones.clone(), ones, ones, True))
        leaf, w, b = x.requires_grad_(), torch.ones(64, requires_grad=True), torch.ones(64, requires_grad=True)
        y = F.batch_norm(leaf, None, None, w, b, True)
        g = torch.ones_like(y)
        yield row(name + ", backward", [{**r, "backward": True} for r in reversed(requests)],
                  lambda: torch.autograd.grad(y, [leaf, w, b], g, retain_graph=True))
    if options.only in "adam":
        size = [4096, 1024]
        p = torch.randn(*size, requires_grad=True)
        p.grad = torch.ones(*size)
        adam = torch.optim.AdamW([p], lr=1e-3)
        inputs = [p, p, None, torch.ones(2), p, p]
        yield row("adam_update 4096 x 1024", [{
            "op": "adam_update", "inputs": [operand(x) for x in inputs],
            "attributes": {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.01, "decoupled": True}}],
            adam.step)


def steps():
    """Models that are larger than those of models_test.py."""
    images = models.images(3, 224)
    return [
        models.Model("AlexNet, 16 x 224^2", alexnet, images, models.classes(1000), batch=16),
        models.Model("ResNet-50, 4 x 224^2", resnet50, images, models.classes(1000), batch=4),
        models.Model("GPT-2, hidden 256, 6 layers, 8 x 128 tokens",
                     lambda: Gpt2(vocabulary=8192, hidden=256, layers=6, heads=8, positions=128),
                     models.tokens(8192, 128), models.classes(8192, 128), batch=8),
    ]


def peak_of_pytorch(step, held):
    """Bytes: of the tensors `held` between steps, and the most that is allocated beside them within one."""
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        step()
    changes = sorted((e.start_us(), e.nbytes()) for e in profile.kineto_results.events() if e.name() == "[memory]")
    now = peak = 0
    for _, change in changes:
        now += change
        peak = max(peak, now)
    return peak + sum(t.numel() * t.element_size() for t in held)


def step_rows(ours, folder, options, memory):
    for model in steps():
        if options.only not in model.name:
            continue
        torch.manual_seed(1)
        module = model.make().train()
        columns, labels = model.inputs(model.batch), model.labels(model.batch)
        path = os.path.join(folder, "model")
        models_test.export(model, module, columns, path + ".onnx")
        np.savez(path + ".npz", labels=labels.numpy(), **{name: x.numpy() for name, x in columns.items()})
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-4, momentum=0.9)

        def step():
            optimizer.zero_grad(set_to_none=True)
            models_test.loss_of(model, module(*columns.values()), labels).backward()
            optimizer.step()

        request = {"model": path + ".onnx", "data": path + ".npz", "batch": model.batch, "loss": model.loss}
        try:
            a, b = measure(ours, [request], step, options)
            yield [model.name, a * 1e3, b * 1e3, b / a]
            held = [*module.parameters(), *module.buffers(), *columns.values(), labels,
                    *(s["momentum_buffer"] for s in optimizer.state.values())]
            optimizer.zero_grad(set_to_none=True)
            peak = ours.ask(run=0)["peak_bytes"], peak_of_pytorch(step, held)
            memory.append([model.name, peak[0] / 2**20, peak[1] / 2**20, peak[0] / peak[1]])
        except RuntimeError as error:
            yield [model.name, str(error)[:60], "", ""]


def show(title, rows, unit="ms", ratio="times as fast"):
    print(f"### {title}\n\n| | Espalier, {unit} | PyTorch, {unit} | {ratio} |\n|---|--:|--:|--:|")
    for row in rows:
        print("| " + " | ".join(f"{c:.3f}" if isinstance(c, float) else str(c) for c in row[:3]) +
              (f" | {row[3]:.2f} |" if isinstance(row[3], float) else " | |"), flush=True)
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/bin/tests/benchmarks/operators_vs_pytorch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.2, help="of one turn")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    ours = Ours(options.program, options.threads)
    print(f"Espalier and PyTorch {torch.__version__} (eager), {options.threads} threads each, medians of "
          f"{options.rounds} turns; load of the machine {os.getloadavg()[0]:.1f}.\n")
    show("Operators", operator_rows(ours, options))
    with tempfile.TemporaryDirectory() as folder:
        memory = []
        show("Training steps", step_rows(ours, folder, options, memory))
        show("Peak memory of a training step", memory, "MiB", "of PyTorch's")
    print(f"Load of the machine at the end {os.getloadavg()[0]:.1f}.")
    ours.close()


if __name__ == "__main__":
    sys.exit(main())
