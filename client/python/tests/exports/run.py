"""Runs tests of this folder with pytest in the environment of the readers of exported histories: run.py FILE..."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from exports_environment import ENVIRONMENT  # noqa: E402


def main():
    python = ENVIRONMENT.python()
    files = [os.path.join(HERE, name) for name in sys.argv[1:]]
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:warnings", "--rootdir", os.path.dirname(HERE)]
    os.execv(python, [python, "-B", "-m", "pytest", *options, *files])


if __name__ == "__main__":
    main()
