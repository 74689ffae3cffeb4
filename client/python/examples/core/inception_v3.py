"""Inception-v3. python inception_v3.py -b 64 -e 2 --image 299"""

from common import arguments, dataset, images, train

from espalier.core import DataType, FFConfig, FFModel, LossType, MetricsType, PoolType, SGDOptimizer


class Inception:
    """The modules A to E; channels are divided by `divide`."""

    def __init__(self, ffmodel, divide):
        self.ffmodel, self.divide = ffmodel, divide

    def conv(self, t, channels, kernel_h, kernel_w, stride=1, padding_h=0, padding_w=0):
        channels = max(1, channels // self.divide)
        t = self.ffmodel.conv2d(t, channels, kernel_h, kernel_w, stride, stride, padding_h, padding_w, use_bias=False)
        return self.ffmodel.batch_norm(t)

    def pool(self, t, stride, padding, kind=PoolType.POOL_MAX):
        return self.ffmodel.pool2d(t, 3, 3, stride, stride, padding, padding, kind)

    def a(self, t, pooled):
        five = self.conv(self.conv(t, 48, 1, 1), 64, 5, 5, 1, 2, 2)
        three = self.conv(self.conv(self.conv(t, 64, 1, 1), 96, 3, 3, 1, 1, 1), 96, 3, 3, 1, 1, 1)
        rest = self.conv(self.pool(t, 1, 1, PoolType.POOL_AVG), pooled, 1, 1)
        return self.ffmodel.concat([self.conv(t, 64, 1, 1), five, three, rest], 1)

    def b(self, t):
        three = self.conv(self.conv(self.conv(t, 64, 1, 1), 96, 3, 3, 1, 1, 1), 96, 3, 3, 2)
        return self.ffmodel.concat([self.conv(t, 384, 3, 3, 2), three, self.pool(t, 2, 0)], 1)

    def c(self, t, channels):
        seven = self.conv(self.conv(self.conv(t, channels, 1, 1), channels, 1, 7, 1, 0, 3), 192, 7, 1, 1, 3, 0)
        twice = self.conv(self.conv(self.conv(t, channels, 1, 1), channels, 7, 1, 1, 3, 0), channels, 1, 7, 1, 0, 3)
        twice = self.conv(self.conv(twice, channels, 7, 1, 1, 3, 0), 192, 1, 7, 1, 0, 3)
        rest = self.conv(self.pool(t, 1, 1, PoolType.POOL_AVG), 192, 1, 1)
        return self.ffmodel.concat([self.conv(t, 192, 1, 1), seven, twice, rest], 1)

    def d(self, t):
        three = self.conv(self.conv(t, 192, 1, 1), 320, 3, 3, 2)
        seven = self.conv(self.conv(self.conv(t, 192, 1, 1), 192, 1, 7, 1, 0, 3), 192, 7, 1, 1, 3, 0)
        return self.ffmodel.concat([three, self.conv(seven, 192, 3, 3, 2), self.pool(t, 2, 0)], 1)

    def e(self, t):
        three = self.conv(t, 384, 1, 1)
        five = self.conv(self.conv(t, 448, 1, 1), 384, 3, 3, 1, 1, 1)
        parts = [self.conv(t, 320, 1, 1)]
        for branch in (three, five):
            parts += [self.conv(branch, 384, 1, 3, 1, 0, 1), self.conv(branch, 384, 3, 1, 1, 1, 0)]
        parts.append(self.conv(self.pool(t, 1, 1, PoolType.POOL_AVG), 192, 1, 1))
        return self.ffmodel.concat(parts, 1)

    def model(self, t, classes):
        t = self.conv(self.conv(self.conv(t, 32, 3, 3, 2), 32, 3, 3), 64, 3, 3, 1, 1, 1)
        t = self.conv(self.conv(self.pool(t, 2, 0), 80, 1, 1), 192, 3, 3)
        t = self.pool(t, 2, 0)
        for pooled in (32, 64, 64):
            t = self.a(t, pooled)
        t = self.b(t)
        for channels in (128, 160, 160, 192):
            t = self.c(t, channels)
        t = self.e(self.e(self.d(t)))
        t = self.ffmodel.pool2d(t, *t.dims[2:], 1, 1, 0, 0, PoolType.POOL_AVG)
        return self.ffmodel.softmax(self.ffmodel.dense(self.ffmodel.flat(t), classes))


def top_level_task():
    args = arguments(image=299, divide_width_by=1, classes=10)
    ffconfig = FFConfig()
    ffmodel = FFModel(ffconfig)
    shape = [3, args.image, args.image]
    input_tensor = ffmodel.create_tensor([ffconfig.batch_size, *shape], DataType.DT_FLOAT)
    Inception(ffmodel, args.divide_width_by).model(input_tensor, args.classes)
    ffmodel.compile(
        optimizer=SGDOptimizer(ffmodel, args.rate),
        loss_type=LossType.LOSS_SPARSE_CATEGORICAL_CROSSENTROPY,
        metrics=[MetricsType.METRICS_ACCURACY],
    )
    train(ffmodel, ffconfig, input_tensor, *dataset(ffconfig, *images(args.samples, shape, args.classes)))


if __name__ == "__main__":
    top_level_task()
