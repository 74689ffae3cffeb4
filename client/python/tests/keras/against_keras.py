"""Trains a model of the real Keras and its conversion by the same steps, and compares."""

import warnings

import keras
import numpy as np

import espalier.keras as ours

GRADIENTS, LOSSES = 1e-4, 1e-5


def relative(a, b):
    """Largest difference relative to the largest element."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-3)) if a.size else 0.0


def randomized(model, rng):
    """Weights that no symmetry hides: also biases and scales differ from element to element."""
    model.set_weights([w + 0.1 * rng.standard_normal(w.shape) for w in model.get_weights()])
    for variable in model.weights:
        if variable.path.endswith("moving_variance"):
            variable.assign(np.abs(np.asarray(variable.value)) + 0.5)


def train_keras(model, x, y, loss, steps, batch, rate, **compiled):
    """Losses of the steps, and weights after them, of plain SGD over the examples in order."""
    model.compile(keras.optimizers.SGD(rate), loss, **compiled)
    losses = []
    for step in range(steps):
        rows = slice(step * batch, (step + 1) * batch)
        value = model.train_on_batch(
            [a[rows] for a in x] if isinstance(x, list) else x[rows],
            [a[rows] for a in y] if isinstance(y, list) else y[rows],
        )
        losses.append(float(np.atleast_1d(value)[0]))
    return losses, model.get_weights()


def train_ours(model, x, y, loss, steps, batch, rate, devices, **compiled):
    """As train_keras."""
    model.compile(ours.optimizers.SGD(rate), loss, **compiled)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        count = steps * batch
        model.fit(
            [a[:count] for a in x] if isinstance(x, list) else x[:count],
            [a[:count] for a in y] if isinstance(y, list) else y[:count],
            batch_size=batch,
            shuffle=False,
            verbose=0,
            search={"max_devices": devices, "strategy": "data_parallel" if devices > 1 else "single_device"},
        )
        return model.job.history["loss"], model.get_weights()


def compare_step(model, x, y, loss, batch=8, rate=0.5, devices=1):
    """Loss and gradients of one step."""
    start = model.get_weights()
    converted = ours.from_keras(model)
    losses, weights = train_keras(model, x, y, loss, 1, batch, rate)
    model.set_weights(start)
    found, trained = train_ours(converted, x, y, loss, 1, batch, rate, devices)
    assert abs(found[0] - losses[0]) <= LOSSES * max(1, abs(losses[0])), (found, losses)
    assert any(np.abs(before - want).max() > 0 for before, want in zip(start, weights, strict=True) if before.size)
    for variable, before, want, have in zip(model.weights, start, weights, trained, strict=True):
        difference = relative((before - have) / rate, (before - want) / rate)
        assert difference <= GRADIENTS, f"{variable.path}: gradients differ by {difference:g}"


def compare_training(model, x, y, loss, batch=8, rate=0.05, devices=1, steps=10, **compiled):
    """Losses and weights of ten steps."""
    start = model.get_weights()
    converted = ours.from_keras(model)
    losses, weights = train_keras(model, x, y, loss, steps, batch, rate, **compiled)
    model.set_weights(start)
    found, trained = train_ours(converted, x, y, loss, steps, batch, rate, devices, **compiled)
    assert losses[0] != losses[-1]
    for want, have in zip(losses, found, strict=True):
        assert abs(want - have) <= LOSSES * max(1, abs(want)), (losses, found)
    for variable, want, have in zip(model.weights, weights, trained, strict=True):
        difference = relative(have, want)
        assert difference <= LOSSES, f"{variable.path}: weights differ by {difference:g} after {steps} steps"
