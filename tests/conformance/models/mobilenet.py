"""MobileNetV2 (Sandler et al. 2018)."""
from torch import nn

from . import DEEP_NORMS, Model, calm, classes, images

# expansion, channels, blocks, stride of the first
STAGES = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]


def convolution(inputs, outputs, kernel=1, stride=1, groups=1):
    return [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
            nn.BatchNorm2d(outputs), nn.ReLU6()]


class InvertedResidual(nn.Module):
    def __init__(self, inputs, outputs, stride, expansion):
        super().__init__()
        inner = inputs * expansion
        self.adds = stride == 1 and inputs == outputs
        self.body = nn.Sequential(
            *(convolution(inputs, inner) if expansion != 1 else []),
            *convolution(inner, inner, 3, stride, groups=inner),
            nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return x + self.body(x) if self.adds else self.body(x)


def mobilenet_v2(divide=1, outputs=1000, dropout=0.2):
    channels = 32 // divide
    modules = convolution(3, channels, 3, 2)
    for expansion, width, blocks, stride in STAGES:
        for block in range(blocks):
            modules.append(InvertedResidual(channels, width // divide, stride if block == 0 else 1, expansion))
            channels = width // divide
    last = 1280 // divide
    return calm(nn.Sequential(*modules, *convolution(channels, last), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                                 nn.Dropout(dropout), nn.Linear(last, outputs)))


MODELS = [
    Model("MobileNetV2", lambda: mobilenet_v2(divide=4, outputs=100, dropout=0.0), images(3, 64), classes(100), batch=8,
          learning_rate=0.001, **DEEP_NORMS,
          published=(mobilenet_v2, 3_504_872)),
]
