"""Mixture of experts: FlexFlow's operators, row by row."""
import math
import random

import torch

from cases import case, dims, rand


def capacity(alpha, k, samples, n):
    return math.ceil(alpha * k * samples / n)


def rows_of(assign, n):
    """For each choice (sample, j) in order: its expert, and its row there."""
    taken = [0] * n
    places = []
    for s in range(assign.shape[0]):
        for j in range(assign.shape[1]):
            e = int(assign[s, j])
            places.append((s, j, e, taken[e]))
            taken[e] += 1
    return places, taken


def problem():
    samples, k, n = random.randint(1, 9), random.randint(1, 3), random.randint(1, 5)
    alpha = random.choice([0.5, 1.0, 1.3, 4.0])
    assign = torch.randint(0, n, (samples, k), dtype=torch.int32)
    return samples, k, n, alpha, assign


def group(x, assign, n, alpha):
    c = capacity(alpha, assign.shape[1], x.shape[0], n)
    rows = [[torch.zeros_like(x[0])] * c for _ in range(n)]
    for s, _, e, at in rows_of(assign, n)[0]:
        if at < c:
            rows[e][at] = x[s]
    return tuple(torch.stack(r) if c else x[:0] for r in rows)


@case("group_by", count=12)
def _():
    samples, k, n, alpha, assign = problem()
    return ({"n": n, "alpha": alpha}, [rand(samples, random.randint(1, 12)), assign],
            lambda x, a: group(x, a, n, alpha), {"sum": 4})


@case("expert_linear", count=16)
def _():
    """Without capacity: every choice is computed."""
    samples, k, n, _, assign = problem()
    wide, out = random.randint(1, 20), random.randint(1, 20)
    each = random.random() < 0.5  # a row for each choice
    x = rand(samples, k, wide) if each else rand(samples, wide)
    gates = rand(samples, k) if random.random() < 0.5 else None

    def reference(x, weight, assign, gates):
        rows = x if each else x[:, None, :].expand(-1, k, -1)
        y = torch.einsum("tkoi,tki->tko", weight[assign.long()], rows)
        return y if gates is None else (gates[:, :, None] * y).sum(1)

    return ({}, [x, rand(n, out, wide), assign, gates], reference,
            {"forward_only": True, "sum": wide * k, "request": {}})


def balance(gates, assign):
    samples, n = gates.shape
    counts = torch.tensor(rows_of(assign, n)[1], dtype=torch.float64)
    return n * (counts / assign.numel() * gates.mean(0)).sum()


class WithBalance(torch.autograd.Function):
    """y, where the gates get the gradient of weight * balance on the way back."""

    @staticmethod
    def forward(context, y, gates, assign, weight):
        context.save_for_backward(gates, assign)
        context.weight = weight
        return y.clone()

    @staticmethod
    def backward(context, dy):
        gates, assign = context.saved_tensors
        with torch.enable_grad():
            leaf = gates.detach().requires_grad_()
            gradient, = torch.autograd.grad(context.weight * balance(leaf, assign), leaf)
        return dy, gradient, None, None


def rows_of_experts(assign, experts, n):
    return torch.stack([experts[e][at] if at < experts[e].shape[0] else torch.zeros_like(experts[0].sum(0))
                        for _, _, e, at in rows_of(assign, n)[0]])


def inputs_of(width):
    samples, k, n, alpha, assign = problem()
    c, weight = capacity(alpha, k, samples, n), random.choice([0.0, 0.3])
    inputs = [rand(samples, k), assign, rand(samples, n).softmax(1)] + [rand(c, width) for _ in range(n)]
    return n, weight, {"n": n, "alpha": alpha, "lambda_balance": weight}, inputs


@case("aggregate", count=12)
def _():
    n, weight, attributes, inputs = inputs_of(random.randint(1, 12))

    def reference(values, assign, gates, *experts):
        rows = values.reshape(-1, 1) * rows_of_experts(assign, experts, n)
        return WithBalance.apply(rows.reshape(*values.shape, -1).sum(1), gates, assign, weight)

    return attributes, inputs, reference, {"sum": 20, "fixed_shape": True}


class Specialise(torch.autograd.Function):
    """The rows, with FlexFlow's rule on the way back: error shares for the gate, gate times error for the experts."""

    @staticmethod
    def forward(context, rows, values, gates, assign, weight):
        context.save_for_backward(values, gates, assign)
        context.weight = weight
        return rows.clone()

    @staticmethod
    def backward(context, dy):
        values, gates, assign = context.saved_tensors
        errors = dy.square().sum(1).reshape(values.shape)
        share = torch.where(errors.sum(1, keepdim=True) > 0,
                            errors / errors.sum(1, keepdim=True) - (1 - values), torch.zeros_like(errors))
        with torch.enable_grad():
            leaf = gates.detach().requires_grad_()
            gradient, = torch.autograd.grad(context.weight * balance(leaf, assign), leaf)
        gradient = gradient.scatter_add(1, assign.long(), share)
        return values.reshape(-1, 1) * dy, None, gradient - gradient.mean(1, keepdim=True), None, None


@case("aggregate_spec", count=12)
def _():
    n, weight, attributes, inputs = inputs_of(random.randint(1, 12))

    def reference(values, assign, gates, *experts):
        return Specialise.apply(rows_of_experts(assign, experts, n), values, gates, assign, weight)

    return attributes, inputs, reference, {"sum": 20, "fixed_shape": True, "no_gradient": [0]}


@case("load_balance_loss", count=10)
def _():
    samples, k, n, _, assign = problem()
    return {}, [rand(samples, n).softmax(1), assign], balance, {"sum": 40, "fixed_shape": True}


@case("cache")
def _():
    shape = dims()
    return {}, [rand(*shape), rand(*shape)], lambda x, state: x * 1, {"no_gradient": [1]}


@case("cache")
def _():
    shape, cached = dims(), random.random() < 0.5
    return ({"use_cached": cached}, [rand(*shape), rand(*shape)],
            lambda x, state: state * 1 if cached else x * 1, {"forward_only": True, "request": {"training": False}})
