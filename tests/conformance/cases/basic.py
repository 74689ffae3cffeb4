"""Operators of the basic training jobs."""
import math
import random

import torch
import torch.nn.functional as F

from cases import away_from_zero, case, dims, rand


def unary(name, reference, make=rand, attributes=None):
    @case(name)
    def _():
        return attributes or {}, [make(*dims())], reference, {}


unary("relu", torch.relu, away_from_zero)
unary("silu", F.silu)
unary("sigmoid", torch.sigmoid)
unary("tanh", torch.tanh)
unary("exp", torch.exp)
unary("sqrt", torch.sqrt, lambda *d: 0.1 + torch.rand(list(d), dtype=torch.float64))
unary("identity", lambda x: x * 1)


@case("stop_gradient")
def _():
    return {}, [rand(*dims())], lambda x: x.clone(), {"forward_only": True}


unary("gelu", F.gelu, attributes={"approximate": "none"})
unary("gelu", lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
      attributes={"approximate": "tanh"})


def broadcast_pair():
    shape = dims()
    a, b = list(shape), list(shape)
    for side in (a, b):
        for i in range(len(side)):
            if random.random() < 0.3:
                side[i] = 1
    if random.random() < 0.4:
        b = b[random.randint(0, len(b)):]
    return (a, b) if random.random() < 0.5 else (b, a)


def binary(name, reference, second=rand):
    @case(name, count=10)
    def _():
        a, b = broadcast_pair()
        return {}, [rand(*a), second(*b)], reference, {}


binary("add", torch.add)
binary("subtract", torch.sub)
binary("multiply", torch.mul)
binary("divide", torch.div, lambda *d: torch.sign(rand(*d)) * (0.5 + torch.rand(list(d), dtype=torch.float64)))


@case("add_n")
def _():
    shape = dims()
    return {}, [rand(*shape) for _ in range(random.randint(1, 5))], lambda *x: sum(x), {}


@case("linear", count=10)
def _():
    lead, i, o = dims(random.randint(1, 3)), random.randint(1, 70), random.randint(1, 70)
    bias = rand(o) if random.random() < 0.5 else None
    return {}, [rand(*lead, i), rand(o, i), bias], lambda x, w, b: F.linear(x, w, b), {"sum": i}


@case("matmul", count=10)
def _():
    batch, m, k, n = dims(random.randint(0, 2) or 1)[: random.randint(0, 2)], *dims(3, 1, 20)
    ta, tb = random.random() < 0.5, random.random() < 0.5
    a = rand(*batch, *((k, m) if ta else (m, k)))
    b = rand(*(batch if random.random() < 0.6 else []), *((n, k) if tb else (k, n)))
    t = lambda x, flag: x.transpose(-1, -2) if flag else x
    return ({"transpose_a": ta, "transpose_b": tb}, [a, b],
            lambda a, b: torch.matmul(t(a, ta), t(b, tb)), {"sum": k})


