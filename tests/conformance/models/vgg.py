"""VGG-11 (Simonyan and Zisserman 2014, configuration A)."""
from torch import nn

from . import Model, calm, classes, images

BLOCKS = [(64, 1), (128, 1), (256, 2), (512, 2), (512, 2)]


def vgg11(divide=1, pooled=7, outputs=1000, dropout=0.5):
    modules, channels = [], 3
    for width, convolutions in BLOCKS:
        for _ in range(convolutions):
            modules += [nn.Conv2d(channels, width // divide, 3, padding=1), nn.ReLU()]
            channels = width // divide
        modules.append(nn.MaxPool2d(2))
    dense = 4096 // divide
    return calm(nn.Sequential(
        *modules, nn.AdaptiveAvgPool2d(pooled), nn.Flatten(),
        nn.Linear(channels * pooled * pooled, dense), nn.ReLU(), nn.Dropout(dropout),
        nn.Linear(dense, dense), nn.ReLU(), nn.Dropout(dropout), nn.Linear(dense, outputs)))


MODELS = [
    Model("VGG-11", lambda: vgg11(divide=8, pooled=2, outputs=100, dropout=0.0), images(3, 64), classes(100),
          published=(vgg11, 132_863_336)),
]
