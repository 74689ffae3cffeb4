"""FlexFlow's list of examples, written with espalier.core: each learns, and shows what it is there for."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).absolute().parents[1] / "examples" / "core"
# Flags for small sizes, and how far the loss falls: the last epoch's divided by the first one's.
SMALL = {
    "alexnet": ("-b 16 -e 6 --image 67 --divide-width-by 16 --samples 64 --rate 0.1", 0.95),
    "bert": ("-b 16 -e 6 --vocabulary 20 --hidden 32 --heads 4 --layers 2 --sequence 12", 0.8),
    "candle_uno": ("-b 32 -e 4 --tower 32-32 --dense 32-32 --divide-features-by 40", 0.7),
    "dlrm": (
        "-b 64 -e 4 --rate 1 --samples 1024 --arch-sparse-feature-size 8 --arch-embedding-size 20-20 "
        "--arch-mlp-bot 13-16-8 --arch-mlp-top 24-16-1",
        0.7,
    ),
    "inception_v3": ("-b 8 -e 2 --image 75 --divide-width-by 16 --samples 32", 0.95),
    "mlp_unify": ("-b 32 -e 4 --features 32 --layers 64-64-64-64", 0.97),
    "moe": ("-b 64 -e 6 --features 32 --hidden 32", 0.95),
    "resnet": ("-b 16 -e 3 --image 32 --width 8 --blocks 1-1-1-1 --samples 64", 0.8),
    "resnext50": ("-b 16 -e 3 --image 32 --groups 4 --blocks 1-1-1-1 --samples 64", 0.8),
    "split_test": ("-b 32 -e 3", 0.97),
    "transformer": ("-b 8 -e 4 --hidden 32 --heads 4 --layers 2 --sequence 10", 0.7),
    "xdl": ("-b 64 -e 6 --rows 50 --features 8 --mlp 32-32 --rate 2", 0.8),
}


def run(daemon, name, flags, *more):
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", *flags.split(), *more],
        env=os.environ | {"ESPALIER_COORDINATOR": daemon.address, "PYTHONPATH": str(EXAMPLES.parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def falls(shown):
    """The quotients of last and first losses."""
    lines = re.findall(r"^loss (\S+) -> (\S+)$", shown, re.MULTILINE)
    return [float(last) / float(first) for first, last in lines]


def two(shown, pattern):
    (found,) = re.findall(pattern, shown)
    return [float(number) for number in found]


@pytest.mark.parametrize("name", SMALL)
def test_the_loss_falls(daemon, name):
    flags, most = SMALL[name]
    shown = run(daemon, name, flags)
    assert all(0 < fall < most for fall in falls(shown)), shown
    assert "THROUGHPUT = " in shown
    assert "<PerfMetrics " in shown
    if name == "split_test":
        split, unsplit = two(shown, r"split (\S+), unsplit (\S+)")
        assert split == pytest.approx(unsplit, rel=1e-6)


def test_what_was_concatenated_and_split_trains_as_if_it_was_not(daemon):
    shown = run(daemon, "split_test_2", "-b 32 -e 2 --image 8 --width 8")
    split, unsplit = two(shown, r"split (\S+), unsplit (\S+)")
    assert split == pytest.approx(unsplit, rel=1e-6)
    assert all(fall < 0.95 for fall in falls(shown))


def test_a_wider_student_begins_with_its_teachers_loss(daemon):
    shown = run(daemon, "net2net", "-b 32 -e 3")
    teacher, student = two(shown, r"teacher (\S+), student begins with (\S+)")
    assert student == pytest.approx(teacher, rel=1e-5)
    assert all(fall < 0.8 for fall in falls(shown))


def test_a_loop_of_ones_own_gives_the_bits_of_fit(daemon):
    shown = run(daemon, "custom_loop", "-b 32 -e 2")
    assert "the same bits as fit: True" in shown
    assert falls(shown)[0] < 0.9


def test_a_file_of_data(daemon, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 8)).astype(np.float32)
    np.savez(tmp_path / "data.npz", x=x, y=x[:, :4].argmax(1).astype(np.int32))
    shown = run(daemon, "split_test", "-b 8 --features 8 -d", str(tmp_path / "data.npz"))
    assert "THROUGHPUT" in shown


def test_every_example_is_run():
    tested = {*SMALL, "split_test_2", "net2net", "custom_loop", "regnet", "common"}
    assert {path.stem for path in EXAMPLES.glob("*.py")} == tested
