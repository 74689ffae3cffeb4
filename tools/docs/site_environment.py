"""The virtual environment with MkDocs and its Material theme.

`deploy/install.sh --tests` makes it (it runs this file).
"""
from __future__ import annotations

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "tests", "conformance"))
from environment import Environment

ENVIRONMENT = Environment("site-environment", os.path.join(HERE, "site_requirements.txt"))

if __name__ == "__main__":
    ENVIRONMENT.install()
