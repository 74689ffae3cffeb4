"""Encoder layers of attention and dense layers. python transformer.py -b 8 -e 2 --sequence 512"""

import numpy as np
from common import arguments, dataset, train

from espalier.core import ActiMode, DataType, FFConfig, FFModel, LossType, MetricsType, SGDOptimizer


def encoder(ffmodel, t, hidden, heads):
    t = ffmodel.multihead_attention(t, t, t, hidden, heads, hidden // heads, hidden // heads)
    t = ffmodel.dense(t, hidden, ActiMode.AC_MODE_RELU, use_bias=False)
    return ffmodel.dense(t, hidden, use_bias=False)


def top_level_task():
    args = arguments(hidden=1024, heads=16, layers=12, sequence=512, samples=64)
    ffconfig = FFConfig()
    ffmodel = FFModel(ffconfig)
    shape = [ffconfig.batch_size, args.sequence, args.hidden]
    input_tensor = ffmodel.create_tensor(shape, DataType.DT_FLOAT)
    t = input_tensor
    for _ in range(args.layers):
        t = encoder(ffmodel, t, args.hidden, args.heads)
    ffmodel.dense(t, 1, use_bias=False)
    ffmodel.compile(
        optimizer=SGDOptimizer(ffmodel, args.rate),
        loss_type=LossType.LOSS_MEAN_SQUARED_ERROR_AVG_REDUCE,
        metrics=[MetricsType.METRICS_MEAN_SQUARED_ERROR],
    )
    x = np.random.default_rng(0).normal(size=(args.samples, *shape[1:])).astype(np.float32)
    train(ffmodel, ffconfig, input_tensor, *dataset(ffconfig, x, x.mean(2, keepdims=True) + 1))


if __name__ == "__main__":
    top_level_task()
