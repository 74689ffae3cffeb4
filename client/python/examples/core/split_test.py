"""Split: dense layers on the parts of a tensor give what one dense layer gives with their kernels in blocks.

python split_test.py -b 64 -e 2
"""

import numpy as np
from common import arguments, dataset, train

from espalier.core import ActiMode, DataType, FFConfig, FFModel, LossType, MetricsType, SGDOptimizer


def model(ffconfig, args, parts):
    ffmodel = FFModel(ffconfig)
    input_tensor = ffmodel.create_tensor([ffconfig.batch_size, args.features], DataType.DT_FLOAT)
    if parts == 1:
        t = ffmodel.dense(input_tensor, args.hidden, ActiMode.AC_MODE_RELU, name="whole")
    else:
        pieces = ffmodel.split(input_tensor, parts, 1)
        t = ffmodel.concat(
            [
                ffmodel.dense(piece, args.hidden // parts, ActiMode.AC_MODE_RELU, name=f"part{i}")
                for i, piece in enumerate(pieces)
            ],
            1,
        )
    ffmodel.softmax(ffmodel.dense(t, args.classes, name="top"))
    ffmodel.compile(
        optimizer=SGDOptimizer(ffmodel, args.rate),
        loss_type=LossType.LOSS_SPARSE_CATEGORICAL_CROSSENTROPY,
        metrics=[MetricsType.METRICS_ACCURACY],
    )
    return ffmodel, input_tensor


def top_level_task():
    args = arguments(features=64, hidden=32, classes=4, parts=2)
    ffconfig = FFConfig()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(args.samples, args.features)).astype(np.float32)
    x, y = dataset(ffconfig, x, x[:, : args.classes].argmax(1).astype(np.int32))

    split, _ = model(ffconfig, args, args.parts)
    found = split.eval(x, y)["loss"]
    weights = split.parameters()
    whole, input_tensor = model(ffconfig, args, 1)
    blocks = np.zeros((args.hidden, args.features), np.float32)
    rows, columns = args.hidden // args.parts, args.features // args.parts
    for i in range(args.parts):
        blocks[i * rows : (i + 1) * rows, i * columns : (i + 1) * columns] = weights[f"part{i}.kernel"]
    whole.set_parameters({"whole.kernel": blocks, "top.kernel": weights["top.kernel"]})
    print(f"split {found:.9g}, unsplit {whole.eval(x, y)['loss']:.9g}")
    train(whole, ffconfig, input_tensor, x, y)


if __name__ == "__main__":
    top_level_task()
