"""MLP_Unify: two wide towers of dense layers, added. python mlp_unify.py -b 64 -e 2 --layers 8192-8192-8192-8192"""

import numpy as np
from common import arguments, dataset, train

from espalier.core import ActiMode, DataType, FFConfig, FFModel, LossType, MetricsType, SGDOptimizer


def top_level_task():
    args = arguments(features=1024, layers=[8192, 8192, 8192, 8192], classes=10)
    ffconfig = FFConfig()
    ffmodel = FFModel(ffconfig)
    inputs, towers = [], []
    for _ in range(2):
        t = ffmodel.create_tensor([ffconfig.batch_size, args.features], DataType.DT_FLOAT)
        inputs.append(t)
        for size in args.layers[:-1]:
            t = ffmodel.dense(t, size, ActiMode.AC_MODE_RELU, use_bias=False)
        towers.append(ffmodel.dense(t, args.classes, use_bias=False))
    ffmodel.softmax(ffmodel.add(*towers))
    ffmodel.compile(
        optimizer=SGDOptimizer(ffmodel, args.rate),
        loss_type=LossType.LOSS_SPARSE_CATEGORICAL_CROSSENTROPY,
        metrics=[MetricsType.METRICS_ACCURACY, MetricsType.METRICS_SPARSE_CATEGORICAL_CROSSENTROPY],
    )
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(args.samples, args.features)).astype(np.float32) for _ in inputs]
    y = (x[0] + x[1])[:, : args.classes].argmax(1).astype(np.int32)
    train(ffmodel, ffconfig, inputs, *dataset(ffconfig, x, y))


if __name__ == "__main__":
    top_level_task()
