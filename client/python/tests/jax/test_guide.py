"""The Python of docs/guide/jax.md runs as it stands there."""

import numpy as np
from pages import run


def test_the_guide_runs(daemon):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2000, 20)).astype(np.float32)
    names = run("jax.md", {"x": x, "y": (x @ rng.normal(size=(20, 10))).argmax(1).astype(np.int32)})
    assert names["logits"].shape == (10, 10)
    losses = names["trainer"].history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    assert names["trainer"].result.evaluation["accuracy"] > 0.3
