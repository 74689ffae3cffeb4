"""A mixture of experts. python moe.py -b 64 -e 4 --experts 8 --select 2"""

import numpy as np
from common import arguments, dataset, train

from espalier.core import AdamOptimizer, DataType, FFConfig, FFModel, LossType, MetricsType


def top_level_task():
    args = arguments(
        features=784, experts=5, select=2, hidden=64, classes=10, alpha=2.0, balance=0.04, samples=1024, rate=0.001
    )
    ffconfig = FFConfig()
    ffmodel = FFModel(ffconfig)
    input_tensor = ffmodel.create_tensor([ffconfig.batch_size, args.features], DataType.DT_FLOAT)
    t = ffmodel.moe(input_tensor, args.experts, args.select, args.hidden, args.alpha, args.balance)
    ffmodel.softmax(ffmodel.dense(t, args.classes))
    ffmodel.compile(
        optimizer=AdamOptimizer(ffmodel, args.rate),
        loss_type=LossType.LOSS_SPARSE_CATEGORICAL_CROSSENTROPY,
        metrics=[MetricsType.METRICS_ACCURACY],
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(args.samples, args.features)).astype(np.float32)
    y = x[:, : args.classes].argmax(1).astype(np.int32)
    train(ffmodel, ffconfig, input_tensor, *dataset(ffconfig, x, y))


if __name__ == "__main__":
    top_level_task()
