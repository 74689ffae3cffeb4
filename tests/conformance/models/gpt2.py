"""GPT-2 (Radford et al. 2019) in the operators of Hugging Face's."""
import math

import torch
from torch import nn
from torch.nn import functional as F

from . import Model, classes, tokens


class Conv1D(nn.Module):
    """A linear layer with the weight the other way round, as GPT-2's checkpoints have it."""

    def __init__(self, outputs, inputs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.empty(inputs, outputs)), nn.Parameter(torch.zeros(outputs))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, x):
        outputs = x.size()[:-1] + (self.weight.shape[1],)
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(outputs)


def gelu_new(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


class Block(nn.Module):
    def __init__(self, hidden, heads, positions, dropout):
        super().__init__()
        self.heads, self.head = heads, hidden // heads
        self.ln_1, self.ln_2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attn, self.attn_proj = Conv1D(3 * hidden, hidden), Conv1D(hidden, hidden)
        self.fc, self.fc_proj = Conv1D(4 * hidden, hidden), Conv1D(hidden, 4 * hidden)
        self.dropout = nn.Dropout(dropout)
        visible = torch.tril(torch.ones(positions, positions, dtype=torch.bool))
        self.register_buffer("visible", visible.view(1, 1, positions, positions))

    def split(self, x):
        return x.view(x.size()[:-1] + (self.heads, self.head)).permute(0, 2, 1, 3)

    def forward(self, x):
        q, k, v = self.attn(self.ln_1(x)).split(self.heads * self.head, dim=2)
        q, k, v = self.split(q), self.split(k), self.split(v)
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.head)
        length = q.size(-2)
        lowest = torch.full([], torch.finfo(torch.float32).min, dtype=scores.dtype)
        scores = torch.where(self.visible[:, :, :length, :length], scores, lowest)
        y = torch.matmul(self.dropout(F.softmax(scores, dim=-1)), v).permute(0, 2, 1, 3).contiguous()
        y = y.view(y.size()[:-2] + (self.heads * self.head,))
        x = x + self.dropout(self.attn_proj(y))
        return x + self.dropout(self.fc_proj(gelu_new(self.fc(self.ln_2(x)))))


class Gpt2(nn.Module):
    def __init__(self, vocabulary=50257, hidden=768, layers=12, heads=12, positions=1024, dropout=0.1):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, hidden), nn.Embedding(positions, hidden)
        nn.init.normal_(self.wte.weight, std=0.02)
        nn.init.normal_(self.wpe.weight, std=0.02)
        self.dropout = nn.Dropout(dropout)
        self.h = nn.ModuleList(Block(hidden, heads, positions, dropout) for _ in range(layers))
        self.ln_f = nn.LayerNorm(hidden)

    def forward(self, tokens):
        positions = torch.arange(0, tokens.size(-1), dtype=torch.long, device=tokens.device).unsqueeze(0)
        x = self.dropout(self.wte(tokens) + self.wpe(positions))
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


MODELS = [
    Model("GPT-2", lambda: Gpt2(vocabulary=257, hidden=64, heads=4, positions=32, dropout=0.0), tokens(257, 24),
          classes(257, 24), published=(Gpt2, 124_439_808)),
]
