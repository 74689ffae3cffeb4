"""Single optimizer steps, and penalties. optimizers_test compares many steps with PyTorch."""
import math
import random

import torch

from cases import case, dims, rand


def step_inputs(shape):
    scale = torch.rand((), dtype=torch.float64) + 0.1 if random.random() < 0.5 else None
    hyper = torch.tensor([0.05, random.randint(1, 9)], dtype=torch.float64)
    return [rand(*shape), rand(*shape), scale, hyper]


def scaled(g, scale):
    return g if scale is None else g * scale


def update(name, make_attributes, states, formula, count=6):
    """`states(attributes)` says which buffers there are; `formula(a, p, g, hyper, *buffers)` gives the new p."""
    @case(name, count=count)
    def _():
        attributes, shape = make_attributes(), dims()
        buffers = [rand(*shape).abs() + 2 if there else None for there in states(attributes)]

        def reference(p, g, scale, hyper, *buffers):
            return formula(attributes, p, scaled(g, scale), hyper[0], hyper[1], *buffers)

        return attributes, step_inputs(shape) + buffers, reference, {"forward_only": True, "scale": 4}


def sgd(a, p, g, lr, t, buffer):
    g = g + a["weight_decay"] * p
    b = a["momentum"] * buffer + g if t > 1 else g
    return p - lr * (g + a["momentum"] * b if a["nesterov"] else b)


update("sgd_update", lambda: {"momentum": 0.9, "weight_decay": 0.01, "nesterov": random.random() < 0.7},
       lambda a: [True], sgd)


def root(square, a):
    return torch.sqrt(square + a["eps"]) if a["eps_in_sqrt"] else torch.sqrt(square) + a["eps"]


def adagrad(a, p, g, lr, t, total):
    g = g + a["weight_decay"] * p
    total = total + g * g + (a["initial_accumulator_value"] if t == 1 else 0)
    return p - lr / (1 + (t - 1) * a["lr_decay"]) * g / root(total, a)


update("adagrad_update", lambda: {"weight_decay": 0.1, "lr_decay": random.choice([0.0, 0.1]),
                                  "initial_accumulator_value": random.choice([0.0, 0.5]), "eps": 0.1,
                                  "eps_in_sqrt": random.random() < 0.5},
       lambda a: [True], adagrad)


def rmsprop(a, p, g, lr, t, square, buffer, average):
    g = g + a["weight_decay"] * p
    v = a["alpha"] * square + (1 - a["alpha"]) * g * g
    if a["centered"]:
        v = v - (a["alpha"] * average + (1 - a["alpha"]) * g) ** 2
    d = g / root(v, a)
    return p - lr * (a["momentum"] * buffer + d if a["momentum"] > 0 else d)


@case("rmsprop_update", count=12)
def _():
    attributes = {"alpha": 0.9, "eps": 0.1, "weight_decay": 0.1, "momentum": random.choice([0.0, 0.8]),
                  "centered": random.random() < 0.5, "eps_in_sqrt": random.random() < 0.5}
    shape = dims()
    # The average of squares is at least the square of the average.
    buffers = [rand(*shape).abs() + 4, rand(*shape) if attributes["momentum"] > 0 else None,
               torch.rand(shape, dtype=torch.float64) if attributes["centered"] else None]

    def reference(p, g, scale, hyper, *buffers):
        return rmsprop(attributes, p, scaled(g, scale), hyper[0], hyper[1], *buffers)

    return attributes, step_inputs(shape) + buffers, reference, {"forward_only": True, "scale": 10}


def adam(a, p, g, lr, t, m, v):
    m, v = a["beta1"] * m + (1 - a["beta1"]) * g, a["beta2"] * v + (1 - a["beta2"]) * g * g
    corrected = torch.sqrt(1 - a["beta2"] ** t)
    if a["epsilon_hat"]:
        return p - lr * corrected / (1 - a["beta1"] ** t) * m / (torch.sqrt(v) + a["epsilon"])
    return p - lr / (1 - a["beta1"] ** t) * m / (torch.sqrt(v) / corrected + a["epsilon"])


update("adam_update", lambda: {"beta1": 0.8, "beta2": 0.9, "epsilon": 0.1, "epsilon_hat": random.random() < 0.6},
       lambda a: [True, True], adam)


@case("scale_learning_rate")
def _():
    factor = random.random()
    hyper = torch.tensor([random.random(), random.randint(0, 2**20)], dtype=torch.float64)
    return ({"factor": factor}, [hyper], lambda h: torch.stack([h[0] * factor, h[1]]),
            {"forward_only": True, "fixed_shape": True})


def lion(a, p, g, lr, t, m):
    return p - lr * (torch.sign(a["beta1"] * m + (1 - a["beta1"]) * g) + a["weight_decay"] * p)


update("lion_update", lambda: {"beta1": 0.9, "beta2": 0.99, "weight_decay": random.choice([0.0, 0.1])},
       lambda a: [True], lion)


