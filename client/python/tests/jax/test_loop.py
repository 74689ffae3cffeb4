"""Loops of JAX as jobs: what they may do, and what is refused."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from espalier.errors import InvalidArgument
from espalier.flax.compat import jax, train_state
from espalier.flax.compat.vision import DataLoader

random = np.random.default_rng(0)
X = random.normal(size=(40, 5)).astype(np.float32)
Y = X @ np.arange(5, dtype=np.float32)
ROWS = list(zip(X, Y, strict=True))


@jax.jit
def train_step(state, x, y):
    def loss(params):
        predicted = state.apply_fn(params, x)
        return ((predicted - y) ** 2).mean(), jnp.abs(predicted - y).max()

    (value, worst), gradients = jax.value_and_grad(loss, has_aux=True)(state.params)
    return state.apply_gradients(grads=gradients), value, worst


def begin(tx=None):
    params = {"w": jnp.zeros(5)}
    return train_state.TrainState.create(apply_fn=lambda p, x: x @ p["w"], params=params, tx=tx or optax.sgd(0.1))


def by_hand(batches):
    w = np.zeros(5, np.float32)
    for x, y in batches:
        w -= 0.1 * 2 * x.T @ (x @ w - y) / len(x)
    return w


def test_losses_metrics_and_parameters(daemon):
    state, losses, worst = begin(), [], []
    for x, y in DataLoader(ROWS, batch_size=8):
        state, loss, error = train_step(state, x, y)
        losses.append(float(loss))
        worst.append(error.item())
    assert losses[0] == pytest.approx((Y[:8] ** 2).mean(), rel=1e-5)
    assert worst[0] == pytest.approx(np.abs(Y[:8]).max(), rel=1e-5)
    batches = [(X[i : i + 8], Y[i : i + 8]) for i in range(0, 40, 8)]
    np.testing.assert_allclose(state.params["w"], by_hand(batches), rtol=1e-4, atol=1e-5)


def test_a_loop_that_ends_early_has_the_parameters_of_its_last_step(daemon):
    state = begin()
    for number, (x, y) in enumerate(DataLoader(ROWS, batch_size=8)):
        state, loss, _ = train_step(state, x, y)
        assert float(loss) > 0
        if number == 1:
            break
    np.testing.assert_allclose(state.params["w"], by_hand([(X[:8], Y[:8]), (X[8:16], Y[8:16])]), rtol=1e-4, atol=1e-5)


def test_several_passes_without_optimizer_state(daemon):
    state = begin()
    for _ in range(2):
        for x, y in DataLoader(ROWS, batch_size=20):
            state, _, _ = train_step(state, x, y)
    halves = [(X[:20], Y[:20]), (X[20:], Y[20:])]
    np.testing.assert_allclose(state.params["w"], by_hand(halves * 2), rtol=1e-4, atol=1e-5)


def test_parts_of_the_parameters_have_an_optimizer_of_their_own(daemon):
    def decay(mask):
        return optax.chain(optax.add_decayed_weights(0.5, mask), optax.sgd(0.1))

    parts = {"moves": decay({"w": True, "b": False, "still": False}), "stays": optax.set_to_zero()}
    tx = optax.multi_transform(parts, {"w": "moves", "b": "moves", "still": "stays"})
    params = {"w": jnp.ones(5), "b": jnp.array([3.0]), "still": jnp.array([2.0])}
    apply = lambda p, x: x @ p["w"] + p["b"] * p["still"]  # noqa: E731
    state = train_state.TrainState.create(apply_fn=apply, params=params, tx=tx)
    for x, y in DataLoader(ROWS, batch_size=8):
        state, loss, _ = train_step(state, x, y)
        assert float(loss) > 0
    w, b = np.ones(5, np.float32), 3.0
    for i in range(0, 40, 8):
        error = 2 * (X[i : i + 8] @ w + 2 * b - Y[i : i + 8]) / 8
        w, b = w - 0.1 * (X[i : i + 8].T @ error + 0.5 * w), b - 0.1 * 2 * error.sum()
    np.testing.assert_allclose(state.params["w"], w, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.params["b"], [b], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(state.params["still"], [2.0])


def test_a_second_pass_with_optimizer_state_is_refused(daemon):
    state = begin(optax.adam(0.1))

    def loop(state):
        for x, y in DataLoader(ROWS, batch_size=20):
            state, _, _ = train_step(state, x, y)
        return state

    state = loop(state)
    with pytest.raises(InvalidArgument, match="adam would begin anew"):
        loop(state)


def test_batches_of_nobodys_loader_are_refused():
    with pytest.raises(InvalidArgument, match="not the last batch of an espalier"):
        train_step(begin(), X[:3], Y[:3])


def test_a_skipped_batch_is_refused(daemon):
    state, loader = begin(), iter(DataLoader(ROWS, batch_size=8))
    state, _, _ = train_step(state, *next(loader))
    next(loader)
    with pytest.raises(InvalidArgument, match="another batch than its job"):
        train_step(state, *next(loader))


def test_an_old_state_is_refused(daemon):
    state, loader = begin(), iter(DataLoader(ROWS, batch_size=8))
    train_step(state, *next(loader))
    with pytest.raises(InvalidArgument, match="does not go on from the state of the last one"):
        train_step(state, *next(loader))


def test_functions_without_a_state_are_those_of_jax():
    assert float(jax.jit(lambda x: x + 1)(1.0)) == 2.0
    assert float(jax.value_and_grad(lambda x: x**2)(3.0)[1]) == 6.0
    assert jax.local_device_count() == 1
    assert jax.random.key(0).shape == ()
