"""Optimisers over many steps: ours beside PyTorch's, or beside the papers' mathematics where PyTorch has none."""
import math
import os
import sys
import unittest

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from runner import Runner, from_json, to_json  # noqa: E402

STEPS, RATE = 20, 0.05


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", program 2."""

    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                c = b1 * m + (1 - b1) * p.grad
                p -= group["lr"] * (torch.sign(c) + group["weight_decay"] * p)
                m.copy_(b2 * m + (1 - b2) * p.grad)


class Adafactor(torch.optim.Optimizer):
    """Shazeer and Stern 2018, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", algorithms 4 to 6."""

    def __init__(self, params, lr, weight_decay):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                s = self.state[p]
                t = s["t"] = s.get("t", 0) + 1
                rho = min(group["lr"], 1 / math.sqrt(t))
                alpha = max(1e-3, p.pow(2).mean().sqrt().item()) * rho
                b = 1 - t ** -0.8
                squares = p.grad ** 2 + 1e-30
                if p.dim() >= 2:
                    squares = squares.reshape(p.shape[0], -1)
                    r = s["r"] = b * s.get("r", 0) + (1 - b) * squares.sum(1, keepdim=True)
                    c = s["c"] = b * s.get("c", 0) + (1 - b) * squares.sum(0, keepdim=True)
                    v = (r @ c / r.sum()).reshape(p.shape)
                else:
                    v = s["v"] = b * s.get("v", 0) + (1 - b) * squares
                u = p.grad / v.sqrt()
                u /= max(1.0, u.pow(2).mean().sqrt().item())
                p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(alpha * u)


class OptimizersTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.run_op = Runner()

    @classmethod
    def tearDownClass(cls):
        cls.run_op.close()

    def run_update(self, op, attributes, inputs):
        answer = self.run_op(op=op, attributes=attributes, inputs=[to_json(x) for x in inputs])
        self.assertNotIn("error", answer, op)
        return answer

    def follow(self, op, attributes, states, make_optimizer, sums=(), shape=(7, 5)):
        torch.manual_seed(len(op))
        ours = torch.randn(shape, dtype=torch.float64).float().double()
        theirs = ours.clone().requires_grad_()
        optimizer = make_optimizer([theirs])
        for step in range(1, STEPS + 1):
            gradient = torch.randn(shape, dtype=torch.float64).float().double()
            theirs.grad = gradient.clone()
            optimizer.step()
            inputs = [ours, gradient, None, torch.tensor([RATE, step], dtype=torch.float64)] + states
            for name in sums:
                inputs = inputs + [from_json(self.run_update(name, attributes, inputs)["outputs"][0])]
            after = [from_json(x) if x else None for x in self.run_update(op, attributes, inputs)["inputs_after"]]
            ours, states = after[0], after[4:4 + len(states)]
            error = (ours - theirs.detach()).abs().max().item()
            self.assertLess(error, 4e-6 * step, f"{op} {attributes} step {step}")

    def zeros(self, *shape):
        return torch.zeros(shape, dtype=torch.float64)

    def test_nesterov(self):
        self.follow("sgd_update", {"momentum": 0.9, "weight_decay": 0.01, "nesterov": True}, [self.zeros(7, 5)],
                    lambda p: torch.optim.SGD(p, lr=RATE, momentum=0.9, weight_decay=0.01, nesterov=True))

    def test_adagrad(self):
        for more in ({}, {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.5}):
            self.follow("adagrad_update", more, [self.zeros(7, 5)],
                        lambda p: torch.optim.Adagrad(p, lr=RATE, **more))

    def test_rmsprop(self):
        for momentum in (0.0, 0.9):
            for centered in (False, True):
                # Where v - mean^2 is small its rounding is amplified: eps keeps it in bounds.
                attributes = {"alpha": 0.9, "eps": 1e-2, "weight_decay": 0.1, "momentum": momentum,
                              "centered": centered}
                states = [self.zeros(7, 5), self.zeros(7, 5) if momentum else None,
                          self.zeros(7, 5) if centered else None]
                self.follow("rmsprop_update", attributes, states,
                            lambda p: torch.optim.RMSprop(p, lr=RATE, **attributes))

    def test_lion(self):
        self.follow("lion_update", {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1}, [self.zeros(7, 5)],
                    lambda p: Lion(p, RATE, (0.9, 0.99), 0.1))

    def test_adafactor(self):
        sums = ("adafactor_sums", "adafactor_norm")
        for shape, states in (((7, 5), [self.zeros(7), self.zeros(5), None]),
                              ((4, 3, 2, 2), [self.zeros(4), self.zeros(12), None]),
                              ((6,), [None, None, self.zeros(6)]),
                              ((), [None, None, self.zeros()])):
            self.follow("adafactor_update", {"weight_decay": 0.1}, states,
                        lambda p: Adafactor(p, RATE, 0.1), sums, shape)


if __name__ == "__main__":
    unittest.main()
