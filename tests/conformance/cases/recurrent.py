"""rnn, gru and lstm: ONNX's formulas step by step, and PyTorch's own modules."""

import random

import torch

from cases import case, rand

FUNCTIONS = {
    "tanh": lambda x, a, b: torch.tanh(x),
    "sigmoid": lambda x, a, b: torch.sigmoid(x),
    "relu": lambda x, a, b: torch.relu(x),
    "affine": lambda x, a, b: a * x + b,
    "leaky_relu": lambda x, a, b: torch.where(x > 0, x, a * x),
    "thresholded_relu": lambda x, a, b: torch.where(x > a, x, 0 * x),
    "scaled_tanh": lambda x, a, b: a * torch.tanh(b * x),
    "hard_sigmoid": lambda x, a, b: torch.clamp(a * x + b, 0, 1),
    "elu": lambda x, a, b: torch.where(x > 0, x, a * (torch.exp(torch.clamp(x, max=0)) - 1)),
    "softsign": lambda x, a, b: x / (1 + x.abs()),
    "softplus": lambda x, a, b: torch.nn.functional.softplus(x, threshold=1000),
}
BOUNDED = ["hard_sigmoid", "scaled_tanh", "sigmoid", "softsign", "tanh"]
DEFAULTS = {"affine": (1, 0), "leaky_relu": (0.01, 0), "thresholded_relu": (1, 0), "scaled_tanh": (1, 1), "hard_sigmoid": (0.2, 0.5), "elu": (1, 0)}


def walk(cell, reverse, functions, clip, linear_before_reset, x, w, r, b, lengths, h, c, p):
    """One direction: y, the last h and the last c."""
    f, g, k = (functions + [None, None])[:3]
    bound = lambda v: v if clip == 0 else torch.clamp(v, -clip, clip)
    act = lambda which, v: which(bound(v))
    steps, hidden = x.shape[0], h.shape[-1]
    gates = w.shape[0] // hidden
    wb, rb = (b[: gates * hidden], b[gates * hidden :]) if b is not None else (0 * w[:, 0].sum(), 0 * w[:, 0].sum())
    part = lambda v, i: v[..., i * hidden : (i + 1) * hidden]
    ys = [None] * steps
    for t in reversed(range(steps)) if reverse else range(steps):
        a = x[t] @ w.T + wb
        if cell == "gru":
            s = h @ r.T + rb
            z, reset = act(f, part(a + s, 0)), act(f, part(a + s, 1))
            if linear_before_reset:
                candidate = act(g, part(a, 2) + reset * part(s, 2))
            else:
                last = part(rb, 2) if b is not None else 0
                candidate = act(g, part(a, 2) + (reset * h) @ r[2 * hidden :].T + last)
            next_h, next_c = (1 - z) * candidate + z * h, c
        elif cell == "lstm":
            a = a + h @ r.T + rb
            i = act(f, part(a, 0) + part(p, 0) * c)
            forget = act(f, part(a, 2) + part(p, 2) * c)
            next_c = forget * c + i * act(g, part(a, 3))
            next_h = act(f, part(a, 1) + part(p, 1) * next_c) * act(k, next_c)
        else:
            next_h, next_c = act(f, a + h @ r.T + rb), c
        live = torch.ones(x.shape[1], 1, dtype=torch.bool) if lengths is None else (t < lengths)[:, None]
        ys[t] = torch.where(live, next_h, torch.zeros_like(next_h))
        h = torch.where(live, next_h, h)
        c = torch.where(live, next_c, c)
    return torch.stack(ys) if ys else x.new_zeros(0, x.shape[1], hidden), h, c


