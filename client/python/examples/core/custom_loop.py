"""A loop of one's own: forward, zero_gradients, backward, update. python custom_loop.py -b 64 -e 3

It gives bit for bit what fit gives; the program shows it.
"""

import numpy as np
from common import arguments, dataset, images

from espalier.core import ActiMode, AdamOptimizer, DataType, FFConfig, FFModel, LossType, MetricsType


def model(ffconfig, args, shape):
    ffmodel = FFModel(ffconfig)
    input_tensor = ffmodel.create_tensor([ffconfig.batch_size, *shape], DataType.DT_FLOAT)
    t = ffmodel.conv2d(input_tensor, 16, 3, 3, 1, 1, 1, 1, ActiMode.AC_MODE_RELU)
    t = ffmodel.dropout(ffmodel.flat(ffmodel.pool2d(t, 2, 2, 2, 2, 0, 0)), 0.1, 0)
    ffmodel.softmax(ffmodel.dense(t, args.classes))
    ffmodel.compile(
        optimizer=AdamOptimizer(ffmodel, args.rate),
        loss_type=LossType.LOSS_SPARSE_CATEGORICAL_CROSSENTROPY,
        metrics=[MetricsType.METRICS_ACCURACY],
    )
    return ffmodel, input_tensor


def top_level_task():
    args = arguments(image=16, classes=10, rate=0.001)
    ffconfig = FFConfig()
    shape = [3, args.image, args.image]
    x, y = dataset(ffconfig, *images(args.samples, shape, args.classes))

    ffmodel, input_tensor = model(ffconfig, args, shape)
    dataloader_input = ffmodel.create_data_loader(input_tensor, x)
    dataloader_label = ffmodel.create_data_loader(ffmodel.label_tensor, y)
    ffmodel.init_layers()
    losses = []
    for epoch in range(ffconfig.epochs):
        dataloader_input.reset()
        dataloader_label.reset()
        ffmodel.reset_metrics()
        for _ in range(dataloader_input.num_samples // ffconfig.batch_size):
            dataloader_input.next_batch(ffmodel)
            dataloader_label.next_batch(ffmodel)
            ffmodel.forward()
            ffmodel.zero_gradients()
            ffmodel.backward()
            ffmodel.update()
        losses.append(ffmodel.get_perf_metrics().get_loss())
        print(f"epoch {epoch + 1}: {ffmodel.get_perf_metrics()}")
    print(f"loss {losses[0]:.6g} -> {losses[-1]:.6g}")

    weights = ffmodel.parameters()
    other, _ = model(ffconfig, args, shape)
    other.fit(x, y, epochs=ffconfig.epochs)
    same = all(np.array_equal(array, weights[name]) for name, array in other.parameters().items())
    print(f"the same bits as fit: {same}")


if __name__ == "__main__":
    top_level_task()
