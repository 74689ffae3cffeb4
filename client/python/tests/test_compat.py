"""FlexFlow's names for our modules, in processes of their own."""

import os
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).absolute().parents[1]


def run(code, *arguments):
    done = subprocess.run(
        [sys.executable, *arguments] if code is None else [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(PACKAGE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def test_a_front_end_without_its_framework_says_how_to_get_it():
    for name, package in (("torch", "torch"), ("jax", "jax"), ("flax", "jax")):
        code, _, error = run(f"import sys; sys.modules[{package!r}] = None; import espalier.{name}")
        assert code == 1
        wanted = f"espalier.{name} needs the package {package}: pip install 'espalier[{name}]'"
        assert error.endswith(f"ModuleNotFoundError: {wanted}\n")


def test_imports_of_flexflow_find_our_modules():
    code, out, error = run("""
import espalier.compat
espalier.compat.install_flexflow()
espalier.compat.install_flexflow()
import flexflow
assert flexflow.core.FFConfig([]).batch_size == 64
assert not hasattr(flexflow, "serve")
from flexflow.core import *
from flexflow.core.flexflow_cffi import SingleDataLoader
from flexflow.type import ActiMode as Again
from flexflow.keras.models import Sequential
from flexflow.keras.layers import Conv2D
from flexflow.keras.callbacks import EpochVerifyMetrics
from flexflow.keras.datasets import cifar10
import flexflow.keras.optimizers
import espalier.core, espalier.keras.flexflow.layers
assert FFModel is espalier.core.FFModel and Again is ActiMode
assert Conv2D is espalier.keras.flexflow.layers.Conv2D
assert flexflow.keras.optimizers.SGD.__module__ == "espalier.keras.optimizers"
assert espalier.core.__name__ == espalier.core.__spec__.name == "espalier.core"
import sys
assert "torch" not in sys.modules
try:
    import flexflow.serve
except ModuleNotFoundError as missing:
    print(missing)
""")
    assert code == 0, error
    assert "flexflow.serve has no counterpart here; there are flexflow.core" in out


def test_nothing_is_found_unless_asked_for():
    code, _, error = run("import espalier.core, flexflow")
    assert code == 1
    assert "No module named 'flexflow'" in error


def test_a_flexflow_that_was_imported_before_is_not_replaced():
    code, _, error = run("""
import sys, types
sys.modules["flexflow"] = types.ModuleType("flexflow")
import espalier.compat
espalier.compat.install_flexflow()
""")
    assert code == 1
    assert "another flexflow was imported already" in error


def test_a_program_runs_as_it_stands(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("""
from flexflow.core import *

def top_level_task():
    ffconfig = FFConfig()
    print("batch", ffconfig.batch_size, "epochs", ffconfig.epochs)

if __name__ == "__main__":
    top_level_task()
""")
    code, out, error = run(None, "-m", "espalier.compat", str(program), "-b", "32", "-e", "4")
    assert code == 0, error
    assert out == "batch 32 epochs 4\n"
