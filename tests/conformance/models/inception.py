"""Inception-v3 (Szegedy et al. 2015) without the auxiliary head."""
import torch
from torch import nn
from torch.nn import functional as F

from . import DEEP_NORMS, Model, calm, classes, images


class Conv(nn.Sequential):
    def __init__(self, inputs, outputs, kernel, stride=1, padding=0):
        super().__init__(nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False),
                         nn.BatchNorm2d(outputs, eps=0.001), nn.ReLU())


class Branches(nn.Module):
    """Outputs side by side; each branch is a list of modules, one after the other."""

    def __init__(self, *branches):
        super().__init__()
        self.branches = nn.ModuleList(nn.Sequential(*branch) for branch in branches)

    def forward(self, x):
        return torch.cat([branch(x) for branch in self.branches], 1)


class AveragePool(nn.Module):
    def forward(self, x):
        return F.avg_pool2d(x, kernel_size=3, stride=1, padding=1)


def inception_v3(divide=1, outputs=1000, dropout=0.5):
    def w(n):
        return n // divide

    def conv(inputs, outputs, kernel, stride=1, padding=0):
        return Conv(inputs, w(outputs), kernel, stride, padding)

    def a(inputs, pool):
        return Branches([conv(inputs, 64, 1)],
                        [conv(inputs, 48, 1), conv(w(48), 64, 5, padding=2)],
                        [conv(inputs, 64, 1), conv(w(64), 96, 3, padding=1), conv(w(96), 96, 3, padding=1)],
                        [AveragePool(), conv(inputs, pool, 1)])

    def b(inputs):
        return Branches([conv(inputs, 384, 3, 2)],
                        [conv(inputs, 64, 1), conv(w(64), 96, 3, padding=1), conv(w(96), 96, 3, 2)],
                        [nn.MaxPool2d(3, 2)])

    def c(inputs, inner):
        wide, high = dict(kernel=(1, 7), padding=(0, 3)), dict(kernel=(7, 1), padding=(3, 0))
        return Branches([conv(inputs, 192, 1)],
                        [conv(inputs, inner, 1), conv(w(inner), inner, **wide), conv(w(inner), 192, **high)],
                        [conv(inputs, inner, 1), conv(w(inner), inner, **high), conv(w(inner), inner, **wide),
                         conv(w(inner), inner, **high), conv(w(inner), 192, **wide)],
                        [AveragePool(), conv(inputs, 192, 1)])

    def d(inputs):
        return Branches([conv(inputs, 192, 1), conv(w(192), 320, 3, 2)],
                        [conv(inputs, 192, 1), conv(w(192), 192, (1, 7), padding=(0, 3)),
                         conv(w(192), 192, (7, 1), padding=(3, 0)), conv(w(192), 192, 3, 2)],
                        [nn.MaxPool2d(3, 2)])

    def fork(inputs):
        return Branches([conv(inputs, 384, (1, 3), padding=(0, 1))], [conv(inputs, 384, (3, 1), padding=(1, 0))])

    def e(inputs):
        return Branches([conv(inputs, 320, 1)],
                        [conv(inputs, 384, 1), fork(w(384))],
                        [conv(inputs, 448, 1), conv(w(448), 384, 3, padding=1), fork(w(384))],
                        [AveragePool(), conv(inputs, 192, 1)])

    return calm(nn.Sequential(
        conv(3, 32, 3, 2), conv(w(32), 32, 3), conv(w(32), 64, 3, padding=1), nn.MaxPool2d(3, 2),
        conv(w(64), 80, 1), conv(w(80), 192, 3), nn.MaxPool2d(3, 2),
        a(w(192), 32), a(w(256), 64), a(w(288), 64), b(w(288)),
        c(w(768), 128), c(w(768), 160), c(w(768), 160), c(w(768), 192), d(w(768)),
        e(w(1280)), e(w(2048)),
        nn.AdaptiveAvgPool2d(1), nn.Dropout(dropout), nn.Flatten(), nn.Linear(w(2048), outputs)))


MODELS = [
    Model("Inception-v3", lambda: inception_v3(divide=8, outputs=100, dropout=0.0), images(3, 107), classes(100),
          learning_rate=0.001, **DEEP_NORMS,
          published=(inception_v3, 23_834_568)),
]
