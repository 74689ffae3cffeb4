"""ONNX export: the ONNX project's checker accepts the files, and ONNX Runtime and we compute equal results."""
import os
import subprocess
import sys
import tempfile
import unittest
import warnings

import numpy as np
import torch
from torch import nn

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import onnx_environment  # noqa: E402
from runner import Runner, from_json, to_json  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(17, 12)
        self.qkv = nn.Linear(12, 36)
        self.norm = nn.LayerNorm(12)
        self.out = nn.Linear(12, 5)

    def forward(self, ids):
        x = self.norm(self.table(ids))
        q, k, v = (t.reshape(t.shape[0], -1, 3, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = (q @ k.transpose(2, 3) / 2).masked_fill(torch.triu(torch.ones(6, 6, dtype=torch.bool), 1), -1e9)
        y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self.out(x + nn.functional.gelu(y)).mean(1)


def cnn():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.SiLU(),
        nn.Conv2d(8, 8, 3, groups=2, dilation=2, padding=2), nn.GroupNorm(2, 8), nn.Hardswish(),
        nn.AvgPool2d(2), nn.Upsample(scale_factor=2), nn.ConvTranspose2d(8, 6, 3, stride=2, padding=1, output_padding=1),
        nn.InstanceNorm2d(6, affine=True), nn.PReLU(6), nn.MaxPool2d(3, 2, ceil_mode=True), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Dropout(), nn.Linear(6, 5), nn.LogSoftmax(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5, bidirectional=True, batch_first=False)
        self.gru = nn.GRU(10, 3)

    def forward(self, x):
        return self.gru(self.lstm(x.transpose(0, 1))[0])[0].sum(0).clamp(-0.5, 0.5)


class OnnxExportTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.run_op = Runner("onnx_runner")
        cls.folder = tempfile.TemporaryDirectory()
        cls.python = onnx_environment.python()
        warnings.simplefilter("ignore")

    @classmethod
    def tearDownClass(cls):
        cls.run_op.close()
        cls.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def follow(self, module, example, opset=16):
        module = module.eval()
        for parameter in module.parameters():  # no ones and zeros, by which a lost weight would not show
            parameter.data.add_(0.1 * torch.randn_like(parameter))
        torch.onnx.export(module, example, self.path("theirs.onnx"), opset_version=opset, input_names=["x"],
                          output_names=["y"], dynamic_axes={"x": {0: "n"}, "y": {0: "n"}})
        expected = module(example).detach().double()
        for weights in (None, self.path("ours.bin")):
            more = {"weights": weights} if weights else {}
            answer = self.run_op(onnx=self.path("theirs.onnx"), export=self.path("ours.onnx"), **more)
            self.assertNotIn("error", answer)
            np.savez(self.path("data.npz"), **{"x": example.numpy(), "output:y": expected.numpy()})
            subprocess.run([self.python, os.path.join(HERE, "onnx_export_check.py"), self.path("ours.onnx"),
                            self.path("data.npz")], check=True)
            for batch in (example.shape[0], 1):
                answer = self.run_op(onnx=self.path("ours.onnx"), batch=batch, training=False,
                                     feeds={"x": to_json(example[:batch])})
                self.assertNotIn("error", answer)
                error = (from_json(answer["results"]["y"]) - expected[:batch]).abs().max().item()
                self.assertLess(error, 1e-4)

    def test_convolutions_and_norms(self):
        torch.manual_seed(1)
        self.follow(cnn(), torch.randn(2, 3, 32, 32))

    def test_attention(self):
        torch.manual_seed(2)
        self.follow(Attention(), torch.randint(0, 17, (3, 6)))

    def test_recurrent(self):
        torch.manual_seed(3)
        self.follow(Recurrent(), torch.randn(2, 7, 4))


if __name__ == "__main__":
    unittest.main()
