"""AlexNet (Krizhevsky 2014, one column)."""
from torch import nn

from . import Model, classes, images


def alexnet(divide=1, pooled=6, outputs=1000, dropout=0.5):
    c = [n // divide for n in (64, 192, 384, 256, 256)]
    dense = 4096 // divide
    return nn.Sequential(
        nn.Conv2d(3, c[0], 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(c[0], c[1], 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(c[1], c[2], 3, padding=1), nn.ReLU(),
        nn.Conv2d(c[2], c[3], 3, padding=1), nn.ReLU(),
        nn.Conv2d(c[3], c[4], 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.AdaptiveAvgPool2d(pooled), nn.Flatten(),
        nn.Dropout(dropout), nn.Linear(c[4] * pooled * pooled, dense), nn.ReLU(),
        nn.Dropout(dropout), nn.Linear(dense, dense), nn.ReLU(), nn.Linear(dense, outputs))


MODELS = [
    Model("AlexNet", lambda: alexnet(divide=4, pooled=3, outputs=100, dropout=0.0), images(3, 127), classes(100),
          published=(alexnet, 61_100_840)),
]
