"""DLRM: recommendations from numbers and ids, with FlexFlow's --arch-... flags.

python dlrm.py -b 64 -e 4 --arch-sparse-feature-size 16 --arch-embedding-size 1000-1000 --arch-mlp-bot 13-64-16 \
    --arch-mlp-top 48-64-1
"""

import itertools

import numpy as np
from common import arguments, dataset, train

from espalier.core import (
    ActiMode,
    AggrMode,
    DataType,
    DLRMConfig,
    FFConfig,
    FFModel,
    LossType,
    MetricsType,
    NormInitializer,
    SGDOptimizer,
    UniformInitializer,
)


def mlp(ffmodel, t, sizes, sigmoid_layer):
    for layer, (size_in, size_out) in enumerate(itertools.pairwise(sizes)):
        kernel = NormInitializer(layer, 0, (2 / (size_in + size_out)) ** 0.5)
        activation = ActiMode.AC_MODE_SIGMOID if layer == sigmoid_layer else ActiMode.AC_MODE_RELU
        if layer == len(sizes) - 2 and layer != sigmoid_layer:
            activation = ActiMode.AC_MODE_NONE
        t = ffmodel.dense(t, size_out, activation, kernel_initializer=kernel)
    return t


def data(samples, config, features):
    """Clicks that depend on the numbers and on each id."""
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, size, (samples, config.embedding_bag_size)) for size in config.embedding_size]
    dense = rng.random((samples, features)).astype(np.float32)
    score = dense.mean(1) + sum(
        (column.mean(1) / size) for column, size in zip(ids, config.embedding_size, strict=True)
    )
    return [dense, *ids], (score > np.median(score)).astype(np.float32)[:, None]


def top_level_task():
    args = arguments(samples=1024, rate=0.1)
    ffconfig, config = FFConfig(), DLRMConfig()
    ffmodel = FFModel(ffconfig)
    batch = ffconfig.batch_size
    dense = ffmodel.create_tensor([batch, config.mlp_bot[0]], DataType.DT_FLOAT)
    sparse = [
        ffmodel.create_tensor([batch, config.embedding_bag_size], DataType.DT_INT64) for _ in config.embedding_size
    ]
    parts = [mlp(ffmodel, dense, config.mlp_bot, config.sigmoid_bot)]
    for ids, size in zip(sparse, config.embedding_size, strict=True):
        table = UniformInitializer(0, -((1 / size) ** 0.5), (1 / size) ** 0.5)
        parts.append(
            ffmodel.embedding(ids, size, config.sparse_feature_size, AggrMode.AGGR_MODE_SUM, kernel_initializer=table)
        )
    t = ffmodel.concat(parts, -1)  # --arch-interaction-op cat
    assert t.dims[1] == config.mlp_top[0], f"--arch-mlp-top must begin with {t.dims[1]}"
    mlp(ffmodel, t, config.mlp_top, len(config.mlp_top) - 2 if config.sigmoid_top < 0 else config.sigmoid_top)
    ffmodel.compile(
        optimizer=SGDOptimizer(ffmodel, args.rate),
        loss_type=LossType.LOSS_MEAN_SQUARED_ERROR_AVG_REDUCE,
        metrics=[MetricsType.METRICS_MEAN_SQUARED_ERROR],
    )
    train(ffmodel, ffconfig, [dense, *sparse], *dataset(ffconfig, *data(args.samples, config, config.mlp_bot[0])))


if __name__ == "__main__":
    top_level_task()
