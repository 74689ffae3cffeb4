"""Every operator under every partition that it declares: the combined results of the shards equal the whole operator's.

Forward and gradient of each case in cases/, over each declared axis with degrees 2 and 3 and over pairs of axes.
Cases are drawn until every axis was divisible often enough. Tolerance as in operators_test; bitwise equality is
reported. Set SEED to repeat a run.
"""
import collections
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
DEGREES = (2, 3)
ENOUGH = 3  # checks of each axis and degree, and of each pair of axes
MOST_DRAWS = 300

# (operator, axis) that no case can divide, and why.
NEVER_DIVIDED = {}


class Tally:
    """What was seen of one axis, or of a pair."""

    def __init__(self):
        self.checks = collections.Counter()  # by degrees
        self.error = 0.0  # the largest, as a part of the tolerance
        self.bits = set()

    def row(self):
        degrees = ", ".join(f"{'x'.join(map(str, d))}: {n}" for d, n in sorted(self.checks.items()))
        return f"{degrees:<24} {self.error:9.2g}  {' and '.join(sorted(self.bits))}"


def difference(ours, reference, options):
    """The largest error as a part of the tolerance."""
    if list(ours.shape) != list(reference.shape):
        return math.inf
    if reference.numel() == 0 or torch.equal(ours, reference):
        return 0.0
    ours, reference = ours.double(), reference.double()
    odd = ~torch.isfinite(reference)
    same = (ours == reference) | (torch.isnan(ours) & torch.isnan(reference))
    if not same[odd].all():
        return math.inf
    ours, reference = ours[~odd], reference[~odd]
    if reference.numel() == 0:
        return 0.0
    if torch.isnan(ours).any():
        return math.inf
    size = max(1e-3, reference.abs().max().item())
    limit = 2e-6 * math.sqrt(options.get("sum", 1) + 1) * options.get("scale", 1) * size
    return (ours - reference).abs().max().item() / limit


def tensors(answer):
    """What an answer holds, with a name each."""
    for kind in ("outputs", "inputs_after"):
        for i, value in enumerate(answer[kind]):
            if value is not None:
                yield f"{kind} {i}", from_json(value)
    for i, value in sorted(answer.get("input_gradients", {}).items()):
        yield f"gradient of input {i}", from_json(value)


class SplitsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.run_op = Runner()
        cls.table = {}

    @classmethod
    def tearDownClass(cls):
        cls.run_op.close()
        print(f"\n{'operator':<34} {'axes':<22} {'checks by degree':<24} error/tol  bits")
        for (op, axes), tally in sorted(cls.table.items()):
            print(f"{op:<34} {' x '.join(axes):<22} {tally.row()}")
        print(f"{sum(sum(t.checks.values()) for t in cls.table.values())} checks of {len(cls.table)} rows")

    def wanted(self, name, axes):
        """Splits that this draw allows and that have not been seen often enough."""
        legal = {a["name"]: [d for d in DEGREES if a["size"] >= d and a["size"] % d == 0] for a in axes}
        self.assertEqual(len(legal), len(axes), f"{name}: two axes of one name")
        splits = [{axis: d} for axis, degrees in legal.items() for d in degrees]
        divisible = [axis for axis, degrees in legal.items() if degrees]
        for i, first in enumerate(divisible):
            for second in divisible[i + 1:]:
                splits.append({first: random.choice(legal[first]), second: random.choice(legal[second])})
        return [s for s in splits if self.seen(name, s) < ENOUGH]

    def seen(self, name, split):
        tally = self.table.get((name, tuple(split)))
        if tally is None:
            return 0
        return tally.checks[tuple(split.values())] if len(split) == 1 else sum(tally.checks.values())

    def enough(self, name, declared, degrees):
        """Whether each axis was checked often with `degrees` of DEGREES."""
        tallies = [self.table.get((name, (axis,)), Tally()) for axis in declared]
        return all(sum(n >= ENOUGH for n in t.checks.values()) >= degrees for t in tallies)

    def compare(self, name, request, whole, split, options):
        """Runs it split, and returns a sentence on what is wrong, or nothing."""
        answer = self.run_op(**request, split=split)
        if "error" in answer:
            return answer["error"]
        tally = self.table.setdefault((name, tuple(split)), Tally())
        tally.checks[tuple(split.values())] += 1
        found = dict(tensors(answer))
        equal = True
        for what, reference in tensors(whole):
            error = difference(found[what], reference, options)
            equal = equal and torch.equal(found[what], reference)
            tally.error = max(tally.error, error)
            if error > 1:
                return f"{what} differs by {error:.3g} of the tolerance"
        tally.bits.add("equal" if equal else "sums" if answer["summed"] else "OTHER")
        return None

    def check(self, name, makes):
        declared, failures = set(), []
        for draw in range(MOST_DRAWS):
            make = makes[draw % len(makes)][0]
            attributes, inputs, _, options = make()
            request = {"op": name, "attributes": attributes, "inputs": [to_json(x) for x in inputs],
                       **options.get("request", {})}
            what = f"{attributes} {[None if x is None else list(x.shape) for x in inputs]}"
            asked = self.run_op(**request, axes=True)
            self.assertNotIn("error", asked, f"{name} {what}")
            axes = asked["axes"]
            declared.update(a["name"] for a in axes)
            splits = self.wanted(name, axes)
            if not splits:
                if draw >= 12 * len(makes) and self.enough(name, declared, len(DEGREES)):
                    break
                if draw >= 60 * len(makes) and self.enough(name, declared, 1):
                    break  # no case has both degrees
                continue
            if not options.get("forward_only"):
                request["output_gradients"] = [
                    to_json(torch.randn(y["dims"])) if y["dtype"] in ("f32", "bf16", "f16") else None
                    for y in asked["outputs"]]
            whole = self.run_op(**request)
            self.assertNotIn("error", whole, f"{name} {what}")
            for split in splits:
                wrong = self.compare(name, request, whole, split, options)
                if wrong:
                    failures.append(f"{split} of {what}: {wrong}")
            if len(failures) > 5:
                break
        never = sorted(a for a in declared
                       if (name, (a,)) not in self.table and (name, a) not in NEVER_DIVIDED)
        failures += [f"axis '{a}' was never divided in {draw + 1} draws" for a in never]
        self.assertFalse(failures, f"{name}\n" + "\n".join(failures[:6]))

    def test_every_operator_has_cases(self):
        self.assertEqual(set(self.run_op(list=True)) - set(CASES), set())


def add_tests():
    for name, makes in CASES.items():
        def test(self, name=name, makes=makes):
            random.seed(f"{SEED} {name}")
            torch.manual_seed(SEED)
            self.check(name, makes)
        setattr(SplitsTest, f"test_{name}", test)


add_tests()

if __name__ == "__main__":
    unittest.main()
