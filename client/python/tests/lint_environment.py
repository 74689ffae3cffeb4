"""The environment of ruff and mypy. `deploy/install.sh --tests` runs this file to make it."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "..", "tests", "conformance"))
from environment import Environment  # noqa: E402

ENVIRONMENT = Environment("lint-environment", os.path.join(HERE, "lint_requirements.txt"))

if __name__ == "__main__":
    ENVIRONMENT.install()
