"""mT5-small (Xue et al. 2020; T5 v1.1): encoder and decoder, in the operators of Hugging Face's."""
import math

import torch
from torch import nn
from torch.nn import functional as F

from . import Model, classes
from .gpt2 import gelu_new

BUCKETS, FARTHEST = 32, 128


class Norm(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def bucket(relative, both_sides):
    """Exact for near positions, by logarithm for far ones."""
    buckets, start = BUCKETS, 0
    if both_sides:
        buckets //= 2
        start = (relative > 0).to(torch.long) * buckets
        relative = torch.abs(relative)
    else:
        relative = -torch.min(relative, torch.zeros_like(relative))
    exact = buckets // 2
    far = exact + (torch.log(relative.float() / exact) / math.log(FARTHEST / exact) * (buckets - exact)).to(torch.long)
    far = torch.min(far, torch.full_like(far, buckets - 1))
    return start + torch.where(relative < exact, relative, far)


class Attention(nn.Module):
    def __init__(self, hidden, heads, head, dropout):
        super().__init__()
        self.heads, self.head = heads, head
        self.q, self.k, self.v = (nn.Linear(hidden, heads * head, bias=False) for _ in range(3))
        self.o = nn.Linear(heads * head, hidden, bias=False)
        self.dropout = nn.Dropout(dropout)

    def split(self, x):
        return x.view(x.shape[0], -1, self.heads, self.head).transpose(1, 2)

    def forward(self, x, source, bias):
        scores = torch.matmul(self.split(self.q(x)), self.split(self.k(source)).transpose(3, 2))
        if bias is not None:
            scores = scores + bias
        weights = self.dropout(F.softmax(scores.to(scores.dtype), dim=-1))
        y = torch.matmul(weights, self.split(self.v(source))).transpose(1, 2).contiguous()
        return self.o(y.view(x.shape[0], -1, self.heads * self.head))


class FeedForward(nn.Module):
    def __init__(self, hidden, inner, dropout):
        super().__init__()
        self.wi_0, self.wi_1 = nn.Linear(hidden, inner, bias=False), nn.Linear(hidden, inner, bias=False)
        self.wo, self.dropout = nn.Linear(inner, hidden, bias=False), nn.Dropout(dropout)

    def forward(self, x):
        return self.wo(self.dropout(gelu_new(self.wi_0(x)) * self.wi_1(x)))


class Stack(nn.Module):
    def __init__(self, hidden, inner, layers, heads, head, dropout, decoder):
        super().__init__()
        self.decoder = decoder
        self.bias = nn.Embedding(BUCKETS, heads)
        attention = lambda: nn.ModuleList(Attention(hidden, heads, head, dropout) for _ in range(layers))
        norms = lambda: nn.ModuleList(Norm(hidden) for _ in range(layers))
        self.attention, self.attention_norm = attention(), norms()
        if decoder:
            self.cross, self.cross_norm = attention(), norms()
        self.feed_forward = nn.ModuleList(FeedForward(hidden, inner, dropout) for _ in range(layers))
        self.feed_forward_norm = norms()
        self.norm, self.dropout = Norm(hidden), nn.Dropout(dropout)

    def position_bias(self, length):
        context = torch.arange(length, dtype=torch.long)[:, None]
        memory = torch.arange(length, dtype=torch.long)[None, :]
        bias = self.bias(bucket(memory - context, not self.decoder)).permute([2, 0, 1]).unsqueeze(0)
        if self.decoder:
            visible = (memory <= context).to(bias.dtype)
            bias = bias + (1.0 - visible) * torch.finfo(torch.float32).min
        return bias

    def forward(self, x, encoded=None):
        bias = self.position_bias(x.shape[1])
        x = self.dropout(x)
        for i, attention in enumerate(self.attention):
            h = self.attention_norm[i](x)
            x = x + self.dropout(attention(h, h, bias))
            if self.decoder:
                x = x + self.dropout(self.cross[i](self.cross_norm[i](x), encoded, None))
            x = x + self.dropout(self.feed_forward[i](self.feed_forward_norm[i](x)))
        return self.dropout(self.norm(x))


class Mt5(nn.Module):
    def __init__(self, vocabulary=250112, hidden=512, inner=1024, layers=8, heads=6, head=64, dropout=0.1):
        super().__init__()
        self.shared = nn.Embedding(vocabulary, hidden)
        self.encoder = Stack(hidden, inner, layers, heads, head, dropout, decoder=False)
        self.decoder = Stack(hidden, inner, layers, heads, head, dropout, decoder=True)
        self.lm_head = nn.Linear(hidden, vocabulary, bias=False)
        nn.init.normal_(self.lm_head.weight, std=hidden ** -0.5)
        for m in self.modules():
            if isinstance(m, Attention):
                nn.init.normal_(m.q.weight, std=(hidden * head) ** -0.5)
                nn.init.normal_(m.k.weight, std=hidden ** -0.5)
                nn.init.normal_(m.v.weight, std=hidden ** -0.5)
                nn.init.normal_(m.o.weight, std=(heads * head) ** -0.5)

    def forward(self, tokens, decoder_tokens):
        encoded = self.encoder(self.shared(tokens))
        return self.lm_head(self.decoder(self.shared(decoder_tokens), encoded))


def inputs(examples, vocabulary=251):
    return {"tokens": torch.randint(0, vocabulary, (examples, 20)),
            "decoder_tokens": torch.randint(0, vocabulary, (examples, 12))}


MODELS = [
    Model("mT5-small", lambda: Mt5(vocabulary=251, hidden=64, inner=128, heads=6, head=8, dropout=0.0), inputs,
          classes(251, 12), published=(Mt5, 300_176_768)),
]
