"""The virtual environment with moto, which imitates S3, STS and IAM.

`deploy/install.sh --tests` makes it (it runs this file).
"""
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "conformance"))
from environment import Environment  # noqa: E402

ENVIRONMENT = Environment("s3-environment", os.path.join(HERE, "s3_requirements.txt"))


def enter():
    """Runs this program again in the environment, unless that has been done."""
    if os.environ.get("ESPALIER_ENVIRONMENT") != ENVIRONMENT.name:
        os.environ["ESPALIER_ENVIRONMENT"] = ENVIRONMENT.name
        python = ENVIRONMENT.python()
        os.execv(python, [python, *sys.argv])


if __name__ == "__main__":
    ENVIRONMENT.install()
