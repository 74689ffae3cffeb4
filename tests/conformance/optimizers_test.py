"""Optimizers over many steps, compared with PyTorch, or with the papers' formulas where PyTorch has none."""
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


    def test_step_0_changes_nothing(self):
        """Loss scaling uses step 0 if gradients overflowed."""
        p = torch.randn(7, 5, dtype=torch.float64).float().double()
        infinite = torch.full((7, 5), math.inf, dtype=torch.float64)
        like = [(p.abs() + k).float().double() for k in (1, 2, 3)]
        factored = [like[0][:, 0], like[0][0], None]
        for op, states, sums in (("sgd_update", like[:1], ()), ("adam_update", like[:2], ()),
                                 ("adagrad_update", like[:1], ()), ("rmsprop_update", like, ()),
                                 ("lion_update", like[:1], ()),
                                 ("adafactor_update", factored, ("adafactor_sums", "adafactor_norm"))):
            attributes = {"momentum": 0.9} if op in ("sgd_update", "rmsprop_update") else {}
            if op == "rmsprop_update":
                attributes["centered"] = True
            inputs = [p, infinite, torch.tensor(0.0, dtype=torch.float64),
                      torch.tensor([RATE, 0], dtype=torch.float64)] + states
            given = len(inputs)
            for name in sums:
                inputs = inputs + [from_json(self.run_update(name, attributes, inputs)["outputs"][0])]
            after = self.run_update(op, attributes, inputs)["inputs_after"]
            for i in [0] + list(range(4, given)):
                if inputs[i] is not None:
                    self.assertTrue(torch.equal(from_json(after[i]).double(), inputs[i]), f"{op} input {i}")

    def test_loss_scale_halves_on_overflow_and_grows_back(self):
        state = self.zeros(3)
        hyper = torch.tensor([RATE, 1], dtype=torch.float64)
        seen = []
        for squares in (1.0, 4.0, math.inf, 1.0, math.nan, 1.0, 1.0):
            answer = self.run_op(op="unscale_gradients", attributes={"initial": 8.0, "growth_interval": 2},
                                 inputs=[to_json(x) for x in (torch.tensor(squares, dtype=torch.float64), state, hyper)])
            self.assertNotIn("error", answer)
            factor, _, after = [from_json(x) for x in answer["outputs"]]
            state = from_json(answer["inputs_after"][1])
            seen.append((factor.item(), after[1].item(), 8 * 2 ** state[0].item()))
        self.assertEqual(seen, [(1 / 8, 1, 8), (1 / 8, 2, 16), (0, 0, 8), (1 / 8, 3, 8), (0, 0, 4), (1 / 4, 4, 4),
                                (1 / 4, 5, 8)])


if __name__ == "__main__":
    unittest.main()
