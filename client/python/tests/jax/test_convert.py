"""What to_graph makes of losses, and how it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from models_linen import initial

from espalier.errors import InvalidArgument, UnsupportedOperators
from espalier.jax import to_graph

X = np.ones((4, 6), np.float32)
P = jnp.ones((6,))


def ops(converted):
    return converted.nodes


class Images(nn.Module):
    @nn.compact
    def __call__(self, x):
        for features in (4, 8, 8):
            x = nn.relu(nn.Conv(features, (3, 3))(x))
            x = nn.max_pool(x, (2, 2), (2, 2))
        return nn.Dense(3)(x.mean((1, 2)))


def test_transpositions_between_convolutions_cancel():
    model, x = Images(), np.ones((2, 16, 16, 3), np.float32)
    params = initial(model.init, jax.random.key(0), x)

    def loss(p, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(model.apply(p, x), y).mean()

    batch = x, np.zeros(2, np.int32)
    lazy, plain = to_graph(loss, params, batch), to_graph(loss, params, batch, lazy_layout=False)
    assert ops(lazy)["transpose"] == 1  # of the images
    assert ops(plain)["transpose"] > 3
    # conv2d has its bias; softmax, the lookup of the label and the mean are one operator.
    assert set(lazy.nodes) == {
        "transpose", "conv2d", "relu", "pool2d", "reduce_sum", "divide_scalar", "matmul", "add",
        "sparse_categorical_crossentropy",
    }  # fmt: skip
    assert lazy.permutations["params/Conv_0/kernel"] == (3, 2, 0, 1)
    kernel = np.asarray(params["params"]["Conv_0"]["kernel"])
    stored = np.transpose(kernel, (3, 2, 0, 1))
    np.testing.assert_array_equal(lazy.restored("params/Conv_0/kernel", stored), kernel)


def test_all_unsupported_primitives_are_listed_with_counts_and_lines():
    def loss(p, x):
        a = jnp.linalg.inv(jnp.eye(6) + jnp.outer(p, p))
        b = jax.lax.lgamma(x) + jax.lax.lgamma(x * p)
        c = jnp.cumprod(x, axis=1)
        return (a.sum() + b.sum() + c.sum()) / x.shape[0]

    with pytest.raises(UnsupportedOperators) as caught:
        to_graph(loss, P, (X,))
    found = {o.op: o for o in caught.value.operators}
    assert {"lgamma", "cumprod", "lu"} <= set(found)
    assert found["lgamma"].count == 2
    assert found["lgamma"].source.startswith("test_convert.py:")
    assert "lgamma (2 times, first at test_convert.py:" in str(caught.value)


def test_dead_code_is_not_refused():
    def loss(p, x):
        jax.lax.lgamma(x)
        return (x * p).mean()

    assert ops(to_graph(loss, P, (X,)))["multiply"] == 1


def test_stop_gradient_is_not_dropped():
    def loss(p, x):
        return (x * p * jax.lax.stop_gradient(p)).mean()

    assert ops(to_graph(loss, P, (X,)))["stop_gradient"] == 1


def test_derivatives_that_are_not_those_of_the_function_are_refused():
    @jax.custom_vjp
    def straight_through(x):
        return jnp.round(x)

    straight_through.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (g,))
    with pytest.raises(UnsupportedOperators, match=r"straight_through.*derivative of its own"):
        to_graph(lambda p, x: straight_through(x * p).mean(), P, (X,))


def test_derivatives_that_are_those_of_the_function_are_inlined():
    @jax.custom_vjp
    def cube(x):
        return x**3

    cube.defvjp(lambda x: (x**3, x), lambda x, g: (3 * x**2 * g,))
    assert ops(to_graph(lambda p, x: cube(x * p).mean(), P, (X,)))["multiply"] == 3


def test_dropout_is_the_operator():
    drop = nn.Dropout(0.25)

    def loss(p, x, rng):
        return (drop.apply({}, x * p, deterministic=False, rngs={"dropout": rng})).mean()

    converted = to_graph(loss, P, (X,), rng=jax.random.key(0))
    (node,) = [n for n in converted.graph.proto.nodes if n.op == "dropout"]
    assert node.attributes["rate"].f == pytest.approx(0.25)
    assert any("random numbers are the daemon's" in note for note in converted.notes)


def test_one_key_draws_one_tensor():
    def loss(p, x, rng):
        first, second = jax.random.split(rng)
        same = jax.random.normal(first, x.shape) * jax.random.normal(first, x.shape)
        return (p * same + jax.random.normal(second, x.shape)).mean()

    assert ops(to_graph(loss, P, (X,), rng=jax.random.PRNGKey(0)))["random_like"] == 2


def test_other_random_numbers_are_refused_by_name():
    def loss(p, x, rng):
        return (p * x * jax.random.randint(rng, x.shape, 0, 3)).mean()

    with pytest.raises(UnsupportedOperators, match="random bits"):
        to_graph(loss, P, (X,), rng=jax.random.key(0))


def test_long_loops_are_refused_with_the_limit():
    def loss(p, x):
        y, _ = jax.lax.scan(lambda c, _: (jnp.sin(c) * p, None), x, length=1000)
        return y.mean()

    with pytest.raises(UnsupportedOperators, match="1000 steps of 3 operations exceed the limit of 500"):
        to_graph(loss, P, (X,), unroll_limit=500)


def test_branches_on_computed_values_are_refused():
    def loss(p, x):
        return jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x * p).mean()

    with pytest.raises(UnsupportedOperators, match=r"jnp\.where"):
        to_graph(loss, P, (X,))


def test_known_branches_and_loops_are_inlined():
    def loss(p, x):
        y = jax.lax.cond(np.bool_(True), jnp.sin, jnp.cos, x * p)
        return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.tanh(c[1])), (0, y))[1].mean()

    assert ops(to_graph(loss, P, (X,)))["tanh"] == 3
    assert ops(to_graph(loss, P, (X,)))["cos"] == 0


def test_changed_state_that_is_no_batch_norm_is_refused():
    def loss(p, state, x):
        return (x * p).mean(), {"total": state["total"] + x.sum(0)}

    with pytest.raises(InvalidArgument, match="total: its new value is no running average"):
        to_graph(loss, P, (X,), state={"total": jnp.zeros(6)})


@pytest.mark.parametrize(
    ("params", "batch", "loss", "message"),
    [
        (P, (X, np.ones(3, np.float32)), lambda p, x, y: (x * p).mean(), "dimension 0 is the batch"),
        (P, (X, np.float32(1)), lambda p, x, y: (x * p).mean(), "y has no dimensions"),
        (P, (X,), lambda p, x: (x * p).sum(1), r"shape \(batch,\); expected a scalar"),
        (np.ones(6), (X,), lambda p, x: (x * p).mean(), "float64.*astype"),
        (P, (X,), lambda p, x: (x * p).mean() if x.shape[0] > 3 else 0.0, "decides by the batch size"),
        (P, (X.astype(np.complex64),), lambda p, x: (x * p).mean().real, "complex64"),
    ],
)
def test_bad_arguments(params, batch, loss, message):
    with pytest.raises(InvalidArgument, match=message):
        to_graph(loss, params, batch)


def test_parameters_that_are_not_read_are_named():
    converted = to_graph(lambda p, x: (x * p["a"]).mean(), {"a": 1.5, "b": jnp.ones(3)}, (X,))
    assert converted.params == ["a", "b"]
    assert any("does not read b" in note for note in converted.notes)


def test_inputs_are_named_by_the_loss_or_the_dict():
    assert to_graph(lambda p, image, label: (image * p).mean() + label.mean(), P, (X, X[:, 0])).inputs == [
        "image",
        "label",
    ]
    batch = {"b": {"c": X[:, 0]}, "a": X}
    assert to_graph(lambda p, batch: (batch["a"] * p).mean() + batch["b"]["c"].mean(), P, batch).inputs == ["a", "b/c"]


def test_the_batch_size_stays_open():
    converted = to_graph(lambda p, x: ((x * p) ** 2).mean() + x.var(), P, (X,))
    assert converted.any_batch_size
    assert not to_graph(lambda p, x: (x * p).sum() / (x.shape[0] - 1), P, (X,)).any_batch_size
