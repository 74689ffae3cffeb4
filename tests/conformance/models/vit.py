"""ViT-B/16 (Dosovitskiy et al. 2020) on PyTorch's own multi-head attention."""
import torch
from torch import nn

from . import Model, classes, images


class Layer(nn.Module):
    def __init__(self, hidden, heads, dropout):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden, eps=1e-6), nn.LayerNorm(hidden, eps=1e-6)
        self.attention = nn.MultiheadAttention(hidden, heads, dropout=dropout, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(hidden, 4 * hidden), nn.GELU(), nn.Dropout(dropout),
                                 nn.Linear(4 * hidden, hidden), nn.Dropout(dropout))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        h = self.ln_1(x)
        x = x + self.dropout(self.attention(h, h, h, need_weights=False)[0])
        return x + self.mlp(self.ln_2(x))


class VisionTransformer(nn.Module):
    def __init__(self, image=224, patch=16, hidden=768, layers=12, heads=12, outputs=1000, dropout=0.1):
        super().__init__()
        self.patches = nn.Conv2d(3, hidden, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, hidden))
        self.positions = nn.Parameter(torch.empty(1, (image // patch) ** 2 + 1, hidden).normal_(std=0.02))
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(hidden, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(hidden, eps=1e-6), nn.Linear(hidden, outputs)

    def forward(self, x):
        x = self.patches(x)
        x = x.reshape(x.shape[0], x.shape[1], -1).permute(0, 2, 1)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], dim=1) + self.positions
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


MODELS = [
    Model("ViT", lambda: VisionTransformer(image=32, patch=8, hidden=48, heads=4, outputs=100, dropout=0.0),
          images(3, 32), classes(100), published=(VisionTransformer, 86_567_656)),
]