def recurrent(cell, gates, count, plain):
    def reference(attributes, functions):
        direction = attributes.get("direction", "forward")

        def run(x, w, r, b, lengths, h0, c0=None, p=None):
            outputs = []
            for d in range(w.shape[0]):
                zeros = x.new_zeros(x.shape[1], r.shape[2])
                pick = lambda v, other: v[d] if v is not None else other
                outputs.append(
                    walk(
                        cell,
                        direction == "reverse" or d == 1,
                        functions[d * count : (d + 1) * count],
                        attributes.get("clip", 0),
                        attributes.get("linear_before_reset", False),
                        x,
                        w[d],
                        r[d],
                        pick(b, None),
                        lengths,
                        pick(h0, zeros),
                        pick(c0, zeros),
                        pick(p, x.new_zeros(3 * r.shape[2])),
                    )
                )
            y, h, c = (torch.stack(v, 1 if i == 0 else 0) for i, v in enumerate(zip(*outputs)))
            return (y, h, c) if cell == "lstm" else (y, h)

        return run

    @case(cell, count=24)
    def _():
        steps, samples, size, hidden = (random.randint(1, n) for n in (6, 6, 9, 20))
        attributes = {} if plain(random.random()) else {"direction": random.choice(["reverse", "bidirectional"])}
        d = 2 if attributes.get("direction") == "bidirectional" else 1
        functions = {"rnn": ["tanh"], "gru": ["sigmoid", "tanh"], "lstm": ["sigmoid", "tanh", "tanh"]}[cell] * d
        parameters = [DEFAULTS.get(f, (0, 0)) for f in functions]
        if random.random() < 0.3:
            # Gates that are not bounded let the state grow without end.
            functions = [random.choice(sorted(FUNCTIONS) if f == "tanh" else BOUNDED) for f in functions]
            attributes["activations"] = ",".join(functions)
            parameters = [DEFAULTS.get(f, (0, 0)) for f in functions]
            if random.random() < 0.5:
                parameters = [(random.uniform(0.3, 1), random.uniform(0.3, 1)) for _ in functions]
                attributes["alpha"], attributes["beta"] = ([float(v) for v in column] for column in zip(*parameters))
        if random.random() < 0.2:
            attributes["clip"] = 0.7
        if cell == "gru" and random.random() < 0.5:
            attributes["linear_before_reset"] = True
        given = lambda *shape: rand(*shape, scale=0.5) if random.random() < 0.6 else None
        lengths = None
        if random.random() < 0.5:
            lengths = torch.randint(0, steps + 1, (samples,), dtype=torch.int32)
        inputs = [
            rand(steps, samples, size),
            rand(d, gates * hidden, size, scale=size**-0.5),
            rand(d, gates * hidden, hidden, scale=hidden**-0.5),
            given(d, 2 * gates * hidden),
            lengths,
            given(d, samples, hidden),
        ]
        if cell == "lstm":
            inputs += [given(d, samples, hidden), given(d, 3 * hidden)]
        calls = [lambda v, f=f, ab=ab: FUNCTIONS[f](v, *ab) for f, ab in zip(functions, parameters)]
        return attributes, inputs, reference(attributes, calls), {"sum": 60 * steps, "scale": 4}


for name, gates, count in (("rnn", 1, 1), ("gru", 3, 2), ("lstm", 4, 3)):
    recurrent(name, gates, count, lambda u: u < 0.4)


def pytorch(cell, function, order):
    """What PyTorch's modules call, whose gates come in another order."""

    @case(cell, count=4)
    def _():
        steps, samples, size, hidden = (random.randint(1, n) for n in (12, 5, 30, 40))
        both = random.random() < 0.5
        d = 2 if both else 1
        gates = len(order)

        def reference(x, w, r, b, lengths, h0, c0=None, p=None):
            shuffle = lambda v: torch.cat([v[i * hidden : (i + 1) * hidden] for i in order])
            values = []
            for i in range(d):
                half = b[i].chunk(2)
                values += [shuffle(w[i]), shuffle(r[i]), shuffle(half[0]), shuffle(half[1])]
            state = (h0, c0) if cell == "lstm" else h0
            y, *last = function(x, state, values, True, 1, 0.0, False, both, False)
            return (y.reshape(x.shape[0], x.shape[1], d, hidden).transpose(1, 2), *last)

        attributes = {"direction": "bidirectional"} if both else {}
        if cell == "gru":
            attributes["linear_before_reset"] = True
        inputs = [
            rand(steps, samples, size),
            rand(d, gates * hidden, size, scale=size**-0.5),
            rand(d, gates * hidden, hidden, scale=hidden**-0.5),
            rand(d, 2 * gates * hidden),
            None,
            rand(d, samples, hidden),
        ]
        if cell == "lstm":
            inputs.append(rand(d, samples, hidden))
        return attributes, inputs, reference, {"sum": 100 * steps, "scale": 4, "fixed_shape": True}


# Ours, as PyTorch wants them: gru z, r, h to r, z, n; lstm i, o, f, c to i, f, c, o.
pytorch("rnn", torch._VF.rnn_tanh, [0])
pytorch("gru", torch._VF.gru, [1, 0, 2])
pytorch("lstm", torch._VF.lstm, [0, 2, 3, 1])
