"""Runs scripts with flor's flags in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).absolute().parents[2]


class Scripts:
    """A folder with scripts and recordings."""

    def __init__(self, folder):
        self.folder = folder
        self.home = folder / "home"

    def environment(self, **more):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FLOR_")}
        return kept | {"PYTHONPATH": str(PACKAGE), "FLOR_HOME": str(self.home), "FLOR_EVERY": "1"} | more

    def write(self, text, name="train.py"):
        path = self.folder / name
        path.write_text(text)
        return path

    def command(self, *words, name="train.py"):
        return [sys.executable, "-B", str(self.folder / name), *words]

    def run(self, text, *words, fails=False, **environment):
        self.write(text)
        done = subprocess.run(
            self.command(*words), env=self.environment(**environment), capture_output=True, text=True, check=False
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done

    def rows(self, experiment, *names):
        """(place, name, ordinal, value, source) of each row, sorted."""
        from espalier.flor import table

        os.environ["FLOR_HOME"] = str(self.home)
        try:
            found = table.rows(experiment, names)
        finally:
            del os.environ["FLOR_HOME"]
        return sorted((row.loops, row.name, row.ordinal, str(row.value), row.source, row.differs) for row in found)
