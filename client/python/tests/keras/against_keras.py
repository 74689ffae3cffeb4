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
    """Losses of the steps, and weights after each, of plain SGD over the examples in order."""
    model.compile(keras.optimizers.SGD(rate), loss, **compiled)
    losses, weights = [], []
    for step in range(steps):
        rows = slice(step * batch, (step + 1) * batch)
        value = model.train_on_batch(
            [a[rows] for a in x] if isinstance(x, list) else x[rows],
            [a[rows] for a in y] if isinstance(y, list) else y[rows],
        )
        losses.append(float(np.atleast_1d(value)[0]))
        weights.append(model.get_weights())
    return losses, weights


def train_ours(model, x, y, loss, steps, batch, rate, devices, **compiled):
    """Losses of the steps, and weights after the last one."""
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


def _same_losses(have, want):
    for a, b in zip(have, want, strict=True):
        assert abs(a - b) <= LOSSES * max(1, abs(b)), (have, want)


def _same_gradients(variables, start, have, want, rate):
    assert any(np.abs(a - b).max() > 0 for a, b in zip(start, want, strict=True) if a.size)
    for variable, before, theirs, mine in zip(variables, start, want, have, strict=True):
        gradient = np.abs(before - theirs).max(initial=0) / rate
        difference = np.abs(theirs - mine).max(initial=0) / rate
        # What a weight is rounded to when a step is taken off it.
        rounding = 3 * np.spacing(np.abs(before).max(initial=0), dtype=np.float32) / rate
        assert difference <= GRADIENTS * gradient + rounding, (
            f"{variable.path}: gradients up to {gradient:g} differ by {difference:g}"
        )


def compare_step(model, x, y, loss, batch=8, rate=0.5, **compiled):
    """Loss and gradients of one step."""
    start = model.get_weights()
    converted = ours.from_keras(model)
    losses, weights = train_keras(model, x, y, loss, 1, batch, rate, **compiled)
    found, trained = train_ours(converted, x, y, loss, 1, batch, rate, 1, **compiled)
    _same_losses(found, losses)
    _same_gradients(model.weights, start, trained, weights[0], rate)


def compare_training(model, x, y, loss, batch=8, rate=0.02, steps=10, **compiled):
    """The first step's gradients, and losses and weights of ten steps on one and on two workers."""
    start = model.get_weights()
    converted = ours.from_keras(model)
    losses, weights = train_keras(model, x, y, loss, steps, batch, rate, **compiled)
    assert losses[0] != losses[-1]
    _, trained = train_ours(converted, x, y, loss, 1, batch, rate, 1, **compiled)
    _same_gradients(model.weights, start, trained, weights[0], rate)
    for devices in (1, 2):
        converted.set_weights(start)
        found, trained = train_ours(converted, x, y, loss, steps, batch, rate, devices, **compiled)
        _same_losses(found, losses)
        for variable, want, have in zip(model.weights, weights[-1], trained, strict=True):
            difference = relative(have, want)
            assert difference <= LOSSES, f"{variable.path}: differs by {difference:g} after {steps} steps"
