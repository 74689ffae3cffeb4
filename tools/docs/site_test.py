"""Builds the documentation site; fails with what MkDocs says if there is a warning, such as a broken link.

    site_test.py [--out=FOLDER]     default: a temporary folder

Needs the environment that `deploy/install.sh --tests` makes, and no network. Without it the test fails and says so.
"""
from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from site_environment import ENVIRONMENT


def build(folder: str) -> int:
    # Not --quiet: it hides warnings from --strict, too.
    command = [ENVIRONMENT.python(), "-m", "mkdocs", "build", "--strict", "--clean",
               "--config-file", os.path.join(HERE, "mkdocs.yml"), "--site-dir", folder]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        print(done.stdout, file=sys.stderr)
    return done.returncode


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="")
    out = parser.parse_args().out
    if out:
        return build(out)
    with tempfile.TemporaryDirectory() as folder:
        code = build(folder)
        if code == 0 and not os.path.exists(os.path.join(folder, "index.html")):
            print("the site has no index.html", file=sys.stderr)
            return 1
        return code


if __name__ == "__main__":
    sys.exit(main())
