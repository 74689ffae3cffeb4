"""Chapter 7.3.1 of FlexFlow's manual: a module is written to an ONNX file, without its parameters.

The manual leaves the module out; here it is a small CNN.
"""

import torch
import torch.nn as nn
from torch.onnx import TrainingMode


# create a PyTorch Model
class MyPyTorchModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 16, 5, 2, 2), nn.ReLU(), nn.MaxPool2d(2, 2), nn.BatchNorm2d(16))
        self.classifier = nn.Sequential(nn.Linear(1024, 64), nn.ReLU(), nn.Linear(64, 10), nn.Softmax(1))

    def forward(self, x):
        return self.classifier(torch.flatten(self.features(x), 1))


input = torch.randn(64, 3, 32, 32)

# export the PyTorch model to a ONNX model
model = MyPyTorchModule()
torch.onnx.export(model, (input), "cifar10_cnn.onnx", export_params=False, training=TrainingMode.TRAINING)
