"""DLRM (Naumov et al. 2019): bags of categories and dense features, their dot products, a click to predict."""
import torch
from torch import nn

from . import BINARY, Model
from .mlp import mlp

TABLES, BAG, ROWS, DENSE = 5, 3, 100, 13


class Dlrm(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(ROWS, width) for _ in range(TABLES))
        self.bottom = nn.Sequential(mlp(DENSE, 64, 2, width), nn.ReLU())
        pairs = torch.tensor([(i, j) for i in range(TABLES + 1) for j in range(i)])
        self.rows, self.columns = pairs[:, 0].tolist(), pairs[:, 1].tolist()
        self.top = mlp(width + len(pairs), 64, 2, 1)

    def forward(self, dense, categories):
        x = self.bottom(dense)
        bags = [table(categories[:, i]).sum(1) for i, table in enumerate(self.tables)]
        features = torch.cat([x] + bags, dim=1).view(dense.shape[0], -1, x.shape[1])
        products = torch.bmm(features, features.transpose(1, 2))
        pairs = products[:, torch.tensor(self.rows), torch.tensor(self.columns)]
        return self.top(torch.cat([x, pairs], dim=1))


def inputs(examples):
    return {"dense": torch.rand(examples, DENSE), "categories": torch.randint(0, ROWS, (examples, TABLES, BAG))}


MODELS = [
    Model("DLRM", Dlrm, inputs, lambda n: torch.randint(0, 2, (n, 1)).float(), loss=BINARY, batch=16),
]