def as_matrix(x):
    return x.reshape(x.shape[0], -1)


def adafactor_sums(p, g, scale, hyper):
    squares = as_matrix(scaled(g, scale)) ** 2 + 1e-30 if g.dim() >= 2 else None
    parts = [(p * p).sum().reshape(1)]
    return torch.cat(parts + ([squares.sum(1), squares.sum(0)] if squares is not None else []))


def second_moments(attributes, g, t, rows, columns, squares, sums):
    b = 1 - t ** attributes["beta2_decay"]
    if g.dim() < 2:
        return b * squares + (1 - b) * (g * g + 1e-30)
    n = g.shape[0]
    rows = b * rows + (1 - b) * sums[1:1 + n]
    columns = b * columns + (1 - b) * sums[1 + n:]
    return (rows[:, None] * columns[None, :] / rows.sum()).reshape(g.shape)


def adafactor_case(name, reference, with_norm):
    @case(name, count=12)
    def _():
        attributes = {"beta2_decay": random.choice([-0.8, -0.5]), "weight_decay": random.choice([0.0, 0.1]), "d": 0.7}
        shape = dims()
        p, g, scale, hyper = step_inputs(shape)
        matrix = len(shape) >= 2
        rows = torch.rand(shape[0], dtype=torch.float64) + 1 if matrix else None
        columns = torch.rand(math.prod(shape[1:]), dtype=torch.float64) + 1 if matrix else None
        squares = None if matrix else torch.rand(shape, dtype=torch.float64) + 1
        inputs = [p, g, scale, hyper, rows, columns, squares, adafactor_sums(p, g, scale, hyper)]
        if with_norm:
            inputs.append(torch.rand(1, dtype=torch.float64) * p.numel() * 2)
        return (attributes, inputs, lambda *x: reference(attributes, *x),
                {"forward_only": True, "sum": 100, "scale": 4, "fixed_shape": True})


@case("adafactor_sums", count=8)
def _():
    return {}, step_inputs(dims()), adafactor_sums, {"forward_only": True, "sum": 1000}


def norm(a, p, g, scale, hyper, rows, columns, squares, sums):
    g = scaled(g, scale)
    return (g * g / second_moments(a, g, hyper[1], rows, columns, squares, sums)).sum().reshape(1)


def adafactor(a, p, g, scale, hyper, rows, columns, squares, sums, total):
    lr, t = hyper
    g = scaled(g, scale)
    u = g / torch.sqrt(second_moments(a, g, t, rows, columns, squares, sums))
    rms_p, rms_u = torch.sqrt(sums[0] / p.numel()), torch.sqrt(total[0] / p.numel())
    rate = min(lr.item(), t.item() ** -0.5) * max(1e-3, rms_p.item())
    return (1 - lr * a["weight_decay"]) * p - rate * u / max(1.0, rms_u.item() / a["d"])


adafactor_case("adafactor_norm", norm, with_norm=False)
adafactor_case("adafactor_update", adafactor, with_norm=True)


@case("regularization_loss")
def _():
    return ({"l1": 0.3, "l2": 0.2}, [rand(*dims())], lambda p: 0.3 * p.abs().sum() + 0.2 * (p * p).sum(),
            {"forward_only": True, "sum": 1000})


@case("regularize_gradient")
def _():
    shape = dims()
    return ({"l1": 0.3, "l2": 0.2}, [rand(*shape), rand(*shape)],
            lambda p, g: g + 0.3 * torch.sign(p) + 0.4 * p, {"forward_only": True})


@case("regularize_gradient")
def _():
    shape = dims()
    return ({"l1": 0.3, "l2": 0.2}, [rand(*shape), rand(*shape), torch.tensor(8.0, dtype=torch.float64)],
            lambda p, g, scale: g + scale * (0.3 * torch.sign(p) + 0.4 * p), {"forward_only": True, "scale": 16})


def loss_scale_state():
    return torch.tensor([random.randint(-4, 4), random.randint(0, 3), random.randint(0, 9)], dtype=torch.float64)


@case("loss_scale")
def _():
    return {"initial": 16.0}, [loss_scale_state()], lambda state: 16 * 2 ** state[0], {"forward_only": True}


@case("unscale_gradients", count=8)
def _():
    max_norm = random.choice([0.0, 1.0, 1e6])

    def reference(squares, state, hyper):
        scale = 16 * 2 ** state[0]
        norm = torch.sqrt(squares) / scale
        factor = 1 / scale * (max_norm / (norm + 1e-6) if 0 < max_norm < norm else 1)
        return factor, norm, torch.stack([hyper[0], state[2] + 1])

    return ({"initial": 16.0, "growth_interval": 2, "max_norm": max_norm},
            [torch.rand((), dtype=torch.float64) * 4, loss_scale_state(),
             torch.tensor([0.05, 7], dtype=torch.float64)], reference, {"forward_only": True})
