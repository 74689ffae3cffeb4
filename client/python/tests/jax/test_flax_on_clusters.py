"""The Flax programs of the seed run with only their import lines changed, and train as in JAX."""

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import models_linen
import numpy as np
import optax
import pytest

EXAMPLES = Path(__file__).absolute().parents[2] / "examples" / "flax_on_clusters"
ROWS, BATCH = 100, 32


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    """Files in the format of CIFAR-10's Python version: a few images, whose class is their colour."""
    root = tmp_path_factory.mktemp("cifar")
    folder = root / "data" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    colours = random.integers(0, 256, (10, 3, 1))
    for i in range(1, 6):
        labels = random.integers(0, 10, ROWS // 5)
        noise = random.integers(-40, 40, (ROWS // 5, 3, 1024))
        pixels = np.clip(colours[labels] + noise, 0, 255).astype(np.uint8).reshape(-1, 3072)
        with open(folder / f"data_batch_{i}", "wb") as file:
            pickle.dump({"data": pixels, "labels": labels.tolist()}, file)
    return root


def run(name, root, client, *arguments):
    environment = os.environ | {
        "ESPALIER_COORDINATOR": client.address,
        "PYTHONPATH": str(EXAMPLES.parents[1]),
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
    }
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), "--batch_size", str(BATCH), *arguments],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    losses = [float(x) for x in re.findall(r"Current Loss: ([0-9.e+-]+)", done.stdout)]
    assert "Images processed per second" in done.stdout
    return losses


def expected(root, distributed=False):
    """What JAX makes of the same batches."""
    from espalier.flax.compat.vision import CIFAR10, DataLoader, DistributedSampler, transforms

    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)])
    data = CIFAR10(str(root / "data"), transform=transform)
    loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data) if distributed else None)
    model = models_linen.SeedCnn()
    params = model.init(jax.random.PRNGKey(42), jnp.ones([3, 32, 32]))["params"]
    tx = optax.sgd(0.1)
    state, losses = tx.init(params), []

    @jax.jit
    def step(p, x, y):
        def loss(p):
            logits = model.apply({"params": p}, x)
            return jnp.mean(optax.softmax_cross_entropy(logits=logits, labels=jax.nn.one_hot(y, 10)))

        return jax.value_and_grad(loss)(p)

    for x, y in loader:
        value, gradients = step(params, x, y)
        updates, state = tx.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(value))
    return losses


@pytest.mark.parametrize("name", ["flax_example.py", "flax_example_multigpu.py", "flax_example_distributed.py"])
def test_prints_the_losses_of_jax(daemon, cifar, name):
    losses = run(name, cifar, daemon)
    assert len(losses) == -(-ROWS // BATCH)  # the last batch is smaller
    np.testing.assert_allclose(losses, expected(cifar, "distributed" in name), rtol=1e-4)


def test_only_import_lines_differ_from_jax():
    for path in EXAMPLES.glob("*.py"):
        changed = [line for line in path.read_text().splitlines() if "espalier" in line]
        assert changed
        assert all(re.fullmatch(r"from espalier\.flax\.compat(\.vision)? import \w+", line) for line in changed)


def test_processes_beyond_the_first_end():
    from espalier.flax.compat import jax as compat

    with pytest.raises(SystemExit) as ended:
        compat.distributed.initialize("127.0.0.1:1", num_processes=2, process_id=1)
    assert ended.value.code == 0
