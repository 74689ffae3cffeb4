"""DenseNet-121 (Huang et al. 2016)."""
import torch
from torch import nn

from . import DEEP_NORMS, Model, calm, classes, images


class Layer(nn.Module):
    def __init__(self, inputs, growth, dropout):
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            nn.Dropout(dropout))

    def forward(self, *features):
        return self.body(torch.cat(features, 1))


class Block(nn.Module):
    def __init__(self, layers, inputs, growth, dropout):
        super().__init__()
        self.layers = nn.ModuleList(Layer(inputs + i * growth, growth, dropout) for i in range(layers))

    def forward(self, x):
        features = [x]
        for layer in self.layers:
            features.append(layer(*features))
        return torch.cat(features, 1)


def densenet121(growth=32, outputs=1000, dropout=0.0):
    channels = 2 * growth
    modules = [nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
               nn.MaxPool2d(3, 2, 1)]
    for block, layers in enumerate((6, 12, 24, 16)):
        modules.append(Block(layers, channels, growth, dropout))
        channels += layers * growth
        if block < 3:
            modules += [nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels // 2, 1, bias=False),
                        nn.AvgPool2d(2)]
            channels //= 2
    return calm(nn.Sequential(*modules, nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                 nn.Linear(channels, outputs)))


MODELS = [
    Model("DenseNet-121", lambda: densenet121(growth=4, outputs=100), images(3, 64), classes(100), batch=8,
          learning_rate=0.001, **DEEP_NORMS,
          published=(densenet121, 7_978_856)),
]
