"""Examples per second of fit(stream=True) with a DataLoader of PyTorch, against the same examples uploaded as an .npz.

Both train the same model on images, by the plan of a single device, in the same order. Counted is the time from the
first step's report to the last one's, so that neither the upload nor the planning is in it. Alternates the two; prints
medians. The loader, the programs and the model share the machine's cores: "loader /s" is what the DataLoader alone gives.

    python_streaming.py [RUNS]      by default 5
"""

import os
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
PACKAGE = os.path.join(ROOT, "client", "python")
sys.path[:0] = [os.path.join(PACKAGE, "tests"), os.path.join(PACKAGE, "tests", "torch"), PACKAGE]
if __name__ == "__main__" and os.environ.get("ESPALIER_ENVIRONMENT") != "torch":
    from torch_environment import ENVIRONMENT

    os.environ["ESPALIER_ENVIRONMENT"] = "torch"
    os.execv(ENVIRONMENT.python(), [ENVIRONMENT.python(), *sys.argv])

import espalier
import numpy as np
import torch
from espalier.graph import Graph
from espalier.training import Callback, fit

EXAMPLES, BATCH, EPOCHS = 4096, 64, 3
SIDE = 32
# (name, channels and strides of the convolutions): from much to little work for the bytes of an example.
MODELS = (
    ("CNN, 6 layers", ((32, 1), (32, 2), (64, 1), (64, 2), (128, 1), (128, 2))),
    ("CNN, 2 layers", ((16, 2), (32, 2))),
    ("MLP", ()),
)
SEARCH = {"strategy": "single_device"}


def programs():
    for folder in (os.path.join(ROOT, "build", "bin"), ROOT):
        if os.path.exists(os.path.join(folder, "server", "espalierd")):
            return folder
    raise SystemExit("no espalierd: bazel build --config=release //server:espalierd //worker:espalier-worker //client:espalier")


def graph(convolutions):
    rng = np.random.default_rng(0)
    g = Graph("images")

    def parameter(name, *shape):
        return g.parameter(name, data=(rng.normal(size=shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))

    h, labels, before, side = g.input("x", (None, 3, SIDE, SIDE)), g.input("labels", (None,), "int64"), 3, SIDE
    for number, (after, stride) in enumerate(convolutions):
        convolution = {"strides": [stride, stride], "pads": [1, 1, 1, 1], "dilations": [1, 1], "groups": 1}
        h = g.op("relu", [g.op("conv2d", [h, parameter(f"c{number}", after, before, 3, 3)], convolution)])
        side, before = side // stride, after
    h = g.op("flatten", [h], {"axis": 1})
    h = g.op("relu", [g.op("linear", [h, parameter("hidden", 64, before * side * side)])])
    logits = g.op("linear", [h, parameter("out", 10, 64)])
    g.output("loss", g.op("sparse_categorical_crossentropy", [logits, labels]))
    return g


class Times(Callback):
    def __init__(self):
        self.first = self.last = None

    def on_step(self, run, step, values):
        self.last = time.perf_counter()
        self.first = self.first or self.last


def loaded_per_second(loader):
    begin = time.perf_counter()
    batches = sum(1 for _ in loader)
    return batches * BATCH / (time.perf_counter() - begin)


def examples_per_second(client, model, data, **how):
    times = Times()
    begin = time.perf_counter()
    result = fit(
        model,
        data,
        optimizer="sgd",
        batch_size=BATCH,
        epochs=EPOCHS,
        shuffle=False,
        search=SEARCH,
        client=client,
        verbose=0,
        callbacks=[times],
        **how,
    )
    whole = time.perf_counter() - begin
    steps = len(result.history["loss"])
    return (steps - 1) * BATCH / (times.last - times.first), whole, result.history["loss"]


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    if "ESPALIER_BIN" not in os.environ:
        os.environ["ESPALIER_BIN"] = programs()
    rng = np.random.default_rng(1)
    print(f"{'':16}{'loader /s':>10}{'npz /s':>10}{'stream /s':>11}{'of npz':>8}{'npz, all':>10}{'stream, all':>13}")
    x = rng.normal(size=(EXAMPLES, 3, SIDE, SIDE)).astype(np.float32)
    labels = rng.integers(0, 10, EXAMPLES)
    rows = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(labels))
    loader = torch.utils.data.DataLoader(rows, batch_size=BATCH)
    with espalier.local(workers=1, flags=["--measure-seconds=0"]) as client:
        for name, convolutions in MODELS:
            model = graph(convolutions)
            found = {"npz": [], "stream": []}
            loaded = []
            for run in range(runs + 1):
                uploaded = examples_per_second(client, model, {"x": x, "labels": labels})
                streamed = examples_per_second(client, model, loader, stream=True)
                if uploaded[2] != streamed[2]:
                    raise SystemExit("the two runs have different losses")
                loaded.append(loaded_per_second(loader))
                if run > 0:  # the first one uploads
                    found["npz"].append(uploaded)
                    found["stream"].append(streamed)
            speed = {how: statistics.median(each[0] for each in times) for how, times in found.items()}
            whole = {how: statistics.median(each[1] for each in times) for how, times in found.items()}
            print(
                f"{name:16}{statistics.median(loaded):10.0f}{speed['npz']:10.0f}{speed['stream']:11.0f}{speed['stream'] / speed['npz']:8.2f}{whole['npz']:9.2f}s{whole['stream']:12.2f}s",
                flush=True,
            )


if __name__ == "__main__":
    main()
