"""What the examples share: synthetic data, training, the numbers at the end.

-d FILE.npz takes the arrays x (or x0, x1, ...) and y of a file instead; -b, -e and the like work everywhere.
"""

import argparse

import numpy as np


def arguments(**defaults):
    """Sizes of a model from flags, --image 32; FlexFlow's own flags are left to FFConfig."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--samples", type=int, default=defaults.pop("samples", 256))
    parser.add_argument("--rate", type=float, default=defaults.pop("rate", 0.01))
    for name, default in defaults.items():
        kind = type(default) if not isinstance(default, list) else lambda text: [int(n) for n in text.split("-")]
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=default)
    return parser.parse_known_args()[0]


def images(samples, shape, classes):
    """Images whose class shows in their colours and brightness."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, classes, samples)
    colours = rng.normal(size=(classes, shape[0], 1, 1))
    return (colours[labels] + rng.normal(size=(samples, *shape)) / 2).astype(np.float32), labels.astype(np.int32)


def dataset(ffconfig, x, y):
    """The arrays of -d, or those given."""
    if not ffconfig.dataset_path:
        return x, y
    with np.load(ffconfig.dataset_path) as file:
        names = sorted(name for name in file.files if name.startswith("x"))
        return [file[name] for name in names] if len(names) > 1 else file[names[0]], file["y"]


def train(ffmodel, ffconfig, inputs, x, y):
    """Trains a compiled model as FlexFlow's examples do; returns the means of each epoch."""
    inputs, x = (inputs, x) if isinstance(inputs, list) else ([inputs], [x])
    loaders = [ffmodel.create_data_loader(tensor, array) for tensor, array in zip(inputs, x, strict=True)]
    labels = ffmodel.create_data_loader(ffmodel.label_tensor, y)
    ffmodel.init_layers()
    began = ffconfig.get_current_time()
    history = ffmodel.fit(x=loaders, y=labels, epochs=ffconfig.epochs)
    took = 1e-6 * (ffconfig.get_current_time() - began)
    rate = labels.num_samples * ffconfig.epochs / took
    print(f"epochs {ffconfig.epochs}, ELAPSED TIME = {took:.4f}s, THROUGHPUT = {rate:.2f} samples/s")
    print(ffmodel.get_perf_metrics())
    print(f"loss {history[0]['loss']:.6g} -> {history[-1]['loss']:.6g}")
    return history
