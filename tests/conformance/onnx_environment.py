"""The virtual environment with the ONNX project's package, which carries its backend node tests, and ONNX Runtime.

`deploy/install.sh --tests` makes it (it runs this file).
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from environment import Environment  # noqa: E402

ENVIRONMENT = Environment("onnx-environment", os.path.join(HERE, "onnx_requirements.txt"))
python = ENVIRONMENT.python


def node_tests():
    """The folder of the backend node tests."""
    library = os.path.join(os.path.dirname(os.path.dirname(python())), "lib", f"python{sys.version_info.major}.{sys.version_info.minor}")
    return os.path.join(library, "site-packages", "onnx", "backend", "test", "data", "node")


if __name__ == "__main__":
    ENVIRONMENT.install()
