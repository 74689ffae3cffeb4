"""Runs tests of this folder with pytest in the environment of PyTorch: run.py FILE..."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from torch_environment import ENVIRONMENT  # noqa: E402


def main():
    python = ENVIRONMENT.python()
    files = [os.path.join(HERE, name) for name in sys.argv[1:]]
    # PyTorch's traces log thousands of lines, which pytest would keep.
    options = [
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:warnings",
        "-p",
        "no:logging",
        "--rootdir",
        os.path.dirname(HERE),
    ]
    os.execv(python, [python, "-B", "-m", "pytest", *options, *files])


if __name__ == "__main__":
    main()
