#!/usr/bin/python3
"""Makes digits_cnn.onnx: a small CNN for 8 x 8 digits, exported from PyTorch in training form.

Weights are PyTorch's random initial ones (seed 7). Run with Debian's python3-torch (1.13):
    tests/data/make_digits_cnn.py tests/data/digits_cnn.onnx
"""
import sys

import torch
from torch import nn


def model():
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 64),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(64, 10),
    )


if __name__ == "__main__":
    torch.onnx.export(
        model(),
        torch.zeros(2, 1, 8, 8),
        sys.argv[1],
        opset_version=15,
        training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False,
        input_names=["x"],
        output_names=["logits"],
        dynamic_axes={"x": {0: "batch"}, "logits": {0: "batch"}},
    )
