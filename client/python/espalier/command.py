"""The command `espalier` of a wheel that carries the programs: runs the one in this package's folder `bin`."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> None:
    """Becomes the command-line client. SystemExit with a sentence if this wheel has none."""
    program = Path(__file__).resolve().parent / "bin" / "espalier"
    if not os.access(program, os.X_OK):
        raise SystemExit(f"espalier: {program} is not there: this is not the wheel that carries the programs")
    os.execv(program, [str(program), *sys.argv[1:]])
