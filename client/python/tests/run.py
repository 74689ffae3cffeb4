"""Runs tests with pytest in their environment: run.py [--oldest] [FILE...]; without files all of this folder."""

import glob
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from python_environment import NEWEST, OLDEST  # noqa: E402


def main():
    arguments = sys.argv[1:]
    environment = OLDEST if "--oldest" in arguments else NEWEST
    names = [name for name in arguments if name != "--oldest"]
    files = [os.path.join(HERE, name) for name in names] or sorted(glob.glob(os.path.join(HERE, "test_*.py")))
    python = environment.python()
    os.execv(python, [python, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", HERE, *files])


if __name__ == "__main__":
    main()
