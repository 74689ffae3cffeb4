"""XDL: many tables of embeddings, summed, and an MLP. python xdl.py -b 64 -e 4 --tables 4 --rows 100000"""

import numpy as np
from common import arguments, dataset, train

from espalier.core import (
    ActiMode,
    AggrMode,
    DataType,
    FFConfig,
    FFModel,
    LossType,
    MetricsType,
    SGDOptimizer,
    UniformInitializer,
)


def data(samples, tables, rows):
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, rows, (samples, 1)) for _ in range(tables)]
    liked = sum(column[:, 0] % 2 for column in ids) * 2 > tables
    return ids, np.eye(2, dtype=np.float32)[liked.astype(int)]


def top_level_task():
    args = arguments(samples=1024, rate=0.5, tables=4, rows=100000, features=64, mlp=[256, 256, 256])
    ffconfig = FFConfig()
    ffmodel = FFModel(ffconfig)
    inputs = [ffmodel.create_tensor([ffconfig.batch_size, 1], DataType.DT_INT64) for _ in range(args.tables)]
    limit = (1 / args.rows) ** 0.5
    t = ffmodel.concat(
        [
            ffmodel.embedding(
                ids,
                args.rows,
                args.features,
                AggrMode.AGGR_MODE_SUM,
                kernel_initializer=UniformInitializer(0, -limit, limit),
            )
            for ids in inputs
        ],
        -1,
    )
    for size in args.mlp:
        t = ffmodel.dense(t, size, ActiMode.AC_MODE_RELU, use_bias=False)
    ffmodel.dense(t, 2, ActiMode.AC_MODE_SIGMOID, use_bias=False)
    ffmodel.compile(
        optimizer=SGDOptimizer(ffmodel, args.rate),
        loss_type=LossType.LOSS_MEAN_SQUARED_ERROR_AVG_REDUCE,
        metrics=[MetricsType.METRICS_ACCURACY, MetricsType.METRICS_MEAN_SQUARED_ERROR],
    )
    train(ffmodel, ffconfig, inputs, *dataset(ffconfig, *data(args.samples, args.tables, args.rows)))


if __name__ == "__main__":
    top_level_task()
