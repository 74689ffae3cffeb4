"""BERT (Devlin et al. 2018) with the masked language model's head, in the operators of Hugging Face's."""
import math

import torch
from torch import nn
from torch.nn import functional as F

from . import Model, classes


class Attention(nn.Module):
    def __init__(self, hidden, heads, dropout):
        super().__init__()
        self.heads, self.head = heads, hidden // heads
        self.query, self.key, self.value = (nn.Linear(hidden, hidden) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def split(self, x):
        return x.view(x.size()[:-1] + (self.heads, self.head)).permute(0, 2, 1, 3)

    def forward(self, x, mask):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.head) + mask
        y = torch.matmul(self.dropout(F.softmax(scores, dim=-1)), v)
        y = y.permute(0, 2, 1, 3).contiguous()
        return y.view(y.size()[:-2] + (self.heads * self.head,))


class Layer(nn.Module):
    def __init__(self, hidden, heads, inner, dropout):
        super().__init__()
        self.attention = Attention(hidden, heads, dropout)
        self.attention_output = nn.Linear(hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.intermediate, self.output = nn.Linear(hidden, inner), nn.Linear(inner, hidden)
        self.output_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, mask):
        x = self.attention_norm(self.dropout(self.attention_output(self.attention(x, mask))) + x)
        return self.output_norm(self.dropout(self.output(F.gelu(self.intermediate(x)))) + x)


class Bert(nn.Module):
    def __init__(self, vocabulary=30522, hidden=768, layers=12, heads=12, positions=512, dropout=0.1):
        super().__init__()
        # Without padding_idx, which keeps the gradient from a row: ONNX has no word for it.
        self.word = nn.Embedding(vocabulary, hidden)
        self.position = nn.Embedding(positions, hidden)
        self.token_type = nn.Embedding(2, hidden)
        self.register_buffer("position_ids", torch.arange(positions).expand((1, -1)))
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.ModuleList(Layer(hidden, heads, 4 * hidden, dropout) for _ in range(layers))
        self.transform, self.transform_norm = nn.Linear(hidden, hidden), nn.LayerNorm(hidden, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        for m in self.modules():
            if isinstance(m, (nn.Linear, nn.Embedding)):
                nn.init.normal_(m.weight, std=0.02)
            if isinstance(m, nn.Linear):
                nn.init.zeros_(m.bias)

    def forward(self, tokens, token_types, attention_mask):
        mask = attention_mask[:, None, None, :].to(self.word.weight.dtype)
        mask = (1.0 - mask) * torch.finfo(torch.float32).min
        x = self.word(tokens) + self.token_type(token_types)
        x = x + self.position(self.position_ids[:, :tokens.size(1)])
        x = self.dropout(self.norm(x))
        for layer in self.layers:
            x = layer(x, mask)
        x = self.transform_norm(F.gelu(self.transform(x)))
        return F.linear(x, self.word.weight) + self.bias


def inputs(examples, vocabulary=211, length=24):
    lengths = torch.randint(length // 2, length + 1, (examples, 1))
    mask = (torch.arange(length) < lengths).long()
    return {"tokens": torch.randint(1, vocabulary, (examples, length)) * mask,
            "token_types": torch.randint(0, 2, (examples, length)), "attention_mask": mask}


# The head's decoder is the word table, so these are BERT base's 109,482,240 without its pooler (768 x 769) and with
# the head's own layer, norm and bias.
MODELS = [
    Model("BERT", lambda: Bert(vocabulary=211, hidden=64, heads=4, positions=32, dropout=0.0), inputs,
          classes(211, 24),
          published=(Bert, 109_482_240 - 768 * 769 + 768 * 769 + 2 * 768 + 30522)),
]
