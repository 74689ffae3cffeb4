"""The real Keras on jax and the CPU, and daemons with one and two workers."""

import os
import sys
from pathlib import Path

import pytest

os.environ["KERAS_BACKEND"] = "jax"
os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture(scope="session")
def workers():
    """The client of a daemon with two workers, for jobs on one (max_devices) or both."""
    import espalier

    with espalier.local(workers=2, flags=["--worker-threads=1", "--measure-seconds=0"]) as client:
        yield client
