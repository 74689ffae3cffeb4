"""The ONNX project's backend node tests through our importer and CPU kernels.

onnx_node_tests.txt has the expected result of each: passed, or not supported and why. No test may fail: an operator is
imported correctly or rejected. To regenerate the file: bazel run //tests/conformance:onnx_node_test -- --update=FILE
"""
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import onnx_environment  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
EXPECTED = os.path.join(HERE, "onnx_node_tests.txt")


def run():
    """{test: (status, operator, "float" or "other", reason)}"""
    text = subprocess.run([os.path.join(HERE, "onnx_node_tests"), onnx_environment.node_tests()],
                          check=True, capture_output=True, text=True).stdout
    results = {}
    for line in text.splitlines():
        name, status, operator, kind, reason = line.split("\t")
        # Not the list of all operators.
        results[name] = (status, operator, kind, reason.split("; known are ")[0].split(" is not known")[0])
    return results


def write(results, path):
    with open(path, "w") as file:
        for name, fields in sorted(results.items()):
            file.write("\t".join((name,) + fields).rstrip() + "\n")


def read(path):
    results = {}
    with open(path) as file:
        for line in file:
            fields = line.rstrip("\n").split("\t")
            results[fields[0]] = tuple(fields[1:] + [""] * (5 - len(fields)))
    return results


class OnnxNodeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.results = run()

    def test_no_node_test_fails(self):
        self.assertEqual({n: r for n, r in self.results.items() if r[0] == "failed"}, {})

    def test_results_match_expectations_file(self):
        self.maxDiff = None
        expected = {name: fields[0] for name, fields in read(EXPECTED).items()}
        now = {name: fields[0] for name, fields in self.results.items()}
        self.assertEqual(now, expected, "if that is better, write the file anew (see the head of this test)")

    def test_seventy_percent_of_the_float_tests_pass(self):
        floats = [r for r in self.results.values() if r[2] == "float"]
        passed = sum(r[0] == "passed" for r in floats)
        print(f"{passed} of {len(floats)} float tests pass; "
              f"{sum(r[0] == 'passed' for r in self.results.values())} of all {len(self.results)}")
        by_operator = {}
        for status, operator, _, _ in self.results.values():
            by_operator.setdefault(operator, []).append(status)
        for operator, statuses in sorted(by_operator.items()):
            print(f"  {operator}: {statuses.count('passed')} passed, {statuses.count('failed')} failed, "
                  f"{statuses.count('unsupported')} not supported")
        self.assertGreater(len(floats), 900)
        self.assertGreaterEqual(passed, 0.7 * len(floats))


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1].startswith("--update="):
        write(run(), sys.argv[1][len("--update="):])
    else:
        unittest.main()
