"""The example that deploy/quickstart.sh ends with runs as it stands, with a daemon of its own and on a given one."""

import os
import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).absolute().parents[1]


def accuracy(*arguments):
    environment = os.environ | {"PYTHONPATH": str(PACKAGE)}
    command = [sys.executable, PACKAGE / "examples" / "digits.py", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return float(re.search(r"^held-out accuracy ([\d.]+)%$", done.stdout, re.MULTILINE).group(1))


def test_on_a_daemon_of_its_own():
    assert accuracy() > 85


def test_on_a_given_daemon(daemon):
    before = len(daemon.jobs())
    assert accuracy(daemon.address) > 85
    assert len(daemon.jobs()) == before + 1
