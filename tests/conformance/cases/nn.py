"""Neural-network operators beyond those of basic.py."""
import math
import random

import torch
import torch.nn.functional as F

from cases import case, dims, rand

ACTIVATIONS = {
    "none": lambda x: x, "relu": torch.relu, "gelu": F.gelu, "silu": F.silu, "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
}


def maybe(tensor, chance=0.5):
    return tensor if random.random() < chance else None


def padded(x, pads):
    """ONNX's order: all begins, then all ends; F.pad wants the last dimension first."""
    n = len(pads) // 2
    return F.pad(x, [p for d in reversed(range(n)) for p in (pads[d], pads[n + d])])


@case("linear", count=12)
def _():
    lead, i, o = dims(random.randint(1, 2)), random.randint(1, 40), random.randint(1, 40)
    name = random.choice(list(ACTIVATIONS))
    return ({"activation": name}, [rand(*lead, i), rand(o, i, scale=0.5), maybe(rand(o))],
            lambda x, w, b: ACTIVATIONS[name](F.linear(x, w, b)), {"sum": i * 4, "scale": 4})


def convolution(name, spatial, function, count):
    @case(name, count=count)
    def _():
        groups = random.choice([1, 1, 2])
        n, c, o = random.randint(1, 3), groups * random.randint(1, 4), groups * random.randint(1, 4)
        kernel = dims(spatial, 1, 3)
        strides, dilations = dims(spatial, 1, 2), dims(spatial, 1, 2)
        pads = dims(2 * spatial, 0, 2)
        activation = random.choice(list(ACTIVATIONS))
        x, w = rand(n, c, *dims(spatial, 5, 9)), rand(o, c // groups, *kernel, scale=0.5)

        def reference(x, w, b):
            if w.shape[1] == 0:  # PyTorch 1.13 gives conv3d of no channels a wrong shape: one of zeros is the same
                x, w = F.pad(x, [0, 0] * spatial + [0, groups]), F.pad(w, [0, 0] * spatial + [0, 1])
            return ACTIVATIONS[activation](function(padded(x, pads), w, b, strides, 0, dilations, groups))

        return ({"strides": strides, "pads": pads, "dilations": dilations, "groups": groups, "activation": activation},
                [x, w, maybe(rand(o))], reference, {"sum": c * math.prod(kernel) * 200, "scale": 2})


convolution("conv1d", 1, F.conv1d, 12)
convolution("conv2d", 2, F.conv2d, 12)
convolution("conv3d", 3, F.conv3d, 8)


def transposed(name, spatial, function):
    @case(name, count=10)
    def _():
        groups = random.choice([1, 1, 2])
        n, c, o = random.randint(1, 3), groups * random.randint(1, 4), random.randint(1, 4)
        kernel, strides, dilations = dims(spatial, 2, 3), dims(spatial, 1, 3), dims(spatial, 1, 2)
        pads = dims(2 * spatial, 0, 1)
        more = [random.randint(0, s - 1) for s in strides]
        x, w = rand(n, c, *dims(spatial, 3, 5)), rand(c, o, *kernel)

        def reference(x, w, b):
            # A transposed convolution without pads, behind which `more` appears and of which pads are cut.
            full = function(x, w, None, strides, 0, 0, groups, dilations)
            y = padded(full, [-p for p in pads[:spatial]] + [m - p for m, p in zip(more, pads[spatial:])])
            return y if b is None else y + b.view(1, -1, *[1] * spatial)

        return ({"strides": strides, "pads": pads, "dilations": dilations, "groups": groups, "output_padding": more},
                [x, w, maybe(rand(o * groups))], reference, {"sum": c * math.prod(kernel) * 200})


transposed("conv_transpose1d", 1, F.conv_transpose1d)
transposed("conv_transpose2d", 2, F.conv_transpose2d)
transposed("conv_transpose3d", 3, F.conv_transpose3d)


def windows(dilated=True):
    """kernel, strides, pads, dilations: pads as PyTorch allows them, at most half a kernel."""
    k, s = dims(2, 2, 3), dims(2, 1, 2)
    return k, s, [random.randint(0, n // 2) for n in k], dims(2, 1, 2) if dilated else [1, 1]


def largest_of_windows(x, k, s, p, d, ceil):
    """F.max_pool2d, but for windows that lie in pads alone: PyTorch 1.13 writes outside its memory for those."""
    behind = []
    for i in range(2):
        size, reach = x.shape[2 + i] + p[i], (k[i] - 1) * d[i] + 1
        n = (size + p[i] - reach + (s[i] - 1 if ceil else 0)) // s[i] + 1
        if ceil and (n - 1) * s[i] >= size:
            n -= 1
        behind.append((n - 1) * s[i] + reach - size)
    x = F.pad(x, (p[1], behind[1], p[0], behind[0]), value=-math.inf)
    for i in range(2):
        x = x.unfold(2 + i, (k[i] - 1) * d[i] + 1, s[i])
    return x[..., ::d[0], ::d[1]].amax((-2, -1))


@case("pool2d", count=8)
def _():
    k, s, p, d = windows()
    ceil = random.random() < 0.5
    return ({"kind": "max", "kernel": k, "strides": s, "pads": p * 2, "dilations": d, "ceil_mode": ceil},
            [rand(random.randint(1, 2), 3, 8, 9)], lambda x: largest_of_windows(x, k, s, p, d, ceil), {})


@case("pool2d", count=6)
def _():
    """Averages of dilated windows: a convolution of ones, over what is there or over all."""
    k, s, p, d = windows()
    inclusive = random.random() < 0.5

    def reference(x):
        c = x.shape[1]
        total = lambda v: F.conv2d(v, torch.ones(c, 1, *k, dtype=v.dtype), None, s, p, d, c)
        return total(x) / (math.prod(k) if inclusive else total(torch.ones_like(x)))

    return ({"kind": "average", "kernel": k, "strides": s, "pads": p * 2, "dilations": d,
             "count_include_pad": inclusive}, [rand(2, 3, 8, 9)], reference, {"sum": 10})


@case("pool2d", count=8)
def _():
    k, s, p, d = windows()
    exponent = random.randint(1, 4)

    def reference(x):
        c = x.shape[1]
        powers = F.conv2d(x.abs() ** exponent, torch.ones(c, 1, *k, dtype=x.dtype), None, s, p, d, c)
        return powers ** (1 / exponent)

    return ({"kind": "lp", "p": exponent, "kernel": k, "strides": s, "pads": p * 2, "dilations": d},
            [rand(2, 3, 8, 9)], reference, {"sum": 10, "scale": 4})


@case("max_pool_indices", count=8)
def _():
    k, s, p, d = windows()
    columns = random.random() < 0.4
    shape = [random.randint(1, 3), random.randint(1, 3), random.randint(6, 8), random.randint(6, 8)]

    def reference(x):
        h, w = x.shape[2:]
        y, i = F.max_pool2d(x, k, s, p, d, return_indices=True)
        if columns:
            i = i // w + i % w * h
        planes = torch.arange(x.shape[0] * x.shape[1]).view(x.shape[0], x.shape[1], 1, 1)
        return y, i + planes * h * w

    # Cut shapes have windows of pads alone (see largest_of_windows).
    return ({"kernel": k, "strides": s, "pads": p * 2, "dilations": d, "column_major": columns}, [rand(*shape)],
            reference, {"fixed_shape": True})


@case("max_unpool", fixed_shape=True)
def _():
    k = dims(2, 2, 3)
    n, c, h, w = dims(4, 1, 3)
    size = [h * k[0], w * k[1]]
    values, indices = F.max_pool2d(rand(n, c, *size), k, return_indices=True)
    planes = torch.arange(n * c).view(n, c, 1, 1)

    def reference(x, i):
        local = (i - planes * size[0] * size[1]).reshape(n, c, -1)
        return torch.zeros(n, c, size[0] * size[1], dtype=x.dtype).scatter(
            2, local, x.reshape(n, c, -1)).view(n, c, *size)

    given = size if random.random() < 0.5 else [0, 0] + size
    return {"dims": given}, [values, indices + planes * size[0] * size[1]], reference, {"fixed_shape": True}


@case("adaptive_pool2d", count=12)
def _():
    kind = random.choice(["max", "average"])
    size = random.choice([[1, 1], dims(2, 1, 5), dims(2, 1, 9)])
    pool = F.adaptive_max_pool2d if kind == "max" else F.adaptive_avg_pool2d
    return ({"kind": kind, "size": size}, [rand(*dims(2, 1, 3), *dims(2, 1, 9))], lambda x: pool(x, size),
            {"sum": 20})


@case("log_softmax", count=10)
def _():
    shape = random.choice([dims(), [random.randint(1, 3), random.randint(1, 40), random.randint(60, 140)]])
    axis = random.randint(-len(shape), len(shape) - 1)
    return {"axis": axis}, [rand(*shape, scale=3)], lambda x: F.log_softmax(x, axis), {"sum": 100}


@case("softmax", count=4)
def _():
    shape = [random.randint(1, 3), random.randint(1, 40), random.randint(60, 140)]
    axis = random.randint(-3, 2)
    return {"axis": axis}, [rand(*shape, scale=3)], lambda x: torch.softmax(x, axis), {"sum": 10}


@case("group_norm", count=10)
def _():
    groups = random.randint(1, 4)
    n, c = random.randint(1, 3), groups * random.randint(1, 3)
    shape = [n, c] + dims(random.randint(1, 3), 2, 5)

    def reference(x, s, b):
        rows = x.reshape(x.shape[0], groups, -1)
        mean, variance = rows.mean(-1, keepdim=True), rows.var(-1, unbiased=False, keepdim=True)
        y = ((rows - mean) / torch.sqrt(variance + 1e-5)).view(x.shape)
        each = lambda v: v.view(1, -1, *[1] * (x.dim() - 2))
        y = y if s is None else y * each(s)
        return y if b is None else y + each(b)

    return ({"groups": groups, "epsilon": 1e-5}, [rand(*shape), maybe(rand(c)), maybe(rand(c))], reference,
            {"sum": 100, "scale": 20, "fixed_shape": True})


@case("residual_rms_norm", count=6)
def _():
    shape = dims()
    e = shape[-1] = random.randint(1, 64)

    def reference(x, r, w):
        s = x + r
        return s * torch.rsqrt((s * s).mean(-1, keepdim=True) + 1e-3) * w, s

    return {"epsilon": 1e-3}, [rand(*shape), rand(*shape), rand(e)], reference, {"sum": 100, "scale": 4}


@case("residual_layer_norm", count=6)
def _():
    shape = dims(low=2, high=9)
    e = shape[-1] = random.randint(4, 64)

    def reference(x, r, s, b):
        return F.layer_norm(x + r, (e,), s, b, 1e-5), x + r

    return ({"epsilon": 1e-5}, [rand(*shape), rand(*shape), maybe(rand(e)), maybe(rand(e))], reference,
            {"sum": 100, "scale": 4})


@case("embedding_bag", count=10)
def _():
    v, e = random.randint(2, 20), random.randint(1, 20)
    mode, padding = random.choice(["sum", "average"]), random.choice([-1, 0, 1])
    ids = torch.randint(0, v, dims(random.randint(1, 3)), dtype=random.choice([torch.int32, torch.int64]))

    def reference(i, w):
        counts = (i != padding).to(w.dtype).unsqueeze(-1)
        total = (F.embedding(i, w) * counts).sum(-2)
        return total / counts.sum(-2).clamp(min=1) if mode == "average" else total

    return {"mode": mode, "padding_index": padding}, [ids, rand(v, e)], reference, {"sum": 100}


@case("batch_matmul", count=12)
def _():
    b, m, k, n = dims(4, 1, 12)
    given = random.random() < 0.7
    length = torch.tensor(random.randint(0, 12), dtype=torch.int32) if given else None
    cut = [random.randint(-1, 2), random.randint(-1, 2)]

    def keep(x, dim, length):
        if length is None or dim < 0:
            return x
        shape = [1, 1, 1]
        shape[dim] = -1
        return x * (torch.arange(x.shape[dim]) < length).to(x.dtype).view(shape)

    return ({"a_seq_length_dim": cut[0], "b_seq_length_dim": cut[1]}, [rand(b, m, k), rand(b, k, n), length],
            lambda a, b, n: keep(a, cut[0], n) @ keep(b, cut[1], n), {"sum": 144})


@case("multi_head_attention", count=16)
def _():
    heads, d, dv = random.randint(1, 4), random.choice([2, 4, 8]), random.choice([2, 4, 8])
    b, s, t = random.randint(1, 3), random.randint(1, 9), random.randint(1, 9)
    e, kw, vw, o = dims(4, 1, 12)
    causal, zero, bias_rows = (random.random() < 0.4 for _ in range(3))
    mask = None
    if random.random() < 0.5:
        shape = random.choice([(s, t), (b, s, t), (b, heads, s, t)])
        mask = torch.rand(shape) < 0.7 if random.random() < 0.5 else rand(*shape)
        if mask.dtype == torch.bool:
            mask[..., 0] = True
    inner, value = heads * d, heads * dv
    weight = lambda *shape: rand(*shape, scale=0.5)
    # Without additional rows a bias of K moves all scores of a row alike: its gradient is rounding alone.
    bk = maybe(rand(inner)) if zero or bias_rows else None
    inputs = [rand(b, s, e), rand(b, t, kw), rand(b, t, vw), weight(inner, e), weight(inner, kw), weight(value, vw),
              weight(o, value), maybe(rand(inner)), bk, maybe(rand(value)), maybe(rand(o)),
              rand(inner) if bias_rows else None, rand(value) if bias_rows else None, mask]

    def reference(q, k, v, wq, wk, wv, wo, bq, bk, bv, bo, bias_k, bias_v, mask):
        q, k, v = F.linear(q, wq, bq), F.linear(k, wk, bk), F.linear(v, wv, bv)
        scores = q.shape[1], k.shape[1]
        rows = lambda x, row: torch.cat([x, row.expand(x.shape[0], 1, x.shape[2])], 1)
        if bias_k is not None:
            k, v = rows(k, bias_k), rows(v, bias_v)
        if zero:
            k, v = (rows(x, torch.zeros(x.shape[2], dtype=x.dtype)) for x in (k, v))
        split = lambda x: x.reshape(x.shape[0], x.shape[1], -1, x.shape[2] // heads).transpose(1, 2)
        logits = split(q) @ split(k).transpose(-1, -2) / math.sqrt(d)
        extra = k.shape[1] - scores[1]
        hidden = torch.zeros(scores, dtype=logits.dtype)
        if mask is not None:
            m = mask[:, None] if mask.dim() == 3 else mask
            hidden = torch.zeros(m.shape, dtype=logits.dtype).masked_fill(~m, -math.inf) if m.dtype == torch.bool else m
        if causal:
            hidden = hidden.masked_fill(torch.ones(scores).triu(1).bool(), -math.inf)
        weights = torch.softmax(logits + F.pad(hidden, [0, extra]), -1)
        context = (weights @ split(v)).transpose(1, 2).reshape(q.shape[0], q.shape[1], -1)
        return F.linear(context, wo, bo)

    return ({"heads": heads, "causal": causal, "add_zero_attn": zero}, inputs, reference,
            {"sum": 400, "scale": 4, "no_gradient": [13], "fixed_shape": True})


@case("multi_head_attention", count=3, splits_only=True)
def _():
    """With dropout: that its mask does not depend on the split."""
    heads, d = random.choice([2, 4]), 4
    b, s, t = random.choice([2, 4]), random.choice([2, 4]), random.randint(2, 5)
    inner = heads * d
    inputs = [rand(b, s, 6), rand(b, t, 6), rand(b, t, 6), rand(inner, 6), rand(inner, 6), rand(inner, 6),
              rand(5, inner), None, None, None, maybe(rand(5)), None, None, None]
    return {"heads": heads, "rate": 0.4}, inputs, None, {"sum": 400, "scale": 4, "request": {"seed": 3, "step": 2}}


@case("lrn", count=8)
def _():
    size, alpha, beta, bias = (random.randint(1, 5), random.choice([1e-4, 0.5]), random.choice([0.75, 0.5, 1.0, 0.6]),
                               random.choice([1.0, 2.0]))
    shape = dims(random.randint(2, 4), 1, 7)

    def reference(x):
        before, after = (size - 1) // 2, size // 2
        squares = F.pad((x * x).reshape(x.shape[0], x.shape[1], -1), [0, 0, before, after])
        total = sum(squares[:, i:i + x.shape[1]] for i in range(size)).view(x.shape)
        return x / (bias + alpha / size * total) ** beta

    return ({"size": size, "alpha": alpha, "beta": beta, "bias": bias}, [rand(*shape)], reference,
            {"sum": 10, "scale": 4})


def source_of(coordinates, i, n, scale, out, roi):
    """Where element i of the result lies, by the formulas of ONNX."""
    exact = scale * n
    return {
        "half_pixel": lambda: (i + 0.5) / scale - 0.5,
        "half_pixel_symmetric": lambda: n / 2 * (1 - out / exact) + (i + 0.5) / scale - 0.5,
        "pytorch_half_pixel": lambda: -0.5 if exact == 1 else (i + 0.5) / scale - 0.5,
        "align_corners": lambda: 0.0 if exact == 1 else i * (n - 1) / (exact - 1),
        "asymmetric": lambda: i / scale,
        "tf_half_pixel_for_nn": lambda: (i + 0.5) / scale,
        "tf_crop_and_resize": lambda: roi[0] * (n - 1) + (
            (roi[1] - roi[0]) * (n - 1) / 2 if exact == 1 else i * (roi[1] - roi[0]) * (n - 1) / (exact - 1)),
    }[coordinates]()


def resize_matrix(attributes, n, out, scale, roi):
    """[out, n] weights and [out] constants of one dimension."""
    matrix, constant = torch.zeros(out, n, dtype=torch.float64), torch.zeros(out, dtype=torch.float64)
    a = attributes["cubic_a"]

    def cubic(x):
        x = abs(x)
        return ((a + 2) * x**3 - (a + 3) * x**2 + 1 if x <= 1 else
                a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0.0)

    kernel, radius = ((lambda x: max(0.0, 1 - abs(x))), 1) if attributes["mode"] == "linear" else (cubic, 2)
    shrink = min(1.0, scale) if attributes["antialias"] else 1.0
    for i in range(out):
        x = source_of(attributes["coordinates"], i, n, scale, out, roi)
        if attributes["coordinates"] == "tf_crop_and_resize" and not 0 <= x <= n - 1:
            constant[i] = attributes["extrapolation"]
            continue
        if attributes["mode"] == "nearest":
            low = math.floor(x)
            part = x - low
            up = {"round_prefer_floor": part > 0.5, "round_prefer_ceil": part >= 0.5, "floor": False,
                  "ceil": part > 0}[attributes["nearest_mode"]]
            matrix[i, min(max(low + up, 0), n - 1)] = 1
            continue
        reach = math.ceil(radius / shrink)
        taps = {k: kernel((k - x) * shrink) for k in range(math.floor(x) - reach, math.floor(x) + reach + 2)}
        if attributes["exclude_outside"]:
            taps = {k: w for k, w in taps.items() if 0 <= k < n}
        total = sum(taps.values())
        for k, w in taps.items():
            matrix[i, min(max(k, 0), n - 1)] += w / total
    return matrix, constant


@case("resize", count=40)
def _():
    rank = random.randint(2, 4)
    x = rand(*dims(rank, 2, 6))
    coordinates = random.choice(["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners",
                                 "asymmetric", "tf_half_pixel_for_nn", "tf_crop_and_resize"])
    attributes = {"mode": random.choice(["nearest", "linear", "cubic"]), "coordinates": coordinates,
                  "nearest_mode": random.choice(["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]),
                  "cubic_a": random.choice([-0.75, -0.5]), "exclude_outside": random.random() < 0.3,
                  "antialias": random.random() < 0.3, "extrapolation": 0.5}
    kept = random.randint(0, rank - 1)  # leading dimensions that stay
    if random.random() < 0.5:
        scales = [1.0] * kept + [random.choice([0.5, 0.6, 0.8, 1.5, 2.0, 2.4, 3.0]) for _ in range(rank - kept)]
        out = [math.floor(n * s) for n, s in zip(x.shape, scales)]
        attributes["scales"] = scales[random.choice([0, kept]):]
    else:
        out = list(x.shape[:kept]) + dims(rank - kept, 1, 9)
        scales = [o / n for o, n in zip(out, x.shape)]
        attributes["size"] = [0] * kept + out[kept:]
    rois = [(0.0, 1.0)] * rank
    if coordinates == "tf_crop_and_resize":
        rois = [(0.0, 1.0)] * kept + [random.choice([(0.0, 1.0), (0.1, 0.7), (-0.2, 1.1)]) for _ in range(rank - kept)]
        given = rois[-len(attributes.get("scales", attributes.get("size"))):]
        attributes["roi"] = [r[0] for r in given] + [r[1] for r in given]

    def reference(x):
        for d in range(rank):
            if out[d] == x.shape[d] and scales[d] == 1 and rois[d] == (0.0, 1.0):
                continue
            matrix, constant = resize_matrix(attributes, x.shape[d], out[d], scales[d], rois[d])
            x = (torch.movedim(x, d, -1) @ matrix.T + constant).movedim(-1, d)
        return x

    return attributes, [x], reference, {"sum": 100, "fixed_shape": True}


@case("resize", count=6)
def _():
    """PyTorch's own interpolation, where the two definitions agree."""
    mode, align = random.choice(["bilinear", "bicubic"]), random.random() < 0.5
    size = dims(2, 2, 9)
    coordinates = "align_corners" if align else "half_pixel"
    return ({"mode": mode[2:], "coordinates": coordinates, "size": size,
             "cubic_a": -0.75}, [rand(*dims(2, 1, 3), *dims(2, 2, 6))],
            lambda x: F.interpolate(x, size, mode=mode, align_corners=align), {"sum": 50})


@case("grid_sample", count=24)
def _():
    mode, padding = random.choice(["bilinear", "nearest", "bicubic"]), random.choice(["zeros", "border", "reflection"])
    align = random.random() < 0.5
    n, c = dims(2, 1, 3)
    return ({"mode": mode, "padding": padding, "align_corners": align},
            [rand(n, c, *dims(2, 2, 6)), rand(n, *dims(2, 1, 6), 2, scale=0.8)],
            lambda x, g: F.grid_sample(x, g, mode, padding, align), {"sum": 100, "scale": 20})
