"""What the tests of the package share: one daemon for a session, and graphs with their NumPy twins."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

# Not resolved: among Bazel's runfiles the links lie as in the source tree, their targets do not.
HERE = Path(__file__).absolute().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]


def _programs():
    """The folder of the programs: ESPALIER_BIN, else those that Bazel has built, else its runfiles."""
    root = HERE.parents[2]
    for folder in (root / "build" / "bin", root):
        if (folder / "server" / "espalierd").exists():
            return str(folder)
    pytest.exit("no espalierd: build it (bazel build --config=release //server:espalierd //worker:espalier-worker)", 2)
    return None


if "ESPALIER_BIN" not in os.environ:
    os.environ["ESPALIER_BIN"] = _programs()


@pytest.fixture(scope="session")
def daemon():
    """The client of a daemon with two workers of one thread each, which is the default client, too."""
    import espalier

    with espalier.local(workers=2, flags=["--worker-threads=1", "--measure-seconds=0"]) as client:
        yield client


@pytest.fixture
def library(monkeypatch):
    """Imports what is not always installed, or skips the test."""

    def found(name):
        # The folders tests/torch and so on are no libraries, though Hugging Face's would take them for such.
        monkeypatch.setattr(sys, "path", [path for path in sys.path if Path(path).absolute() != HERE])
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            pytest.skip(f"{name} is not installed")
        return importlib.import_module(name)

    return found
