"""VGG-11 and VGG-16 (Simonyan and Zisserman 2014, configurations A and D)."""
from torch import nn

from . import Model, calm, classes, images

WIDTHS = [64, 128, 256, 512, 512]


def vgg(blocks, divide=1, pooled=7, outputs=1000, dropout=0.5):
    modules, channels = [], 3
    for width, convolutions in zip(WIDTHS, blocks):
        for _ in range(convolutions):
            modules += [nn.Conv2d(channels, width // divide, 3, padding=1), nn.ReLU()]
            channels = width // divide
        modules.append(nn.MaxPool2d(2))
    dense = 4096 // divide
    return calm(nn.Sequential(
        *modules, nn.AdaptiveAvgPool2d(pooled), nn.Flatten(),
        nn.Linear(channels * pooled * pooled, dense), nn.ReLU(), nn.Dropout(dropout),
        nn.Linear(dense, dense), nn.ReLU(), nn.Dropout(dropout), nn.Linear(dense, outputs)))


def vgg11(**options):
    return vgg([1, 1, 2, 2, 2], **options)


def vgg16(**options):
    return vgg([2, 2, 3, 3, 3], **options)


MODELS = [
    Model("VGG-11", lambda: vgg11(divide=8, pooled=2, outputs=100, dropout=0.0), images(3, 64), classes(100),
          published=(vgg11, 132_863_336)),
]
