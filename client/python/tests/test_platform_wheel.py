"""A wheel that carries the programs: pip installs it, and it trains without anything else."""

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

PACKAGE = Path(__file__).absolute().parents[1]
WHEELS = Path(sys.prefix) / "wheels"
NAMES = ("espalierd", "espalier-worker", "espalier")


def programs():
    """The paths of the programs that this test runs with."""
    from espalier.local_cluster import find_program

    return [find_program(name) for name in NAMES]


@pytest.fixture(scope="module")
def pure(tmp_path_factory):
    """The package's pure wheel."""
    if not WHEELS.exists():
        pytest.skip(f"no wheels in {WHEELS}: this is not the environment of deploy/install.sh --tests")
    folder = tmp_path_factory.mktemp("source") / "python"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("tests", "__pycache__", "build", "*.egg-info"))
    program = "from setuptools.build_meta import *; build_wheel('out')"
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = (folder / "out").glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(pure, tmp_path_factory):
    """The wheel with the programs that Bazel has built; deploy/wheel.sh puts those of the bundle in."""
    folder = tmp_path_factory.mktemp("programs")
    for program in programs():
        shutil.copy(program, folder / program.name)
    return make(pure, folder, folder / "out")


def make(pure, folder, out):
    command = [sys.executable, PACKAGE / "platform_wheel.py", pure, folder, out]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def folder(wheel, tmp_path_factory):
    """A fresh environment with the wheel."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install", "--quiet", "--no-compile"]
    done = subprocess.run(
        [*pip, "--no-index", "--find-links", WHEELS, wheel], capture_output=True, text=True, cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return folder


def run(folder, *command):
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "ESPALIER_BIN")}
    environment["PATH"] = "/usr/bin:/bin"
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_pip_alone_is_enough(folder):
    program = """
import numpy as np, espalier
from espalier import ops
from espalier.graph import Graph, glorot_uniform
from espalier.local_cluster import find_program
print(find_program())
graph = Graph("line")
x, y = graph.input("x", (None, 3)), graph.input("y", (None, 1))
w = graph.parameter("w", (1, 3), initializer=glorot_uniform())
graph.output("loss", ops.mean_squared_error(ops.linear(x, w), y))
x = np.random.default_rng(0).normal(size=(256, 3)).astype("f")
with espalier.local(workers=2):
    result = espalier.fit(graph, {"x": x, "y": x @ [[1], [2], [3]]}, optimizer=espalier.optimizers.SGD(0.1),
                          batch_size=32, epochs=20, verbose=0)
    print(np.round(result.weights()["w"], 2).tolist())
"""
    found, weights = run(folder, folder / "bin" / "python", "-c", program).splitlines()
    assert folder in Path(found).parents
    assert weights == "[[1.0, 2.0, 3.0]]"


def test_the_command_is_there(folder):
    assert run(folder, folder / "bin" / "espalier", "version") == run(folder, programs()[2], "version")


def test_the_tag_says_what_the_programs_need(wheel, pure, tmp_path):
    needed = int(re.fullmatch(r"espalier-.*-py3-none-manylinux_2_(\d+)_\w+\.whl", wheel.name).group(1))
    assert needed <= int(os.confstr("CS_GNU_LIBC_VERSION").split(".")[1])
    for name in NAMES:
        (tmp_path / name).write_bytes(b"\x7fELF\0GLIBC_2.17\0")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libnewer.so.1").write_bytes(b"\x7fELF\0GLIBC_2.99\0")
    newer = make(pure, tmp_path, tmp_path / "out")
    assert "-manylinux_2_99_" in newer.name
    refused = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps", newer], capture_output=True
    )
    assert b"is not a supported wheel on this platform" in refused.stderr


def test_a_folder_without_programs_is_refused(pure, tmp_path):
    command = [sys.executable, PACKAGE / "platform_wheel.py", pure, tmp_path, tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "has no espalierd, espalier-worker, espalier; deploy/bundle.sh" in done.stderr
