"""The programs of FlexFlow's manual and README run with only their import lines changed."""

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).absolute().parents[2] / "examples" / "flexflow_manual"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with files of CIFAR-10's format, in which an image's class is its colour."""
    root = tmp_path_factory.mktemp("manual")
    files = root / "datasets" / "cifar-10-batches-py"
    files.mkdir(parents=True)
    rng = np.random.default_rng(0)
    colours = rng.integers(0, 256, (10, 3, 1))
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        labels = rng.integers(0, 10, 64)
        pixels = np.clip(colours[labels] + rng.integers(-20, 20, (64, 3, 1024)), 0, 255)
        batch = {
            b"batch_label": name.encode(),
            b"labels": labels.tolist(),
            b"data": pixels.reshape(64, 3072).astype(np.uint8),
            b"filenames": [b"x.png"] * 64,
        }
        (files / name).write_bytes(pickle.dumps(batch, protocol=2))
    return root


def run(daemon, root, name, *arguments, **environment):
    made = os.environ | {
        "ESPALIER_COORDINATOR": daemon.address,
        "KERAS_HOME": str(root),
        "PYTHONPATH": str(EXAMPLES.parents[1]),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        cwd=root,
        env=made,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(loss) for loss in re.findall(r"^epoch \d+/\d+: loss ([0-9.e+-]+)", done.stdout, re.MULTILINE)]
    return losses, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("export", "train", "arguments"),
    [
        ("pytorch_export.py", "pytorch_import.py", ["-e", "8", "-b", "16"]),
        ("pytorch_export.py", "readme_pytorch.py", ["-b", "16"]),
        ("onnx_export.py", "onnx_import.py", ["-e", "8"]),
    ],
)
def test_chapter_7(daemon, folder, export, train, arguments):
    run(daemon, folder, export)
    losses, shown, _ = run(daemon, folder, train, *arguments, SAMPLES="128")
    assert losses[-1] < 0.95 * losses[0]
    assert "accuracy 0." in shown


def test_mt5_of_chapter_8(daemon, folder):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 40, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    torch.manual_seed(0)
    config = transformers.MT5Config(**sizes, decoder_start_token_id=0, pad_token_id=0)
    transformers.MT5ForConditionalGeneration(config).save_pretrained(folder / "google" / "mt5-small")
    data = folder / "data" / "numpy"
    data.mkdir(parents=True)
    rng = np.random.default_rng(0)
    ids = rng.integers(1, 40, (32, 12))
    said = ids[:, :8][:, ::-1]
    np.save(data / "train_source_ids.npy", ids)
    np.save(data / "train_source_mask.npy", np.ones_like(ids))
    np.save(data / "train_y_ids.npy", np.concatenate([np.zeros((32, 1), int), said[:, :-1]], 1))
    np.save(data / "train_lm_labels.npy", np.where(rng.random(said.shape) < 0.1, -100, said))
    flags = ["-b", "8", "-e", "4", "-ll:py", "1", "-ll:gpu", "1", "-ll:fsize", "14000", "-ll:zsize", "4096"]
    losses, shown, warned = run(daemon, folder, "mt5.py", *flags)
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    assert "[8, 8, 40]" in shown
    assert "-ll:py -ll:gpu -ll:fsize -ll:zsize: flags of Legion change nothing" in warned


def test_only_import_lines_name_espalier():
    programs = sorted(EXAMPLES.glob("*.py"))
    assert len(programs) == 6
    for path in programs:
        named = [line for line in path.read_text().splitlines() if "espalier" in line]
        assert all(re.match(r"(from|import) espalier\.", line) for line in named), path
