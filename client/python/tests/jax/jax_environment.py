"""The environment of the tests against JAX, Flax, optax and haiku. `deploy/install.sh --tests` runs this file."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "..", "..", "tests", "conformance"))
from environment import Environment  # noqa: E402

ENVIRONMENT = Environment("jax-environment", os.path.join(HERE, "requirements.txt"))

if __name__ == "__main__":
    ENVIRONMENT.install()
