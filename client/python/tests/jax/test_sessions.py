"""Sessions of the Trainers of JAX and Flax: evaluate, predict, callbacks that direct, loops of one's own."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx

import espalier.flax
from espalier import callbacks, errors
from espalier.jax import Trainer

ROWS = 16
random = np.random.default_rng(0)
X = random.normal(size=(4 * ROWS, 6)).astype(np.float32)
Y = (X @ random.normal(size=(6, 3))).argmax(1)


class Net(linen.Module):
    @linen.compact
    def __call__(self, x, train=True):
        x = linen.Dense(8, name="first")(x)
        x = linen.BatchNorm(use_running_average=not train, momentum=0.8, name="norm")(x)
        return linen.Dense(3, name="last")(jnp.tanh(x))


net = Net()


def initial():
    made = net.init(jax.random.key(1), X[:2])
    return made["params"], made["batch_stats"]


def loss(params, state, x, y):
    logits, new = net.apply({"params": params, "batch_stats": state}, x, mutable=["batch_stats"])
    value = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
    return value, (new["batch_stats"], {"accuracy": (logits.argmax(-1) == y).mean()})


def infer(params, state, x):
    return net.apply({"params": params, "batch_stats": state}, x, train=False)


def trainer():
    params, state = initial()
    return Trainer(loss, params, optax.sgd(0.1), state=state, has_aux=True)


def by_jax(params, state, epochs, rate=lambda epoch: 0.1, hook=lambda epoch, params: params):
    """Parameters and state after each epoch."""
    found = []
    step = jax.jit(jax.value_and_grad(lambda p, s, x, y: loss(p, s, x, y), has_aux=True))
    for epoch in range(epochs):
        for i in range(0, len(X), ROWS):
            (_, (state, _)), gradients = step(params, state, X[i : i + ROWS], Y[i : i + ROWS])
            now = rate(epoch)
            params = jax.tree_util.tree_map(lambda p, g, now=now: p - now * g, params, gradients)
        found.append((params, state))
        params = hook(epoch, params)
    return found, params


def close(have, want):
    jax.tree_util.tree_map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), have, want)


def test_evaluate_and_predict(daemon):
    mine = trainer()
    mine.fit((X, Y), ROWS, 2, shuffle=False, verbose=0)
    logits = infer(mine.params, mine.state, X[:27])
    close(mine.predict(infer, X[:27], batch_size=8), logits)
    values = mine.evaluate((X[:27], Y[:27]))
    want = optax.softmax_cross_entropy_with_integer_labels(logits, Y[:27]).mean()
    # The daemon's running variance is the unbiased one: docs/guide/jax.md.
    assert values["loss"] == pytest.approx(float(want), rel=0.05)
    assert mine.evaluate([(X[:20], Y[:20]), (X[20:27], Y[20:27])]) == pytest.approx(values, rel=1e-6)


def test_predictions_in_a_pytree(daemon):
    params = {"w": jnp.asarray(random.normal(size=(6, 3)), jnp.float32), "b": jnp.ones(3)}
    mine = Trainer(lambda p, x, y: ((x @ p["w"] + p["b"] - y) ** 2).mean(), params, "sgd")

    def function(p, x, ids):
        out = x @ p["w"] + p["b"]
        return {"out": out, "more": [jax.nn.softmax(out), ids + 1]}

    ids = np.arange(18, dtype=np.int32).reshape(9, 2)
    close(mine.predict(function, (X[:9], ids), batch_size=4), function(params, X[:9], ids))
    values = mine.evaluate((X[:9], np.zeros((9, 3), np.float32)), 4)
    assert values["loss"] == pytest.approx(float((function(params, X[:9], ids)["out"] ** 2).mean()), rel=1e-5)
    with pytest.raises(errors.InvalidArgument, match="single numbers"):
        mine.predict(lambda p, x: (x @ p["w"]).sum(), X[:9])


def test_callbacks_see_and_change_the_parameters(daemon, tmp_path):
    params, state = initial()

    def halved(epoch, params):
        return {**params, "last": jax.tree_util.tree_map(lambda a: a / 2, params["last"])} if epoch == 1 else params

    want, last = by_jax(params, state, 3, lambda epoch: 0.1 if epoch < 1 else 0.02, halved)
    have, losses = [], []

    class Watch(callbacks.Callback):
        needs_session = True

        def on_epoch_end(self, epoch, logs=None):
            have.append((mine.params, mine.state))
            losses.append(mine.evaluate((X[:9], Y[:9]))["loss"])
            mine.params = halved(epoch, mine.params)
            if epoch == 0:
                self.run.set_learning_rate(0.02)

    mine = trainer()
    checkpoint = callbacks.ModelCheckpoint(tmp_path / "{epoch}.npz")
    params = mine.fit((X, Y), ROWS, 3, shuffle=False, verbose=0, callbacks=[checkpoint, Watch()])
    assert mine.result.job is None
    assert len(losses) == 3
    for a, b in zip(have, want, strict=True):
        close(a, b)
    close(params, last)
    with np.load(tmp_path / "2.npz") as saved:
        close(saved["first/kernel"], want[1][0]["first"]["kernel"])
        close(saved["norm/mean"], want[1][1]["norm"]["mean"])


def test_a_loop_of_ones_own(daemon):
    params, state = initial()
    want, _ = by_jax(params, state, 1)
    mine = trainer()
    with mine.session(example_batch=(X[:ROWS], Y[:ROWS])) as session:
        for i in range(0, len(X), ROWS):
            session.step((X[i : i + ROWS], Y[i : i + ROWS]))
        mine.write_back(session)
    close((mine.params, mine.state), want[0])
    mine = trainer()
    with mine.session((X, Y), ROWS, shuffle=False) as session:
        session.step(steps=4)
        mine.write_back(session)
    close((mine.params, mine.state), want[0])
    with pytest.raises(errors.InvalidArgument, match="example_batch"):
        mine.session()


def test_gradients_are_accumulated_as_by_multisteps(daemon):
    params, k = {"w": random.normal(size=(6, 3)).astype(np.float32), "b": np.zeros(3, np.float32)}, 4

    def value(p, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(x @ p["w"] + p["b"], y).mean()

    inner = optax.chain(optax.clip_by_global_norm(0.3), optax.adam(optax.exponential_decay(0.1, 1, 0.5)))
    with Trainer(lambda p, x, y: value(p, x, y) / k, params, inner).session((X, Y), 8, shuffle=False) as session:
        for _ in range(2):
            session.zero_gradients()
            for _ in range(k):
                session.forward()
                session.backward()
            session.update()
        mine = session.parameters()

    tx = optax.MultiSteps(inner, k)
    state, theirs = tx.init(params), params
    for first in range(0, 64, 8):
        gradients = jax.grad(value)(theirs, X[first : first + 8], Y[first : first + 8])
        updates, state = tx.update(gradients, state, theirs)
        theirs = optax.apply_updates(theirs, updates)
    for name in params:
        assert np.abs(theirs[name] - params[name]).max() > 0.05
        have = mine[name] if mine[name].shape == params[name].shape else mine[name].T
        np.testing.assert_allclose(have, theirs[name], rtol=1e-5, atol=2e-6)


def test_an_nnx_model_follows(daemon):
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.layer = nnx.Linear(6, 3, rngs=rngs)

    def loss_of(model, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(model.layer(x), y).mean()

    model = Model(nnx.Rngs(0))
    front = espalier.flax.Trainer(model, loss_of, optax.sgd(0.1))
    assert front.evaluate((X, Y))["loss"] == pytest.approx(float(loss_of(model, X, Y)), rel=1e-5)
    seen = []

    class Watch(callbacks.Callback):
        needs_session = True

        def on_epoch_end(self, epoch, logs=None):
            seen.append(np.asarray(model.layer.kernel[...]))

    front.fit((X, Y), ROWS, 2, verbose=0, callbacks=[Watch()])
    assert np.abs(seen[0] - seen[1]).max() > 0
    np.testing.assert_allclose(seen[1], model.layer.kernel[...])
    with front.session((X, Y), ROWS) as session:
        session.step()
        assert front.write_back(session) is model
    assert np.abs(seen[1] - np.asarray(model.layer.kernel[...])).max() > 0


def test_a_job_refuses_to_evaluate(daemon):
    mine = trainer()

    class Look(callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            mine.evaluate((X[:9], Y[:9]))

    with pytest.raises(errors.FailedPrecondition, match="execution='session'"):
        mine.fit((X, Y), ROWS, 2, verbose=0, callbacks=[Look()])
