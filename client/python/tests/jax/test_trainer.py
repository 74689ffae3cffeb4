"""espalier.jax.Trainer and espalier.flax.Trainer: data, metrics, evaluation, what comes back."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import espalier.flax
from espalier.errors import EspalierWarning, InvalidArgument
from espalier.jax import Trainer

random = np.random.default_rng(0)
X = random.normal(size=(160, 6)).astype(np.float32)
Y = (X @ random.normal(size=(6, 3))).argmax(1)
PARAMS = {"w": jnp.zeros((6, 3)), "b": jnp.zeros(3)}


def loss(p, x, y):
    logits = x @ p["w"] + p["b"]
    accuracy = (logits.argmax(-1) == y).mean()
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), {"accuracy": accuracy}


def batches():
    for i in range(0, 160, 40):
        yield [X[i : i + 40], Y[i : i + 40]]


@pytest.mark.parametrize("data", [(X, Y), [*batches()], batches()], ids=["arrays", "loader", "iterator"])
def test_all_kinds_of_data_train_alike(daemon, data):
    trainer = Trainer(loss, PARAMS, optax.adam(0.05), has_aux=True)
    params = trainer.fit(data, 40, 3, shuffle=False, verbose=0)
    again = Trainer(loss, PARAMS, optax.adam(0.05), has_aux=True).fit((X, Y), 40, 3, shuffle=False, verbose=0)
    assert isinstance(params["w"], jax.Array)
    np.testing.assert_allclose(params["w"], again["w"], rtol=1e-5, atol=1e-6)  # plans may differ
    assert len(trainer.history["loss"]) == 12
    assert trainer.history["accuracy"][-1] > 0.8


def test_lists_of_numbers_are_arrays(daemon):
    found = []
    for x, y in ((X, Y), (X.tolist(), Y.tolist())):
        trainer = Trainer(loss, PARAMS, optax.sgd(0.1), has_aux=True)
        trainer.fit((x, y), 40, 1, shuffle=False, verbose=0)
        made = trainer.predict(lambda p, x: x @ p["w"], x)
        found.append((trainer.history["loss"], trainer.evaluate((x, y))["loss"], np.asarray(made).tolist()))
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    with pytest.raises(InvalidArgument, match="data is no array of one shape"):
        trainer.fit(([[1.0, 2.0], [3.0]], [0, 1]), 2)


def test_every_held_out_example_is_evaluated(daemon):
    trainer = Trainer(loss, PARAMS, optax.sgd(0.0), has_aux=True)
    trainer.fit((X, Y), 48, 1, validation_split=0.25, verbose=0)  # 40 examples: less than a batch
    assert trainer.result.evaluation["loss"] == pytest.approx(np.log(3), rel=1e-5)
    assert trainer.result.evaluation["accuracy"] == pytest.approx((Y[120:] == 0).mean(), rel=1e-5)
    with pytest.raises(InvalidArgument, match="only a job is recorded"):
        trainer.fit((X, Y), 48, 1, execution="session", record="off")


class Model(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(6, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, momentum=0.8, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.second = nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, x):
        return self.second(self.drop(nnx.relu(self.norm(self.first(x)))))


def test_nnx_models_are_trained_in_place(daemon):
    model = Model(nnx.Rngs(0))

    def loss_of(model, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    trainer = espalier.flax.Trainer(model, loss_of, optax.adam(0.02))
    with pytest.warns(EspalierWarning, match="random numbers are the daemon's"):
        assert trainer.fit((X, Y), 40, 10, verbose=0) is model
    assert trainer.history["loss"][-1] < 0.6 * trainer.history["loss"][0]
    model.eval()
    assert float((model(X).argmax(-1) == Y).mean()) > 0.8
    assert float(jnp.abs(model.norm.mean[...]).max()) > 0


def test_an_unknown_table_needs_an_example():
    with pytest.raises(InvalidArgument, match="example_batch"):
        Trainer(loss, PARAMS, "adam", has_aux=True).fit("uploaded", 8)


def test_an_empty_iterator_says_so():
    with pytest.raises(InvalidArgument, match="used up"):
        Trainer(loss, PARAMS, "adam", has_aux=True).fit(iter([]), 8)


def test_a_plain_module_is_no_nnx_model():
    with pytest.raises(InvalidArgument, match=r"espalier\.jax\.Trainer"):
        espalier.flax.Trainer(object(), loss, "adam")


def test_aux_without_has_aux_says_what_is_missing():
    with pytest.raises(InvalidArgument, match=r"loss_fn returns a tuple of 2.*\(loss, aux\).*has_aux=True"):
        Trainer(loss, PARAMS, optax.sgd(0.1)).fit((X, Y), 40, 1)
    model = Model(nnx.Rngs(0))
    with pytest.raises(InvalidArgument, match=r"loss_fn returns a tuple of 2.*has_aux=True"):
        espalier.flax.Trainer(model, lambda m, x, y: (m(x).mean(), {}), optax.sgd(0.1)).fit((X, Y), 40, 1)

    def with_state(p, state, x, y):
        return (x @ p["w"]).mean(), (state, {"rows": (y == 0).mean()})

    with pytest.raises(InvalidArgument, match=r"loss_fn returns \(loss, \(new state, aux\)\).*has_aux=True"):
        Trainer(with_state, PARAMS, optax.sgd(0.1), state={"mean": jnp.zeros(3)}).fit((X, Y), 40, 1)


@pytest.mark.parametrize("count", [0, -4, 2.5, True, "8"])
def test_counts_that_cannot_be_are_refused(count):
    """Before anything is sent: there is no daemon."""
    trainer = Trainer(loss, PARAMS, optax.sgd(0.1), has_aux=True)
    calls = [(name, trainer.fit) for name in ("batch_size", "epochs", "steps")]
    calls += [("batch_size", trainer.session), ("batch_size", trainer.evaluate), ("total_steps", trainer.session)]
    calls += [("batch_size", lambda x, batch_size: trainer.predict(lambda p, x: x @ p["w"], x[0], batch_size))]
    for name, call in calls:
        with pytest.raises(InvalidArgument, match=f"^{name} is {count!r}; accepted: an integer above 0$"):
            call((X, Y), **{"batch_size": 8, name: count})


def test_misspelled_keywords():
    for call, meant in [
        (lambda t: t.fit((X, Y), batchsize=40), "batch_size"),
        (lambda t: t.evaluate((X, Y), batch_sizes=40), "batch_size"),
        (lambda t: t.session((X, Y), 40, suffle=False), "shuffle"),
    ]:
        with pytest.raises(TypeError, match=f"did you mean '{meant}'"):
            call(Trainer(loss, PARAMS, optax.sgd(0.1), has_aux=True))


def test_what_a_trainer_registers_is_served(daemon):
    trainer = Trainer(loss, PARAMS, optax.sgd(0.5), has_aux=True)
    trainer.fit((X, Y), 40, 2, verbose=0)

    def logits(params, x):
        return x @ params["w"] + params["b"]

    served = daemon.serve(trainer.register(logits, X[:2], "linear"), max_batch_size=16)
    found = daemon.predict(served, {"x": X})
    assert list(found) == ["output"]
    np.testing.assert_allclose(found["output"], logits(trainer.params, X), atol=1e-5)
    daemon.unserve("linear")

    model = Model(nnx.Rngs(0))
    trainer = espalier.flax.Trainer(model, lambda model, x: (model(x) ** 2).mean(), optax.adam(0.02))
    with pytest.warns(EspalierWarning, match="random numbers are the daemon's"):
        trainer.fit((X,), 40, 1, verbose=0)
    model.eval()
    served = daemon.serve(trainer.register(X[:2], "nnx"))
    np.testing.assert_allclose(daemon.predict(served, X)["output"], model(X), atol=1e-5)
    daemon.unserve("nnx")
