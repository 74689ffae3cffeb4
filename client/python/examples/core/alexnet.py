"""AlexNet. python alexnet.py -b 64 -e 2 --image 229"""

from common import arguments, dataset, images, train

from espalier.core import ActiMode, DataType, FFConfig, FFModel, LossType, MetricsType, SGDOptimizer


def alexnet(ffmodel, t, width, classes):
    relu = ActiMode.AC_MODE_RELU
    t = ffmodel.conv2d(t, 64 // width, 11, 11, 4, 4, 2, 2, relu)
    t = ffmodel.pool2d(t, 3, 3, 2, 2, 0, 0)
    t = ffmodel.conv2d(t, 192 // width, 5, 5, 1, 1, 2, 2, relu)
    t = ffmodel.pool2d(t, 3, 3, 2, 2, 0, 0)
    t = ffmodel.conv2d(t, 384 // width, 3, 3, 1, 1, 1, 1, relu)
    t = ffmodel.conv2d(t, 256 // width, 3, 3, 1, 1, 1, 1, relu)
    t = ffmodel.conv2d(t, 256 // width, 3, 3, 1, 1, 1, 1, relu)
    t = ffmodel.pool2d(t, 3, 3, 2, 2, 0, 0)
    t = ffmodel.flat(t)
    t = ffmodel.dense(t, 4096 // width, relu)
    t = ffmodel.dense(t, 4096 // width, relu)
    return ffmodel.softmax(ffmodel.dense(t, classes))


def top_level_task():
    args = arguments(image=229, divide_width_by=1, classes=10)
    ffconfig = FFConfig()
    ffmodel = FFModel(ffconfig)
    shape = [3, args.image, args.image]
    input_tensor = ffmodel.create_tensor([ffconfig.batch_size, *shape], DataType.DT_FLOAT)
    alexnet(ffmodel, input_tensor, args.divide_width_by, args.classes)
    ffmodel.compile(
        optimizer=SGDOptimizer(ffmodel, args.rate),
        loss_type=LossType.LOSS_SPARSE_CATEGORICAL_CROSSENTROPY,
        metrics=[MetricsType.METRICS_ACCURACY, MetricsType.METRICS_SPARSE_CATEGORICAL_CROSSENTROPY],
    )
    train(ffmodel, ffconfig, input_tensor, *dataset(ffconfig, *images(args.samples, shape, args.classes)))


if __name__ == "__main__":
    top_level_task()
