"""The virtual environment of the programs that read what `espalier history` writes; deploy/install.sh makes it."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "..", "..", "tests", "conformance"))
from environment import Environment  # noqa: E402

ENVIRONMENT = Environment("exports-environment", os.path.join(HERE, "requirements.txt"))

if __name__ == "__main__":
    ENVIRONMENT.install()
