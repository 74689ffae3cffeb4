"""Split and concatenate: three convolutions in a row of channels, of which the middle one goes on.

python split_test_2.py -b 64 -e 2
"""

from common import arguments, dataset, images, train

from espalier.core import ActiMode, DataType, FFConfig, FFModel, LossType, MetricsType, SGDOptimizer


def top_level_task():
    args = arguments(image=32, width=32, classes=10)
    ffconfig = FFConfig()
    relu = ActiMode.AC_MODE_RELU
    shape = [3, args.image, args.image]
    x, y = dataset(ffconfig, *images(args.samples, shape, args.classes))
    losses, begun = {}, {}
    for splits in (True, False):
        ffmodel = FFModel(ffconfig)
        input_tensor = ffmodel.create_tensor([ffconfig.batch_size, *shape], DataType.DT_FLOAT)
        branches = [
            ffmodel.conv2d(input_tensor, args.width, 3, 3, 1, 1, 1, 1, relu, name=f"branch{i}") for i in range(3)
        ]
        t = ffmodel.split(ffmodel.concat(branches, 1), 3, 1)[1] if splits else branches[1]
        t = ffmodel.conv2d(t, args.width, 3, 3, 1, 1, 1, 1, relu, name="next")
        t = ffmodel.pool2d(t, 2, 2, 2, 2, 0, 0)
        ffmodel.softmax(ffmodel.dense(ffmodel.flat(t), args.classes, name="top"))
        ffmodel.compile(
            optimizer=SGDOptimizer(ffmodel, args.rate),
            loss_type=LossType.LOSS_SPARSE_CATEGORICAL_CROSSENTROPY,
            metrics=[MetricsType.METRICS_ACCURACY],
        )
        if splits:
            begun = ffmodel.parameters()
        else:
            ffmodel.set_parameters({name: begun[name] for name in ffmodel.parameters()})
        losses[splits] = train(ffmodel, ffconfig, input_tensor, x, y)[-1]["loss"]
    print(f"split {losses[True]:.9g}, unsplit {losses[False]:.9g}")


if __name__ == "__main__":
    top_level_task()
