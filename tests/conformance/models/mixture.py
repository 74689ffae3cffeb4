"""A mixture of experts: each sample goes through the two experts that its gate likes most.

Written as PyTorch users do without kernels of their own: every expert sees the batch, and a sparse gate weighs them.
"""
import torch
from torch import nn

from . import Model, classes


class Mixture(nn.Module):
    def __init__(self, width, hidden, experts, chosen):
        super().__init__()
        self.chosen = chosen
        self.gate = nn.Linear(width, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, width)) for _ in range(experts))

    def forward(self, x):
        scores = self.gate(x)
        best, index = torch.topk(scores, self.chosen, dim=-1)
        gates = torch.zeros_like(scores).scatter(-1, index, torch.softmax(best, dim=-1))
        outputs = torch.stack([expert(x) for expert in self.experts], dim=1)
        return x + (gates.unsqueeze(-1) * outputs).sum(1)


def model(width=32):
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), Mixture(width, 64, 8, 2), Mixture(width, 64, 8, 2),
                         nn.LayerNorm(width), nn.Linear(width, 10))


MODELS = [
    Model("Mixture of experts", model, lambda n: {"x": torch.randn(n, 64)}, classes(10), batch=32, learning_rate=0.1),
]
