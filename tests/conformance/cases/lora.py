"""LoRA linear layers with an adapter index per row."""
import random

import torch

from cases import case, rand


@case("lora_linear", count=16)
def _():
    rows, wide, out, rank, n = (random.randint(1, most) for most in (9, 70, 40, 20, 4))
    adapter = torch.randint(-1, n, (rows,), dtype=torch.int32)

    def reference(x, a, b, adapter):
        chosen = adapter.long().clamp(min=0)
        y = torch.einsum("tor,tri,ti->to", b[chosen], a[chosen], x)
        return y * (adapter >= 0)[:, None]

    return {}, [rand(rows, wide), rand(n, rank, wide), rand(n, out, rank), adapter], reference, \
        {"forward_only": True, "sum": wide * rank}
