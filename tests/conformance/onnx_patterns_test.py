"""PyTorch's ONNX export of single modules and functions, imported with a symbolic batch and run at several sizes."""
import os
import sys
import tempfile
import unittest
import warnings

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from runner import Runner, from_json, to_json  # noqa: E402


class Call(nn.Module):
    """A function of x and modules, as a module."""

    def __init__(self, function, *modules):
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(modules)

    def forward(self, x):
        return self.function(x, *self.parts)


SEQUENCE, IMAGE = (6, 8), (4, 8, 8)  # without the batch
OF_SEQUENCES = {
    "amax": lambda x: x.amax((1, 2)),
    "arange": lambda x: x + torch.arange(x.shape[1]).float()[None, :, None],
    "baddbmm": lambda x: torch.baddbmm(x, x, x.transpose(1, 2) @ x),
    "chunk": lambda x: x.chunk(3, 1)[1],
    "clamp": lambda x: x.clamp(min=0.1),
    "class token": lambda x: torch.cat([torch.ones(1, 1, 8).expand(x.shape[0], -1, -1), x], 1),
    "cumsum": lambda x: x.cumsum(1),
    "erf": torch.erf,
    "expand": lambda x: x.mean(1, keepdim=True).expand(-1, 6, -1) + 0,
    "flip": lambda x: x.flip(1),
    "gather": lambda x: x.gather(1, (x[:, :2] > 0).long()),
    "index": lambda x: x[:, [2, 0, 1]],
    "logsumexp": lambda x: x.logsumexp(-1),
    "masked_fill": lambda x: x.masked_fill(x > 0, 1.5),
    "max": lambda x: x.max(1)[0],
    "norm": lambda x: x / x.norm(dim=-1, keepdim=True),
    "one_hot": lambda x: F.one_hot(x.argmax(-1), 8).float(),
    "remainder": lambda x: torch.remainder(x, 0.7),
    "repeat": lambda x: x.repeat(1, 2, 1),
    "roll": lambda x: torch.roll(x, 1, 1),
    "size": lambda x: x * x.shape[1] / x.shape[-1],
    "stack": lambda x: torch.stack([x, x * 2], 2),
    "std": lambda x: x.std(-1),
    "topk": lambda x: x.topk(3, -1)[0],
    "var": lambda x: x.var((1, 2), unbiased=False),
    "where": lambda x: torch.where(x > 0, x, x * 2),
}
OF_IMAGES = {
    "bicubic": lambda x: F.interpolate(x, scale_factor=1.5, mode="bicubic"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
    "corners": lambda x: F.interpolate(x, size=(5, 11), mode="bilinear", align_corners=True),
    "reflect": lambda x: F.pad(x, (1, 2, 1, 0), mode="reflect"),
    "windows": lambda x: x.view(x.shape[0], 4, 2, 4, 2, 4).permute(0, 2, 4, 1, 3, 5).reshape(-1, 4, 4, 4),
}


def modules():
    made = {name: (Call(f), SEQUENCE) for name, f in OF_SEQUENCES.items()}
    made.update({name: (Call(f), IMAGE) for name, f in OF_IMAGES.items()})
    made.update({
        "attention": (Call(lambda x, m: m(x, x, x, need_weights=False)[0], nn.MultiheadAttention(8, 2, batch_first=True)),
                      SEQUENCE),
        "encoder": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu"), SEQUENCE),
        "conv1d": (nn.Sequential(nn.Conv1d(6, 4, 3, padding=1), nn.BatchNorm1d(4), nn.MaxPool1d(2), nn.AvgPool1d(2)),
                   SEQUENCE),
        "conv_transpose1d": (nn.ConvTranspose1d(6, 4, 3, stride=2), SEQUENCE),
        "embedding": (Call(lambda x, m: m((x * 0).long()), nn.Embedding(4, 3)), SEQUENCE),
        "glu": (nn.GLU(), SEQUENCE),
        "lstm": (Call(lambda x, m: m(x)[0], nn.LSTM(8, 5, 2, batch_first=True, bidirectional=True)), SEQUENCE),
        "adaptive": (nn.AdaptiveAvgPool2d(2), IMAGE),
        "instance_norm": (nn.InstanceNorm2d(4), IMAGE),
        "pixel_shuffle": (nn.PixelShuffle(2), IMAGE),
        "unfold": (nn.Unfold(2, stride=2), IMAGE),
    })
    return made


class OnnxPatternsTest(unittest.TestCase):
    def test_node_tests_of_several_opsets(self):
        warnings.simplefilter("ignore")
        torch.manual_seed(4)
        run = Runner("onnx_runner")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model.onnx")
            for opset in (11, 13, 16):
                for name, (module, dims) in modules().items():
                    module.eval()
                    torch.onnx.export(module, torch.randn(2, *dims), path, opset_version=opset, input_names=["x"],
                                      output_names=["y"], dynamic_axes={"x": {0: "n"}, "y": {0: "n"}})
                    for batch in (2, 1, 3):
                        with self.subTest(name, opset=opset, batch=batch):
                            x = torch.randn(batch, *dims)
                            answer = run(onnx=path, batch=batch, training=False, feeds={"x": to_json(x)})
                            self.assertNotIn("error", answer)
                            ours, theirs = from_json(answer["results"]["y"]).double(), module(x).detach().double()
                            self.assertEqual(ours.shape, theirs.shape)
                            self.assertLess((ours - theirs).abs().max().item(), 1e-4)
        run.close()


if __name__ == "__main__":
    unittest.main()
