"""Writes docs/reference/operators.md from the operator registry and the conformance cases.

    bazel run //tools/docs:operators -- --write
"""
import json
import os
import random
import re
import subprocess
import sys

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
sys.path.insert(0, os.path.join(ROOT, "tests", "conformance"))
import cases  # noqa: E402

NAMES = {torch.float64: "f32", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
         torch.int32: "i32", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool"}


def example(name, make):
    """Returns the first draw with informative shapes: no dimension of 0 or 1 in the first input."""
    for attempt in range(50):
        random.seed(f"{name} {attempt}")
        torch.manual_seed(attempt)
        attributes, inputs, *_ = make()
        if not inputs or inputs[0] is None or all(size > 1 for size in inputs[0].shape):
            break
    return {"attributes": attributes,
            "inputs": [None if x is None else {"dtype": NAMES[x.dtype], "dims": list(x.shape)} for x in inputs]}


def cuda_names():
    """Returns all quoted names in the CUDA sources; operators among them have a kernel."""
    folder = os.path.join(ROOT, "ops", "cuda")
    names = set()
    for path, _, files in os.walk(folder):
        for file in files:
            if file.endswith((".cu", ".cc", ".cuh", ".h")):
                names.update(re.findall(r'"([a-z0-9_]+)"', open(os.path.join(path, file)).read()))
    return sorted(names)


def markdown():
    table = cases.load()
    facts = {"examples": {name: example(name, makes[0][0]) for name, makes in table.items()},
             "cuda": cuda_names(),
             "onnx_tests": open(os.path.join(ROOT, "tests", "conformance", "onnx_node_tests.txt")).read()}
    return subprocess.run([os.path.join(HERE, "operators_markdown")], input=json.dumps(facts), text=True,
                          capture_output=True, check=True).stdout


def main():
    path = os.path.join(os.environ.get("BUILD_WORKSPACE_DIRECTORY", ROOT), "docs", "reference", "operators.md")
    made = markdown()
    if "--write" in sys.argv:
        with open(path, "w") as file:
            file.write(made)
    elif open(path).read() != made:
        sys.exit("docs/reference/operators.md is not what the table of operators says: bazel run //tools/docs:operators -- --write")


if __name__ == "__main__":
    main()
