"""The examples of the Keras front end run as they stand, on data of their files' formats."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).absolute().parents[2] / "examples" / "keras"


def run(daemon, folder, name, *arguments, **environment):
    made = os.environ | {
        "ESPALIER_COORDINATOR": daemon.address,
        "KERAS_HOME": str(folder),
        "PYTHONPATH": str(EXAMPLES.parents[1]),
        **environment,
    }
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        cwd=folder,
        env=made,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_alexnet_of_flexflow(daemon, tmp_path):
    rng = np.random.default_rng(0)
    folder = tmp_path / "datasets" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        batch = {
            b"batch_label": name.encode(),
            b"labels": rng.integers(0, 10, 4).tolist(),
            b"data": rng.integers(0, 256, (4, 3072)).astype(np.uint8),
            b"filenames": [b"x.png"] * 4,
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))
    shown = run(daemon, tmp_path, "alexnet_cifar10.py", SAMPLES="16", EPOCHS="2", WIDTH="64")
    assert "conv2d_4 (Conv2D)" in shown
    assert "succeeded after 2 of 2 steps" in shown


def test_mnist_cnn_with_lms(daemon, tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "datasets").mkdir()
    x, y = rng.integers(0, 256, (300, 28, 28)).astype(np.uint8), rng.integers(0, 10, 300).astype(np.uint8)
    np.savez(tmp_path / "datasets" / "mnist.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    shown = run(daemon, tmp_path, "mnist_cnn_lms.py", EPOCHS="2")
    assert "succeeded after 4 of 4 steps" in shown


def test_resnet50_with_lms(daemon, tmp_path):
    shown = run(daemon, tmp_path, "resnet50_lms.py", "--image_size=32", "--steps=2", "--swapout_threshold=4", "--debug")
    assert "succeeded after 2 of 2 steps" in shown
    assert "step" in shown


def test_digits(daemon, tmp_path):
    pytest.importorskip("sklearn", reason="the digits come with scikit-learn")
    shown = run(daemon, tmp_path, "digits.py")
    assert "val_accuracy 0.9" in shown
    assert (tmp_path / "digits.safetensors").exists()
    assert len((tmp_path / "digits.csv").read_text().splitlines()) == 9
