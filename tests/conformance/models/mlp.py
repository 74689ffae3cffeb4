"""Dense layers, as FlexFlow's MLP example."""
import torch
from torch import nn

from . import Model, classes


def mlp(inputs, hidden, layers, outputs):
    modules = []
    for i in range(layers):
        modules += [nn.Linear(inputs if i == 0 else hidden, hidden), nn.ReLU()]
    return nn.Sequential(*modules, nn.Linear(hidden, outputs))


MODELS = [
    Model("MLP", lambda: mlp(64, 128, 6, 10), lambda n: {"x": torch.randn(n, 64)}, classes(10), batch=16,
          learning_rate=0.1),
]
