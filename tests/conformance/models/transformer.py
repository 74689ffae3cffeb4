"""The encoder of PyTorch's nn.Transformer (Vaswani et al. 2017), as FlexFlow's Transformer example: a regression."""
import torch
from torch import nn

from . import SQUARES, Model


class Encoder(nn.Module):
    def __init__(self, hidden=512, heads=8, inner=2048, layers=6, dropout=0.1):
        super().__init__()
        # The fused forward of evaluation is not used in training.
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(hidden, heads, inner, dropout, batch_first=True) for _ in range(layers))
        self.last = nn.Linear(hidden, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


MODELS = [
    Model("Transformer", lambda: Encoder(hidden=48, heads=4, inner=96, dropout=0.0),
          lambda n: {"x": torch.randn(n, 20, 48)}, lambda n: torch.randn(n, 20, 1), loss=SQUARES),
]
