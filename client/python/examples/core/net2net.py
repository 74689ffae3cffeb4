"""Net2Net: a wider student begins with what its teacher has learned. python net2net.py -b 64 -e 4 --student 96

Each new unit of the hidden layer is a copy of one of the teacher's, and the kernels behind copies are divided among
them (Chen et al., 2016: Net2WiderNet), so that the student computes what the teacher computes.
"""

import numpy as np
from common import arguments, dataset, train

from espalier.core import ActiMode, DataType, FFConfig, FFModel, LossType, MetricsType, SGDOptimizer


def model(ffconfig, args, width):
    ffmodel = FFModel(ffconfig)
    input_tensor = ffmodel.create_tensor([ffconfig.batch_size, args.features], DataType.DT_FLOAT)
    t = ffmodel.dense(input_tensor, width, ActiMode.AC_MODE_RELU, name="hidden")
    ffmodel.softmax(ffmodel.dense(t, args.classes, name="top"))
    ffmodel.compile(
        optimizer=SGDOptimizer(ffmodel, args.rate),
        loss_type=LossType.LOSS_SPARSE_CATEGORICAL_CROSSENTROPY,
        metrics=[MetricsType.METRICS_ACCURACY],
    )
    return ffmodel, input_tensor


def widened(hidden_kernel, hidden_bias, top_kernel, width):
    rng = np.random.default_rng(0)
    old = len(hidden_bias)
    source = np.concatenate([np.arange(old), rng.integers(0, old, width - old)])
    copies = np.bincount(source)[source]
    return hidden_kernel[source], hidden_bias[source], top_kernel[:, source] / copies


def top_level_task():
    args = arguments(features=64, classes=4, teacher=32, student=48, rate=0.1, samples=512)
    ffconfig = FFConfig()
    rng = np.random.default_rng(0)
    x = rng.normal(size=(args.samples, args.features)).astype(np.float32)
    x, y = dataset(ffconfig, x, x[:, : args.classes].argmax(1).astype(np.int32))

    teacher, input1 = model(ffconfig, args, args.teacher)
    train(teacher, ffconfig, input1, x, y)
    learned = teacher.eval(x, y)["loss"]
    hidden, top = teacher.get_layer_by_name("hidden"), teacher.get_layer_by_name("top")
    kernel = hidden.get_weight_tensor().get_weights(teacher)
    bias = hidden.get_bias_tensor().get_weights(teacher)
    top_kernel, top_bias = (parameter.get_weights(teacher) for parameter in top.parameters)

    student, input2 = model(ffconfig, args, args.student)
    hidden, top = student.get_layer_by_name("hidden"), student.get_layer_by_name("top")
    kernel, bias, top_kernel = widened(kernel, bias, top_kernel, args.student)
    hidden.get_weight_tensor().set_weights(student, kernel)
    hidden.get_bias_tensor().set_weights(student, bias)
    top.get_weight_tensor().set_weights(student, top_kernel)
    top.get_bias_tensor().set_weights(student, top_bias)
    print(f"teacher {learned:.9g}, student begins with {student.eval(x, y)['loss']:.9g}")
    train(student, ffconfig, input2, x, y)


if __name__ == "__main__":
    top_level_task()
