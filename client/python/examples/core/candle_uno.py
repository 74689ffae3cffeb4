"""CANDLE-Uno: the response of tumours to drugs; a tower for each kind of feature, then dense layers.

python candle_uno.py -b 64 -e 2
"""

import numpy as np
from common import arguments, dataset, train

from espalier.core import ActiMode, AdamOptimizer, DataType, FFConfig, FFModel, LossType, MetricsType

# Kinds of features and their number of columns; each input of one kind goes through the same tower.
FEATURES = {"dose": 1, "cell.rnaseq": 942, "drug.descriptors": 5270, "drug.fingerprints": 2048}
INPUTS = {
    "dose1": "dose",
    "dose2": "dose",
    "cell.rnaseq": "cell.rnaseq",
    "drug1.descriptors": "drug.descriptors",
    "drug1.fingerprints": "drug.fingerprints",
    "drug2.descriptors": "drug.descriptors",
    "drug2.fingerprints": "drug.fingerprints",
}


def tower(ffmodel, t, sizes, shared):
    """Dense layers; those of `shared`, if there are any, give their parameters."""
    layers = []
    for place, size in enumerate(sizes):
        t = ffmodel.dense(t, size, ActiMode.AC_MODE_RELU, shared_op=shared[place] if shared else None)
        layers.append(ffmodel.get_last_layer())
    return t, layers


def top_level_task():
    args = arguments(tower=[1000, 1000, 1000], dense=[1000, 1000, 1000], divide_features_by=1, rate=1e-3)
    ffconfig = FFConfig()
    ffmodel = FFModel(ffconfig)
    inputs, parts, towers = [], [], {}
    for name, kind in INPUTS.items():
        size = max(1, FEATURES[kind] // args.divide_features_by)
        t = ffmodel.create_tensor([ffconfig.batch_size, size], DataType.DT_FLOAT, name=name)
        inputs.append(t)
        if kind != "dose":
            t, towers[kind] = tower(ffmodel, t, args.tower, towers.get(kind))
        parts.append(t)
    t = ffmodel.concat(parts, -1)
    for size in args.dense:
        t = ffmodel.dense(t, size, ActiMode.AC_MODE_RELU)
    ffmodel.dense(t, 1)
    ffmodel.compile(
        optimizer=AdamOptimizer(ffmodel, args.rate),
        loss_type=LossType.LOSS_MEAN_SQUARED_ERROR_AVG_REDUCE,
        metrics=[MetricsType.METRICS_MEAN_SQUARED_ERROR, MetricsType.METRICS_MEAN_ABSOLUTE_ERROR],
    )
    rng = np.random.default_rng(0)
    x = [rng.random((args.samples, tensor.dims[1])).astype(np.float32) for tensor in inputs]
    growth = 1 - x[0] * x[3].mean(1, keepdims=True) - x[1] * x[5].mean(1, keepdims=True)
    train(ffmodel, ffconfig, inputs, *dataset(ffconfig, x, growth.astype(np.float32)))


if __name__ == "__main__":
    top_level_task()
