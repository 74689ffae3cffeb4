"""Every operator, forward and gradient, against PyTorch in float64 on random shapes.

Tolerance for f32: 2e-6 x sqrt(terms summed) relative to the largest magnitude in the tensor, times the case's
`scale` where the formula amplifies rounding (divisions by a variance). Set SEED to repeat a run.
"""
import math
import os
import random
import sys
import unittest

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cases  # noqa: E402
from runner import Runner, from_json, to_json  # noqa: E402

CASES = cases.load()
SEED = int(os.environ.get("SEED", "20261121"))
# Operators whose definition is checked elsewhere: by a property of theirs, or by tests of their state.
ELSEWHERE = {
    "dropout": "DropoutTest below",
    "random_like": "ops/cpu/training_ops_test.cc, by element and moments",
    "sgd_update": "OptimizerTest below",
    "adam_update": "OptimizerTest below",
    "paged_attention": "ops/cpu/paged_attention_test.cc, against attention",
    "quantized_linear": "ops/quantized/pack_test.cc and quantized_linear_test.cc, against what the packed numbers stand for",
    "quantized_expert_linear": "ops/quantized/quantized_linear_test.cc, against quantized_linear",
}

class OperatorsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.run_op = Runner()

    @classmethod
    def tearDownClass(cls):
        cls.run_op.close()

    def close_to(self, ours, reference, options, what):
        self.assertEqual(list(ours.shape), list(reference.shape), what)
        ours, reference = ours.double(), reference.double()
        finite = torch.isfinite(reference)  # the mean of nothing is nothing to compare
        ours, reference = ours[finite], reference[finite]
        if reference.numel() == 0:
            return
        size = max(1e-3, reference.abs().max().item())
        limit = 2e-6 * math.sqrt(options.get("sum", 1) + 1) * options.get("scale", 1) * size
        error = (ours - reference).abs().max().item()
        self.assertLessEqual(error, limit, what)

    def check(self, name, attributes, inputs, reference, options):
        what = f"{name} {attributes} {[None if x is None else list(x.shape) for x in inputs]}"
        # What f32 kernels see, exactly.
        inputs = [x.float().double() if x is not None and x.dtype == torch.float64 else x for x in inputs]
        skip = set(options.get("no_gradient", []))
        leaves = [x.clone().requires_grad_() if x is not None and x.dtype == torch.float64 and i not in skip else x
                  for i, x in enumerate(inputs)]
        result = reference(*leaves)
        outputs = list(result) if isinstance(result, (tuple, list)) else [result]
        request = {"op": name, "attributes": attributes, "inputs": [to_json(x) for x in inputs],
                   **options.get("request", {})}
        gradients = None
        if not options.get("forward_only"):
            gradients = [torch.randn(y.shape, dtype=torch.float64).float().double() if y.is_floating_point() else None
                         for y in outputs]
            request["output_gradients"] = [to_json(g) for g in gradients]
        answer = self.run_op(**request)
        self.assertNotIn("error", answer, what)
        self.assertEqual(len(answer["outputs"]), len(outputs), what)
        for ours, theirs in zip(answer["outputs"], outputs):
            self.close_to(from_json(ours), theirs.detach(), options, what + " forward")
        if gradients is None:
            return
        reached = [(y, g) for y, g in zip(outputs, gradients) if g is not None and y.requires_grad]
        if reached:
            torch.autograd.backward(*zip(*reached))
        for i, leaf in enumerate(leaves):
            if leaf is None or not leaf.requires_grad:
                continue
            self.assertIn(str(i), answer["input_gradients"], what)
            theirs = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
            self.close_to(from_json(answer["input_gradients"][str(i)]), theirs, options, f"{what} gradient {i}")
        self.assertEqual(answer, self.run_op(**request), what + ": a second run differs")

    def check_edges(self, name, attributes, inputs, reference, options):
        """The same with each axis that may be split cut down to nothing, and to one."""
        request = {"op": name, "attributes": attributes, **options.get("request", {})}
        asked = self.run_op(**request, inputs=[to_json(x) for x in inputs], axes=True)
        self.assertNotIn("error", asked, name)
        for a, axis in enumerate(asked["axes"]):
            for size in (0, 1):
                cut = [None if x is None else shorten(x, follows, a, axis["size"], size)
                       for x, follows in zip(inputs, asked["inputs"])]
                try:
                    reference(*cut)
                except (RuntimeError, IndexError, ValueError, ArithmeticError):
                    continue  # no such problem for PyTorch, or the attributes hold the size
                refused = self.run_op(**request, inputs=[to_json(x) for x in cut], axes=True).get("error")
                if refused is None:
                    self.check(name, attributes, cut, reference, options)

    def test_every_registered_operator_is_covered(self):
        registered = set(self.run_op(list=True))
        covered = {name for name, makes in CASES.items() if not all(o.get("splits_only") for _, _, o in makes)}
        self.assertEqual(registered - covered - set(ELSEWHERE), set())

    def test_batch_invariant_linear(self):
        """The serving kernel: right, and the same bits for a row whatever rows it is computed with."""
        torch.manual_seed(SEED)
        for rows, i, o in [(1, 33, 7), (5, 64, 130), (40, 100, 16), (129, 256, 48)]:
            x, w = (torch.randn(*d, dtype=torch.float64).float().double() for d in ((rows, i), (o, i)))
            answer = self.run_op(op="linear", inputs=[to_json(x), to_json(w)], batch_invariant=True)
            y = from_json(answer["outputs"][0])
            self.close_to(y, x @ w.T, {"sum": i}, f"{rows} {i} {o}")
            for row in {0, rows // 2, rows - 1}:
                alone = self.run_op(op="linear", inputs=[to_json(x[row:row + 1]), to_json(w)], batch_invariant=True)
                self.assertTrue(torch.equal(from_json(alone["outputs"][0])[0], y[row]), f"row {row} of {rows}")

    def test_batch_invariant_lora_linear(self):
        """A row has the same bits whatever rows, of whatever adapters, it is computed with."""
        torch.manual_seed(SEED)
        for rows, wide, rank, out in [(7, 33, 4, 9), (40, 100, 16, 50), (65, 256, 24, 48)]:
            x, a, b = (torch.randn(*d, dtype=torch.float64).float().double()
                       for d in ((rows, wide), (3, rank, wide), (3, out, rank)))
            adapter = torch.randint(-1, 3, (rows,), dtype=torch.int32)

            def run(at):
                answer = self.run_op(op="lora_linear", batch_invariant=True,
                                     inputs=[to_json(v) for v in (x[at], a, b, adapter[at])])
                return from_json(answer["outputs"][0])
            together = run(slice(0, rows))
            for row in range(rows):
                self.assertTrue(torch.equal(run(slice(row, row + 1))[0], together[row]), f"row {row} of {rows}")
        wrong = self.run_op(op="lora_linear", inputs=[to_json(v) for v in (
            x[:1], a, b, torch.tensor([3], dtype=torch.int32))])
        self.assertIn("expected -1 to 2", wrong["error"])


def shorten(x, follows, axis, axis_size, size):
    """`x` with `size` of the `axis_size` parts of the dimensions that follow the axis."""
    for d, a in enumerate(follows):
        if a == axis:
            x = x.narrow(d, 0, min(x.shape[d], x.shape[d] // max(1, axis_size) * size))
    return x.clone()


def add_tests():
    for name, all_makes in CASES.items():
        makes = [make for make in all_makes if not make[2].get("splits_only")]
        if not makes:
            continue

        def test(self, name=name, makes=makes):
            random.seed(f"{SEED} {name}")
            torch.manual_seed(SEED)
            for make, count, _ in makes:
                for _ in range(count):
                    self.check(name, *make())

        def edges(self, name=name, makes=makes):
            random.seed(f"{SEED} {name}")
            torch.manual_seed(SEED)
            for make, _, _ in makes:
                attributes, inputs, reference, options = make()
                if not options.get("fixed_shape"):
                    self.check_edges(name, attributes, inputs, reference, options)

        setattr(OperatorsTest, f"test_{name}", test)
        setattr(OperatorsTest, f"test_{name}_edges", edges)


add_tests()


class DropoutTest(unittest.TestCase):
    def test_keeps_the_mean_and_its_gradient_uses_the_same_mask(self):
        run_op = Runner()
        ones = torch.ones(100, 200, dtype=torch.float64)
        answer = run_op(op="dropout", attributes={"rate": 0.3}, inputs=[to_json(ones)],
                        output_gradients=[to_json(ones)], seed=5, node_key=9, step=3)
        y = from_json(answer["outputs"][0])
        kept = (y != 0).double().mean().item()
        self.assertAlmostEqual(kept, 0.7, delta=0.02)  # 6 standard deviations
        self.assertTrue(torch.allclose(y[y != 0], torch.tensor(1 / 0.7, dtype=torch.float64), atol=1e-5))
        self.assertTrue(torch.equal(y, from_json(answer["input_gradients"]["0"])))
        other = run_op(op="dropout", attributes={"rate": 0.3}, inputs=[to_json(ones)], seed=5, node_key=9, step=4)
        self.assertFalse(torch.equal(y, from_json(other["outputs"][0])))
        quiet = run_op(op="dropout", attributes={"rate": 0.3}, inputs=[to_json(ones)], training=False)
        self.assertTrue(torch.equal(ones, from_json(quiet["outputs"][0])))
        run_op.close()


class OptimizerTest(unittest.TestCase):
    def follow(self, op, attributes, states, make_optimizer):
        """Twenty steps of ours beside twenty of PyTorch's."""
        run_op = Runner()
        torch.manual_seed(SEED)
        ours = torch.randn(7, 5, dtype=torch.float64).float().double()
        theirs = ours.clone().requires_grad_()
        optimizer = make_optimizer([theirs])
        state = [torch.zeros_like(ours) for _ in range(states)]
        for step in range(1, 21):
            gradient = torch.randn(7, 5, dtype=torch.float64).float().double()
            theirs.grad = gradient.clone()
            optimizer.step()
            hyper = torch.tensor([0.05, step], dtype=torch.float64)
            answer = run_op(op=op, attributes=attributes,
                            inputs=[to_json(x) for x in [ours, gradient, None, hyper] + state])
            self.assertNotIn("error", answer)
            after = [from_json(x) if x else None for x in answer["inputs_after"]]
            ours, state = after[0], after[4:]
            error = (ours - theirs.detach()).abs().max().item()
            self.assertLess(error, 3e-6 * step, f"{op} {attributes} step {step}")
        run_op.close()

    def test_sgd(self):
        self.follow("sgd_update", {"momentum": 0.0, "weight_decay": 0.01}, 0,
                    lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.01))

    def test_sgd_with_momentum(self):
        self.follow("sgd_update", {"momentum": 0.9, "weight_decay": 0.01}, 1,
                    lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01))

    def test_adam(self):
        self.follow("adam_update", {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "weight_decay": 0.1, "decoupled": False}, 2,
                    lambda p: torch.optim.Adam(p, lr=0.05, betas=(0.9, 0.99), weight_decay=0.1))

    def test_adamw(self):
        self.follow("adam_update", {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "weight_decay": 0.1, "decoupled": True}, 2,
                    lambda p: torch.optim.AdamW(p, lr=0.05, betas=(0.9, 0.99), weight_decay=0.1))


if __name__ == "__main__":
    unittest.main()
