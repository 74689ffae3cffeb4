"""Models of linen, nnx, haiku and plain JAX train as in JAX: loss, gradients, ten steps, on one and two workers."""

import os

import jax
import jax.numpy as jnp
import models_linen
import models_other
import numpy as np
import pytest

import espalier
from espalier.jax import to_graph
from espalier.optimizers import SGD

MODELS = models_linen.MODELS | models_other.MODELS
# Of each library, and of each kind of layer one. CI trains these; with $ESPALIER_TEST_ALL set, all are trained.
FAMILIES = (
    "linen ResNet, BatchNorm",
    "linen GPT, scanned and remat",
    "linen LSTM",
    "linen VAE",
    "linen dense MoE",
    "linen U-Net",
    "nnx CNN, BatchNorm",
    "haiku Transformer",
    "LLaMA in plain JAX",
    "graph network in plain JAX",
)
LOSS, GRADIENT, STEPS = 1e-5, 1e-4, 10
TRAINED = 3e-5  # of parameters after ten steps: each step rounds
RATE = 0.05


def relative(a, b):
    """Largest difference relative to the largest element, or to 0.01 where all are smaller."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-2)) if a.size else 0.0


def by_jax(loss_fn, params, state, batch):
    """Losses of the steps, the first gradients, and what ten steps of plain SGD make of parameters and state."""
    arguments = batch if isinstance(batch, tuple) else (batch,)

    def loss(p, s):
        return loss_fn(p, *arguments) if state is None else loss_fn(p, s, *arguments)

    differentiated = jax.jit(jax.value_and_grad(loss, has_aux=state is not None))
    losses, first = [], None
    for _ in range(STEPS):
        value, gradients = differentiated(params, state)
        value, state = (value, None) if state is None else value
        first = first or gradients
        losses.append(float(value))
        params = jax.tree_util.tree_map(lambda p, g: p - RATE * g, params, gradients)
    leaves = jax.tree_util.tree_leaves
    return losses, leaves(first), leaves(params), leaves(state)


def by_daemon(converted, columns, workers, steps):
    search = {"max_devices": 1} if workers == 1 else {"strategy": "data_parallel"}
    rows = len(next(iter(columns.values())))
    result = espalier.fit(
        converted.graph,
        columns,
        optimizer=SGD(RATE),
        batch_size=rows,
        steps=steps,
        shuffle=False,
        verbose=0,
        search=search,
    )
    trained = {name: converted.restored(name, array) for name, array in result.weights().items()}
    return result.history["loss"], trained


@pytest.mark.parametrize("name", MODELS if os.environ.get("ESPALIER_TEST_ALL") else FAMILIES)
def test_trains_as_in_jax(daemon, name):
    loss_fn, params, state, batch = MODELS[name]()
    converted = to_graph(loss_fn, params, batch, state=state)
    columns = dict(zip(converted.inputs, map(np.asarray, jax.tree_util.tree_leaves(batch)), strict=True))
    losses, gradients, trained, kept = by_jax(loss_fn, params, state, batch)
    before = jax.tree_util.tree_leaves(params)
    for workers in (1, 2):
        _, found = by_daemon(converted, columns, workers, steps=1)
        for label, p, g in zip(converted.params, before, gradients, strict=True):
            moved = (np.asarray(p, np.float64) - found[label]) / RATE
            # What one rounding of the parameter may hide.
            hidden = float(jnp.abs(p).max()) * 2.0**-23 / RATE
            assert np.abs(moved - np.asarray(g)).max() <= GRADIENT * max(float(jnp.abs(g).max()), 1e-2) + hidden, label
        history, found = by_daemon(converted, columns, workers, STEPS)
        assert relative(history, losses) <= LOSS
        for label, p in zip(converted.params, trained, strict=True):
            assert relative(found[label], p) <= TRAINED, label
        for label, s in zip(converted.state, kept, strict=True):
            assert relative(found[label], s) <= TRAINED, label
