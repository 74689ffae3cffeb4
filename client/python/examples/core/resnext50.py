"""ResNeXt-50, 32 groups of 4 channels. python resnext50.py -b 16 -e 2 --image 224"""

from common import arguments, dataset, images, train

from espalier.core import ActiMode, DataType, FFConfig, FFModel, LossType, MetricsType, PoolType, SGDOptimizer


def block(ffmodel, input, channels, stride, groups):
    relu = ActiMode.AC_MODE_RELU
    t = ffmodel.conv2d(input, channels, 1, 1, 1, 1, 0, 0, relu)
    t = ffmodel.conv2d(t, channels, 3, 3, stride, stride, 1, 1, relu, groups=groups)
    t = ffmodel.batch_norm(ffmodel.conv2d(t, 2 * channels, 1, 1, 1, 1, 0, 0), relu=False)
    if stride > 1 or input.dims[1] != 2 * channels:
        input = ffmodel.conv2d(input, 2 * channels, 1, 1, stride, stride, 0, 0)
    return ffmodel.relu(ffmodel.add(input, t))


def resnext(ffmodel, t, blocks, groups, width, classes):
    t = ffmodel.conv2d(t, 64, 7, 7, 2, 2, 3, 3, ActiMode.AC_MODE_RELU)
    t = ffmodel.pool2d(t, 3, 3, 2, 2, 1, 1)
    for stage, count in enumerate(blocks):
        for number in range(count):
            t = block(ffmodel, t, (groups * width) << stage, 2 if stage and not number else 1, groups)
    t = ffmodel.pool2d(t, *t.dims[2:], 1, 1, 0, 0, PoolType.POOL_AVG)
    return ffmodel.softmax(ffmodel.dense(ffmodel.flat(t), classes))


def top_level_task():
    args = arguments(image=224, groups=32, width=4, blocks=[3, 4, 6, 3], classes=10)
    ffconfig = FFConfig()
    ffmodel = FFModel(ffconfig)
    shape = [3, args.image, args.image]
    input_tensor = ffmodel.create_tensor([ffconfig.batch_size, *shape], DataType.DT_FLOAT)
    resnext(ffmodel, input_tensor, args.blocks, args.groups, args.width, args.classes)
    ffmodel.compile(
        optimizer=SGDOptimizer(ffmodel, args.rate),
        loss_type=LossType.LOSS_SPARSE_CATEGORICAL_CROSSENTROPY,
        metrics=[MetricsType.METRICS_ACCURACY],
    )
    train(ffmodel, ffconfig, input_tensor, *dataset(ffconfig, *images(args.samples, shape, args.classes)))


if __name__ == "__main__":
    top_level_task()
