"""ResNet-50. python resnet.py -b 64 -e 2 --image 224"""

from common import arguments, dataset, images, train

from espalier.core import DataType, FFConfig, FFModel, LossType, MetricsType, PoolType, SGDOptimizer


def bottleneck(ffmodel, input, channels, stride):
    t = ffmodel.conv2d(input, channels, 1, 1, 1, 1, 0, 0, use_bias=False)
    t = ffmodel.batch_norm(t)
    t = ffmodel.conv2d(t, channels, 3, 3, stride, stride, 1, 1, use_bias=False)
    t = ffmodel.batch_norm(t)
    t = ffmodel.conv2d(t, 4 * channels, 1, 1, 1, 1, 0, 0, use_bias=False)
    t = ffmodel.batch_norm(t, relu=False)
    if stride > 1 or input.dims[1] != 4 * channels:
        input = ffmodel.conv2d(input, 4 * channels, 1, 1, stride, stride, 0, 0, use_bias=False)
        input = ffmodel.batch_norm(input, relu=False)
    return ffmodel.relu(ffmodel.add(input, t))


def resnet(ffmodel, t, blocks, width, classes):
    t = ffmodel.batch_norm(ffmodel.conv2d(t, width, 7, 7, 2, 2, 3, 3, use_bias=False))
    t = ffmodel.pool2d(t, 3, 3, 2, 2, 1, 1)
    for stage, count in enumerate(blocks):
        for block in range(count):
            t = bottleneck(ffmodel, t, width << stage, 2 if stage and not block else 1)
    t = ffmodel.pool2d(t, *t.dims[2:], 1, 1, 0, 0, PoolType.POOL_AVG)
    return ffmodel.softmax(ffmodel.dense(ffmodel.flat(t), classes))


def top_level_task():
    args = arguments(image=224, width=64, blocks=[3, 4, 6, 3], classes=10)
    ffconfig = FFConfig()
    ffmodel = FFModel(ffconfig)
    shape = [3, args.image, args.image]
    input_tensor = ffmodel.create_tensor([ffconfig.batch_size, *shape], DataType.DT_FLOAT)
    resnet(ffmodel, input_tensor, args.blocks, args.width, args.classes)
    ffmodel.compile(
        optimizer=SGDOptimizer(ffmodel, args.rate, momentum=0.9),
        loss_type=LossType.LOSS_SPARSE_CATEGORICAL_CROSSENTROPY,
        metrics=[MetricsType.METRICS_ACCURACY],
    )
    train(ffmodel, ffconfig, input_tensor, *dataset(ffconfig, *images(args.samples, shape, args.classes)))


if __name__ == "__main__":
    top_level_task()
