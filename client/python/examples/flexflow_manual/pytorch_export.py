"""Chapter 7.2.1 of FlexFlow's manual, and its README's "PyTorch Support": a module is written to a file.

The manual leaves the module out; here it is a small CNN.
"""

import torch
from torch import nn

import espalier.torch.fx as fx


# create a PyTorch Model
class MyPyTorchModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 5, 2)
        self.conv2 = nn.Conv2d(16, 32, 3, 1)
        self.pool = nn.MaxPool2d(2, 2)
        self.flat = nn.Flatten()
        self.linear = nn.Linear(32 * 6 * 6, 10)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x):
        x = self.pool(torch.relu(self.conv2(torch.relu(self.conv1(x)))))
        return self.softmax(self.linear(self.flat(x)))


# export the PyTorch Model to an external file
model = MyPyTorchModule()
fx.torch_to_flexflow(model, "filename")
