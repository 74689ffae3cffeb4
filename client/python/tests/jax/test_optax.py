"""optax transformations: which optimizer of the daemon they are, and that they train alike."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from espalier import optimizers
from espalier.errors import InvalidArgument
from espalier.jax import Trainer
from espalier.jax.optimizers import match
from espalier.v1 import program_pb2

PARAMS = {"a": {"kernel": np.zeros((5, 7)), "bias": np.zeros(7)}, "c": np.zeros((3, 3, 4, 8))}
Schedule = program_pb2.LearningRateSchedule
cosine, exponential = optax.cosine_decay_schedule(0.1, 100, 0.1), optax.exponential_decay(0.01, 10, 0.5, staircase=True)
warm = optax.join_schedules([optax.linear_schedule(0.01, 0.1, 9), optax.constant_schedule(0.1)], [9])


def matrices(params):
    return jax.tree.map(lambda x: x.ndim > 1, params)


def labels(params):
    return {name: "slow" if name == "first" else "fast" for name in params}


TRAINED = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "nesterov": optax.sgd(cosine, momentum=0.9, nesterov=True),
    "decayed": optax.chain(optax.add_decayed_weights(1e-2), optax.sgd(0.1, momentum=0.9)),
    "adam": optax.adam(1e-2, b1=0.8, eps=1e-6),
    "adam with l2": optax.chain(optax.add_decayed_weights(1e-2), optax.adam(1e-2)),
    "adamw clipped": optax.chain(optax.clip_by_global_norm(0.5), optax.adamw(exponential, weight_decay=0.1)),
    "rmsprop": optax.rmsprop(1e-2, momentum=0.9, centered=True, eps_in_sqrt=False),
    "rmsprop of optax": optax.rmsprop(1e-2, eps=1e-3),
    "adagrad": optax.adagrad(0.1),
    "adagrad from 0": optax.adagrad(0.1, initial_accumulator_value=0.0, eps=1e-3),
    "lion": optax.lion(1e-3, weight_decay=0.1),
    "warm-up": optax.sgd(warm),
    "linear": optax.sgd(optax.linear_schedule(0.1, 0.01, 25)),
    "polynomial": optax.sgd(optax.polynomial_schedule(0.1, 0.0, 2.0, 40)),
    "smooth decay": optax.sgd(optax.exponential_decay(0.1, 10, 0.9)),
    "warm-up from 0": optax.adam(optax.warmup_cosine_decay_schedule(0.0, 0.02, 10, 100, 0.001)),
    "schedule of one's own": optax.sgd(lambda step: 0.1 / (1 + step)),
    "masked decay": optax.adamw(1e-2, weight_decay=0.5, mask=matrices),
    "two rates": optax.multi_transform({"slow": optax.adam(1e-3), "fast": optax.adamw(1e-2, weight_decay=0.5)}, labels),
}


def loss(p, x, y):
    hidden = jnp.tanh(x @ p["first"] + p["bias"])
    return ((hidden @ p["second"] - y) ** 2).mean()


@pytest.mark.parametrize("name", TRAINED)
def test_thirty_steps_as_in_optax(daemon, name):
    random = np.random.default_rng(0)
    x = random.normal(size=(300, 6)).astype(np.float32)
    y = np.sin(x.sum(1, keepdims=True)).astype(np.float32)
    shapes = {"first": (6, 12), "bias": (12,), "second": (12, 1)}
    params = {k: jnp.asarray(random.normal(size=s) * 0.4, jnp.float32) for k, s in shapes.items()}
    trainer = Trainer(loss, params, TRAINED[name])
    found = trainer.fit((x, y), 20, 2, shuffle=False, verbose=0)

    tx, losses = TRAINED[name], []
    state = tx.init(params)
    step = jax.jit(jax.value_and_grad(loss))
    for i in range(30):
        rows = slice(i % 15 * 20, i % 15 * 20 + 20)
        value, gradients = step(params, x[rows], y[rows])
        updates, state = tx.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(value))
    np.testing.assert_allclose(trainer.history["loss"], losses, rtol=1e-4, atol=1e-6)
    for key in params:
        np.testing.assert_allclose(found[key], params[key], rtol=1e-3, atol=2e-5)


REFUSED = {
    "lamb": (optax.lamb(1e-3), "scale_by_trust_ratio"),
    "nadam": (optax.nadam(1e-3), "NAdam"),
    "adafactor": (optax.adafactor(1e-3), "scale_by_factored_rms"),
    "clipping of values": (optax.chain(optax.clip(1.0), optax.adam(1e-3)), "clip has no counterpart"),
    "accumulation": (optax.MultiSteps(optax.adam(1e-3), 2), "MultiSteps .* call forward and backward k times"),
    "accumulation in a chain": (
        optax.chain(optax.clip_by_global_norm(1.0), optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation()),
        "MultiSteps .* call forward and backward k times",
    ),
    "two clippings": (optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1), optax.ema(0.9)), "ema"),
    "two optimizers": (
        optax.multi_transform({"a": optax.adam(1e-3), "c": optax.sgd(0.1)}, {"a": "a", "c": "c"}),
        "different optimizers",
    ),
    "two schedules": (
        optax.multi_transform({"a": optax.sgd(0.1), "c": optax.sgd(cosine)}, {"a": "a", "c": "c"}),
        "no multiples of each other",
    ),
    "clipping by parts": (
        optax.multi_transform(
            {k: optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(0.1)) for k in "ac"}, {"a": "a", "c": "c"}
        ),
        "does not move",
    ),
    "ascent": (optax.sgd(-0.1), "ascends"),
    "no optimizer": (0.1, "is a float; accepted"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    tx, message = REFUSED[name]
    with pytest.raises(InvalidArgument, match=message):
        match(tx, PARAMS, 200)


def test_what_fit_takes_is_taken():
    assert match("adam", PARAMS, 10).proto.name == "adam"
    assert match(optimizers.SGD(0.3), PARAMS, 10).proto.learning_rate.peak == 0.3


def test_parts_that_are_not_trained_are_frozen():
    tx = optax.multi_transform({"train": optax.adam(1e-3), "still": optax.set_to_zero()}, {"a": "train", "c": "still"})
    assert match(tx, PARAMS, 10).frozen == [False, False, True]


def test_parts_are_told_apart_after_a_rest():
    rests = optax.join_schedules([optax.constant_schedule(0.0), optax.constant_schedule(0.1)], [20])
    tx = optax.multi_transform({"train": optax.sgd(rests), "still": optax.set_to_zero()}, {"a": "train", "c": "still"})
    assert match(tx, PARAMS, 50).frozen == [False, False, True]
    late = optax.join_schedules([optax.constant_schedule(0.0), optax.constant_schedule(0.1)], [3000])
    with pytest.raises(InvalidArgument, match="learning rate 0 in its first 2000 steps"):
        match(optax.sgd(late), PARAMS, 5000)
    assert match(optax.sgd(0.0), PARAMS, 50).frozen == [False] * 3  # as one evaluates


def test_masked_decay_becomes_a_group():
    found = match(optax.adamw(1e-3, weight_decay=1e-5, mask=matrices), PARAMS, 10)
    assert found.decays == pytest.approx([0, 1e-5, 1e-5])
    (group,) = found.grouped(["a/bias", "a/kernel", "c"]).groups
    assert (list(group.parameters), group.weight_decay) == (["a/bias"], 0.0)
    assert not group.HasField("learning_rate_scale")


def test_a_table_needs_the_number_of_steps():
    own = optax.sgd(lambda step: 0.1 / (1 + step))
    assert len(match(own, PARAMS, 50).proto.learning_rate.values) == 50
    with pytest.raises(InvalidArgument, match=r"the number of steps must be known"):
        match(own, PARAMS, 50, whole=False)
    with pytest.raises(InvalidArgument, match=r"the job has 100000 steps: a table"):
        match(own, PARAMS, 100000)


def test_a_schedule_is_fitted_beyond_the_job():
    fitted = match(optax.sgd(cosine), PARAMS, 20).proto.learning_rate
    assert (fitted.kind, fitted.total_steps) == (Schedule.COSINE, 100)
    assert fitted.floor == pytest.approx(0.01, rel=1e-4)
