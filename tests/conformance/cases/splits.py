"""Operators that operators_test checks in another way: cases for splits_test only."""
import random

import torch

from cases import case, dims, rand


@case("dropout", splits_only=True)
def _():
    request = {"seed": random.randint(0, 99), "node_key": random.randint(0, 99), "step": random.randint(0, 9)}
    return {"rate": 0.4}, [rand(*dims())], None, {"request": request}


@case("random_like", splits_only=True)
def _():
    request = {"seed": random.randint(0, 99), "node_key": random.randint(0, 99), "step": random.randint(0, 9)}
    attributes = {"distribution": random.choice(["uniform", "normal"]), "a": 0.5, "b": 2.0}
    return attributes, [rand(*dims())], None, {"request": request, "forward_only": True}


def update(name, attributes, states):
    @case(name, splits_only=True)
    def _():
        shape = dims()
        scale = torch.rand((), dtype=torch.float64) if random.random() < 0.5 else None
        hyper = torch.tensor([0.05, random.randint(1, 9)], dtype=torch.float64)
        # Second moments are never negative.
        inputs = [rand(*shape), rand(*shape), scale, hyper] + [rand(*shape).abs() for _ in range(states)]
        return attributes, inputs, None, {"forward_only": True}


update("sgd_update", {"momentum": 0.0, "weight_decay": 0.01}, 0)
update("sgd_update", {"momentum": 0.9, "weight_decay": 0.01}, 1)
update("adam_update", {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "weight_decay": 0.1, "decoupled": True}, 2)


@case("paged_attention", splits_only=True)
def _():
    """Prompts of some sequences, each with slots of its own."""
    head_dim, heads, group = random.choice([4, 8]), random.randint(1, 6), random.randint(1, 2)
    lengths = dims(random.randint(1, 3))
    rows = sum(lengths)
    order = torch.randperm(rows + 3)[:rows].int()
    ints = lambda values: torch.tensor(values, dtype=torch.int32)
    row_sequence = ints([s for s, n in enumerate(lengths) for _ in range(n)])
    row_prefix = ints([i + 1 for n in lengths for i in range(n)])
    starts = ints([sum(lengths[:s]) for s in range(len(lengths) + 1)])
    inputs = [rand(rows, heads * group * head_dim), rand(rows, heads * head_dim), rand(rows, heads * head_dim),
              rand(rows + 3, heads * head_dim), rand(rows + 3, heads * head_dim), order, row_sequence, row_prefix,
              torch.zeros(rows + 1, dtype=torch.int32), ints([]), starts, order]
    attributes = {"head_dim": head_dim, "window": random.choice([0, 2]), "softcap": random.choice([0.0, 1.5])}
    alibi = random.random() < 0.5
    if alibi:
        inputs.append(torch.rand(heads * group, dtype=torch.float64))
        attributes["alibi"] = random.choice(["relative", "bf16"])
    if random.random() < 0.5:  # a cache of 8 bits, with a scale of each slot and head
        inputs[3:5] = [torch.zeros(rows + 3, heads * head_dim, dtype=torch.int8) for _ in range(2)]
        inputs += ([] if alibi else [None]) + [torch.zeros(rows + 3, heads, dtype=torch.float64) for _ in range(2)]
    return attributes, inputs, None, {"forward_only": True, "sum": 100, "scale": 4}


def packed(bits, out, features):
    """Packed weights of any numbers, each scale (and minimum) 2^-6: see ops/kernel/packed_weights.h."""
    blocks, groups = -(-out // 16), -(-features // 32)
    numbers, halves = groups * 64 * bits, groups * 16 * (2 if bits == 4 else 1)
    weight = torch.zeros(blocks, -(-(numbers + 2 * halves) // 64) * 64, dtype=torch.uint8)
    weight[:, :numbers] = torch.randint(0, 256, (blocks, numbers), dtype=torch.uint8)
    weight[:, numbers + 1:numbers + 2 * halves:2] = 0x24
    return weight


@case("quantized_linear", splits_only=True)
def _():
    bits, out, features = random.choice([8, 4]), random.randint(1, 40), random.randint(1, 70)
    if random.random() < 0.5:
        out, features = random.choice([16, 32]), random.choice([64, 128, 192])
    x = rand(random.randint(1, 9), features)
    return {"bits": bits, "out": out}, [x, packed(bits, out, features)], None, {"forward_only": True}


@case("quantized_expert_linear", splits_only=True)
def _():
    bits, out, features = random.choice([8, 4]), random.choice([20, 32, 48]), random.randint(1, 70)
    rows, k, n = random.randint(1, 9), random.randint(1, 3), random.randint(3, 6)
    weight = torch.stack([packed(bits, out, features) for _ in range(n)])
    assign = torch.stack([torch.randperm(n)[:k] for _ in range(rows)]).int()
    x = rand(rows, k, features) if random.random() < 0.5 else rand(rows, features)
    gates = rand(rows, k) if random.random() < 0.5 else None
    return {"bits": bits, "out": out}, [x, weight, assign, gates], None, {"forward_only": True}