@case("conv2d", count=10)
def _():
    groups = random.choice([1, 1, 2])
    n, c, o = random.randint(1, 3), groups * random.randint(1, 4), groups * random.randint(1, 4)
    kh, kw = random.randint(1, 3), random.randint(1, 3)
    s, d = [random.randint(1, 2) for _ in "hw"], [random.randint(1, 2) for _ in "hw"]
    pads = [random.randint(0, 2) for _ in range(4)]
    x = rand(n, c, random.randint(6, 10), random.randint(6, 10))
    bias = rand(o) if random.random() < 0.5 else None

    def reference(x, w, b):
        top, left, bottom, right = pads
        return F.conv2d(F.pad(x, (left, right, top, bottom)), w, b, s, 0, d, groups)

    return ({"strides": s, "pads": pads, "dilations": d, "groups": groups},
            [x, rand(o, c // groups, kh, kw), bias], reference, {"sum": c * kh * kw * 100})


@case("pool2d", count=6)
def _():
    k, p = [random.randint(2, 3), random.randint(2, 3)], random.randint(0, 1)
    s = [random.randint(1, 2), random.randint(1, 2)]
    return ({"kind": "max", "kernel": k, "strides": s, "pads": [p] * 4}, [rand(2, 3, 7, 8)],
            lambda x: F.max_pool2d(x, k, s, p), {})


@case("pool2d", count=6)
def _():
    k, p = [random.randint(2, 3), random.randint(2, 3)], random.randint(0, 1)
    s, inc = [random.randint(1, 2), random.randint(1, 2)], random.random() < 0.5
    return ({"kind": "average", "kernel": k, "strides": s, "pads": [p] * 4, "count_include_pad": inc},
            [rand(2, 3, 7, 8)], lambda x: F.avg_pool2d(x, k, s, p, count_include_pad=inc), {})


@case("embedding")
def _():
    v, e = random.randint(1, 20), random.randint(1, 20)
    return {}, [torch.randint(0, v, dims()), rand(v, e)], lambda i, w: F.embedding(i, w), {"sum": 50}


@case("batch_norm_stats")
def _():
    n, c = random.randint(1, 4), random.randint(1, 4)
    return ({}, [rand(n, c, *dims(2))],
            lambda x: torch.stack([x.mean((0, 2, 3)), (x * x).mean((0, 2, 3))]), {"sum": 100})


@case("batch_norm", count=12)
def _():
    n, c = random.randint(2, 4), random.randint(1, 4)
    x = rand(n, c, *dims(2, 2))
    stats = torch.stack([x.mean((0, 2, 3)), (x * x).mean((0, 2, 3))])
    activation = random.choice(["none", "relu", "relu6"])
    # relu6 has both of its bounds among the values.
    factor = 5 if activation == "relu6" else 1
    residual = [rand(*x.shape)] if activation == "relu" and random.random() < 0.6 else []

    def reference(x, scale, bias, mean, var, stats, residual=0):
        shape = (1, -1, 1, 1)
        m = stats[0].view(shape)
        v = stats[1].view(shape) - m * m
        y = (x - m) / torch.sqrt(v + 1e-3) * scale.view(shape) + bias.view(shape) + residual
        return {"none": lambda y: y, "relu": torch.relu, "relu6": F.relu6}[activation](y)

    return ({"epsilon": 1e-3, "momentum": 0.1, "activation": activation},
            [x, factor * rand(c), factor * rand(c), torch.zeros(c, dtype=torch.float64),
             torch.ones(c, dtype=torch.float64), stats] + residual,
            reference, {"sum": 300, "no_gradient": [3, 4], "scale": 30 * factor})


@case("layer_norm")
def _():
    shape = dims(low=2, high=9)
    e = shape[-1] = random.randint(4, 64)
    affine = random.random() < 0.7
    s, b = (rand(e), rand(e)) if affine else (None, None)
    return ({"epsilon": 1e-5}, [rand(*shape), s, b], lambda x, s, b: F.layer_norm(x, (e,), s, b, 1e-5),
            {"sum": 100, "scale": 4})


@case("rms_norm")
def _():
    shape = dims()
    e = shape[-1] = random.randint(1, 64)
    return ({"epsilon": 1e-3}, [rand(*shape), rand(e)],
            lambda x, w: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-3) * w, {"sum": 100, "scale": 4})


def rotate(x, head_dim, theta, positions, frequencies=(), magnitude=1.0):
    shape = x.shape
    x = x.view(*shape[:-1], -1, head_dim)
    inverse = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    if frequencies:
        inverse = torch.tensor(frequencies, dtype=torch.float64)
    angles = positions.to(torch.float64)[:, None] * inverse
    cos, sin = (magnitude * torch.cat([f(angles)] * 2, -1)[:, None, :] for f in (torch.cos, torch.sin))
    half = len(inverse)
    x, stays = x[..., :2 * half], x[..., 2 * half:]
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return torch.cat([x * cos + turned * sin, stays], -1).reshape(shape)


@case("rotary")
def _():
    d, h, s = random.choice([2, 8, 16]), random.randint(1, 4), random.randint(1, 9)
    given = random.random() < 0.5
    lead = [] if given and random.random() < 0.5 else [random.randint(1, 3)]
    positions = torch.randint(0, 100, (s,), dtype=torch.int32) if given else None

    def reference(x, p):
        return rotate(x, d, 10000.0, torch.arange(s) if p is None else p)

    return {"head_dim": d, "theta": 10000.0}, [rand(*lead, s, h * d), positions], reference, {"scale": 20}


@case("rotary")
def _():
    """Frequencies of its own, for some of a head's pairs."""
    d, h, s = random.choice([4, 8, 16]), random.randint(1, 4), random.randint(1, 9)
    frequencies = [round(random.random(), 3) for _ in range(random.randint(1, d // 2))]
    positions = torch.randint(0, 50, (s,), dtype=torch.int32)

    def reference(x, p):
        return rotate(x, d, 1.0, p, frequencies, 1.25)

    return ({"head_dim": d, "frequencies": frequencies, "magnitude": 1.25}, [rand(s, h * d), positions], reference,
            {"scale": 20})


def attend(q, k, v, mask, d, causal, scale):
    b, s, _ = q.shape
    t = k.shape[1]
    split = lambda x: x.view(b, x.shape[1], -1, d).transpose(1, 2)
    q, k, v = split(q), split(k), split(v)
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * scale
    if mask is not None:
        if mask.dim() == 3:
            mask = mask[:, None]
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    if causal:
        scores = scores.masked_fill(torch.ones(s, t).triu(1 + t - s).bool(), -math.inf)
    return (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, s, -1)


@case("attention", count=14)
def _():
    d, kv, group = random.choice([4, 8, 32]), random.randint(1, 3), random.randint(1, 3)
    b, s = random.randint(1, 3), random.randint(1, 40)
    kind = random.choice(["none", "causal", "bool", "float", "scale"])
    causal = kind == "causal"
    t = s if causal else random.randint(1, 40)
    scale = 0.3 if kind == "scale" else 0.0
    mask = None
    if kind in ("bool", "float"):
        shape = random.choice([(s, t), (b, s, t), (b, kv * group, s, t)])
        mask = torch.rand(shape) < 0.7 if kind == "bool" else rand(*shape)
        if kind == "bool":
            mask[..., 0] = True
    inputs = [rand(b, s, kv * group * d), rand(b, t, kv * d), rand(b, t, kv * d), mask]
    return ({"head_dim": d, "causal": causal, "scale": scale}, inputs,
            lambda q, k, v, m: attend(q, k, v, m, d, causal, scale or d ** -0.5),
            {"sum": 100, "scale": 4, "no_gradient": [3]})


@case("softmax")
def _():
    shape = dims()
    axis = random.randint(-len(shape), len(shape) - 1)
    return {"axis": axis}, [rand(*shape, scale=3)], lambda x: torch.softmax(x, axis), {}


@case("reshape")
def _():
    a, b, c = dims(3)
    return {"shape": [0, -1]}, [rand(a, b, c)], lambda x: x.reshape(x.shape[0], -1), {}


@case("flatten")
def _():
    a, b, c = dims(3)
    axis = random.randint(0, 3)
    return ({"axis": axis}, [rand(a, b, c)],
            lambda x: x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:])), {})


@case("transpose")
def _():
    shape = dims()
    perm = random.sample(range(len(shape)), len(shape))
    return {"perm": perm}, [rand(*shape)], lambda x: x.permute(perm), {}


@case("concat")
def _():
    shape = dims()
    axis = random.randrange(len(shape))
    parts = []
    for _ in range(random.randint(1, 4)):
        shape[axis] = random.randint(1, 5)
        parts.append(rand(*shape))
    return {"axis": axis}, parts, lambda *x: torch.cat(x, axis), {}


@case("split")
def _():
    shape = dims()
    axis = random.randrange(len(shape))
    sizes = dims(random.randint(1, 4))
    shape[axis] = sum(sizes)
    return {"axis": axis, "sizes": sizes}, [rand(*shape)], lambda x: torch.split(x, sizes, axis), {}


@case("slice")
def _():
    shape = dims(3, 4, 8)
    return ({"axes": [0, 2], "starts": [1, -4], "ends": [1000, -1], "steps": [2, 1]}, [rand(*shape)],
            lambda x: x[1::2, :, -4:-1], {})


@case("gather")
def _():
    shape = dims(3)
    axis = random.randrange(3)
    index = torch.randint(0, shape[axis], dims(random.randint(1, 2)))

    def reference(x, i):
        return torch.index_select(x, axis, i.reshape(-1)).reshape(
            *x.shape[:axis], *i.shape, *x.shape[axis + 1:])

    return {"axis": axis}, [rand(*shape), index], reference, {"sum": 20}


def reduction(name, reference):
    @case(name, count=10)
    def _():
        shape = dims()
        axes = sorted(random.sample(range(len(shape)), random.randint(1, len(shape))))
        keep = random.random() < 0.5
        return ({"axes": axes, "keepdims": keep}, [rand(*shape)],
                lambda x: reference(x, axes, keepdim=keep), {"sum": 1000})


reduction("reduce_sum", torch.sum)
reduction("reduce_mean", torch.mean)


@case("cast", count=2)
def _():
    return {"to": "f32"}, [rand(3, 4)], lambda x: x * 1, {}


@case("sparse_categorical_crossentropy")
def _():
    lead, c = dims(random.randint(1, 2)), random.randint(2, 300)
    labels = torch.randint(0, c, lead)
    return ({}, [rand(*lead, c, scale=4), labels],
            lambda x, y: F.cross_entropy(x.reshape(-1, c), y.reshape(-1)), {"sum": 300})


@case("mean_squared_error")
def _():
    shape = dims()
    return {}, [rand(*shape), rand(*shape)], F.mse_loss, {"sum": 300, "no_gradient": [1]}


@case("accuracy")
def _():
    lead, c = dims(random.randint(1, 2)), random.randint(2, 30)
    labels = torch.randint(0, c, lead)
    return ({}, [rand(*lead, c), labels],
            lambda x, y: (x.argmax(-1) == y).double().mean(), {"forward_only": True})


@case("sum_squares")
def _():
    return {}, [rand(*dims())], lambda x: (x * x).sum(), {"forward_only": True, "sum": 1000}


@case("clip_scale")
def _():
    parts = [torch.rand((), dtype=torch.float64) * 4 for _ in range(random.randint(1, 4))]

    def reference(*x):
        norm = torch.sqrt(sum(x))
        return torch.clamp(1.0 / (norm + 1e-6), max=1.0), norm

    return {"max_norm": 1.0}, parts, reference, {"forward_only": True}


@case("fill", count=2)
def _():
    return ({"dims": [2, 3], "value": 1.5, "dtype": "f32"}, [],
            lambda: torch.full((2, 3), 1.5, dtype=torch.float64), {"forward_only": True})
