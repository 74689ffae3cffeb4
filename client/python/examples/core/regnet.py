"""RegNet of torchvision, through a file of torch_to_flexflow. python regnet.py -b 16 -e 2 --image 224"""

import tempfile
from pathlib import Path

import torch
from common import arguments, dataset, images, train
from torch import nn
from torchvision.models.regnet import BlockParams, RegNet

import espalier.torch.fx as fx
from espalier.core import DataType, FFConfig, FFModel, LossType, MetricsType, SGDOptimizer
from espalier.torch.model import PyTorchModel


def top_level_task():
    args = arguments(image=224, depth=13, first=24, slope=36.4, factor=2.24, group=8, classes=10)
    ffconfig = FFConfig()
    torch.manual_seed(0)
    blocks = BlockParams.from_init_params(args.depth, args.first, args.slope, args.factor, args.group, se_ratio=0.25)
    module = nn.Sequential(RegNet(blocks, num_classes=args.classes), nn.Softmax(-1))
    ffmodel = FFModel(ffconfig)
    shape = [3, args.image, args.image]
    input_tensor = ffmodel.create_tensor([ffconfig.batch_size, *shape], DataType.DT_FLOAT)
    with tempfile.TemporaryDirectory() as folder:
        fx.torch_to_flexflow(module, Path(folder) / "regnet.ff")
        PyTorchModel(Path(folder) / "regnet.ff").apply(ffmodel, [input_tensor])
    ffmodel.compile(
        optimizer=SGDOptimizer(ffmodel, args.rate),
        loss_type=LossType.LOSS_SPARSE_CATEGORICAL_CROSSENTROPY,
        metrics=[MetricsType.METRICS_ACCURACY],
    )
    train(ffmodel, ffconfig, input_tensor, *dataset(ffconfig, *images(args.samples, shape, args.classes)))


if __name__ == "__main__":
    top_level_task()
