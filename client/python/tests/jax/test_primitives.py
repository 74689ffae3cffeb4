"""Values and gradients of single functions of JAX, all in one job: each has a parameter and a metric of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from espalier.jax import Trainer

X = np.random.default_rng(0).normal(size=(6, 4, 5)).astype(np.float32)
X[0, 0, 0] = X[3, 2, 1] = 0  # where functions have corners, derivatives are JAX's, too
IDS = np.random.default_rng(1).integers(0, 5, (6, 3)).astype(np.int32)


def positive(x):
    return jnp.abs(x) + 0.3


FUNCTIONS = {
    "abs": jnp.abs,
    "arctan": jnp.arctan,
    "argmax": lambda x: x * (jnp.argmax(x, axis=-1, keepdims=True) == 2),
    "argsort": lambda x: jnp.take_along_axis(x, jnp.argsort(x, axis=-1), axis=-1) * jnp.arange(5.0),
    "at add": lambda x: x.at[:, 1].add(2.0 * x[:, 0]),
    "at get batch": lambda x: x[jnp.arange(x.shape[0]), 2],
    "at set": lambda x: x.at[:, :, 1:3].set(1.0) * jnp.arange(5.0),
    "at set rows": lambda x: x.at[:, jnp.array([0, 2])].set(3.0) ** 2,
    "cbrt": lambda x: jnp.cbrt(positive(x)),
    "ceil": lambda x: x * jnp.ceil(x),
    "celu": jax.nn.celu,
    "clip": lambda x: jnp.clip(x, -0.5, 0.7),
    "clamp": lambda x: lax.clamp(-0.5, x, 0.7),
    "concatenate": lambda x: jnp.concatenate([x, 2 * x[:, :2]], axis=1) ** 2,
    "conv padding": lambda x: lax.conv_general_dilated(x, jnp.ones((3, 4, 2)), (2,), [(-1, 2)], rhs_dilation=(2,)),
    "cos": jnp.cos,
    "cosh": jnp.cosh,
    "cross": lambda x: jnp.einsum("bij,bkj->bik", x, jnp.sin(x)),
    "cumsum": lambda x: jnp.cumsum(x, axis=1) * jnp.cumsum(x[:, ::-1], axis=2),
    "diagonal": lambda x: jnp.diagonal(x[:, :, :4], axis1=1, axis2=2),
    "dynamic slice": lambda x: lax.dynamic_slice(x, (0, 1, 2), (x.shape[0], 2, 2)),
    "dynamic slice at": lambda x: lax.dynamic_slice_in_dim(x, jnp.argmax(jnp.ones(3)), 2, 1) ** 2,
    "dynamic update": lambda x: lax.dynamic_update_slice_in_dim(x, x[:, :2] * 3, 1, 1),
    "elu": jax.nn.elu,
    "erf": jax.scipy.special.erf,
    "erfc": jax.scipy.special.erfc,
    "exp2": jnp.exp2,
    "expand": lambda x: x[:, :, None] * x[:, None],
    "expm1": lambda x: jnp.expm1(x * 1e-3),
    "fori": lambda x: lax.fori_loop(0, 3, lambda i, y: jnp.sin(y) + i, x),
    "gather": lambda x: x[:, jnp.array([3, -1, 0])] ** 2,
    "gelu": jax.nn.gelu,
    "gelu erf": lambda x: jax.nn.gelu(x, approximate=False),
    "glu": lambda x: jax.nn.glu(x[..., :4]),
    "hard_swish": jax.nn.hard_swish,
    "hard_tanh": jax.nn.hard_tanh,
    "huber": lambda x: optax.huber_loss(x, 0.1),
    "leaky_relu": jax.nn.leaky_relu,
    "log1p": lambda x: jnp.log1p(positive(x) * 1e-4),
    "log1p large": lambda x: jnp.log1p(positive(x) * 1e4),
    "log_sigmoid": jax.nn.log_sigmoid,
    "log_softmax": lambda x: jax.nn.log_softmax(x, axis=1),
    "logaddexp": lambda x: jnp.logaddexp(x, x[:, ::-1]),
    "logsumexp": lambda x: jax.nn.logsumexp(x, axis=(1, 2)),
    "logsumexp keepdims": lambda x: jax.nn.logsumexp(x, axis=1, keepdims=True),
    "matrix": lambda x: x @ jnp.swapaxes(x, 1, 2),
    "max": lambda x: x.max(axis=1),
    "maximum": lambda x: jnp.maximum(x, x[:, ::-1] * 0.5),
    "mean axes": lambda x: x.mean(axis=(0, 2)) ** 2,
    "median": lambda x: jnp.median(x, axis=-1),
    "min": lambda x: x.min(axis=2),
    "mish": jax.nn.mish,
    "mod": lambda x: x % 0.7,
    "norm": lambda x: jnp.linalg.norm(x, axis=-1),
    "pad": lambda x: jnp.pad(x, ((0, 0), (1, 2), (0, 1)), constant_values=2.0) ** 2,
    "pad inner": lambda x: lax.pad(x, 0.5, ((0, 0, 0), (1, -1, 2), (0, 0, 1))) ** 2,
    "power": lambda x: positive(x) ** 2.7,
    "power of": lambda x: positive(x) ** x,
    "prod": lambda x: x.prod(axis=1),
    "reciprocal": lambda x: 1 / positive(x),
    "relu": jax.nn.relu,
    "relu6": lambda x: jax.nn.relu6(5 * x),
    "repeat": lambda x: jnp.repeat(x, 2, axis=1) * jnp.arange(8.0)[:, None],
    "roll": lambda x: jnp.roll(x, 2, axis=1) * x,
    "round": lambda x: x * jnp.round(x),
    "rsqrt": lambda x: lax.rsqrt(positive(x)),
    "selu": jax.nn.selu,
    "sigmoid": jax.nn.sigmoid,
    "sign": lambda x: x * jnp.sign(x),
    "silu": jax.nn.silu,
    "sin": jnp.sin,
    "sinh": jnp.sinh,
    "slice": lambda x: x[:, 1::2, ::-1] ** 2,
    "softmax": lambda x: jax.nn.softmax(x, axis=-1) * jnp.arange(5.0),
    "softmax masked": lambda x: jax.nn.softmax(x, where=X[:1] > -1, axis=-1) * jnp.arange(5.0),
    "softplus": jax.nn.softplus,
    "soft_sign": jax.nn.soft_sign,
    "sort": lambda x: jnp.sort(x, axis=1) * jnp.arange(4.0)[:, None],
    "sort descending": lambda x: jnp.sort(x, axis=2, descending=True) * jnp.arange(5.0),
    "sort pairs": lambda x: lax.sort_key_val(jnp.sin(9 * x), x)[1] * jnp.arange(5.0),
    "stop_gradient": lambda x: x * lax.stop_gradient(jnp.sin(x)) + lax.stop_gradient(x),
    "split": lambda x: jnp.split(x[:, :, :4], 2, axis=2)[1] ** 2,
    "sqrt": lambda x: jnp.sqrt(positive(x)),
    "squareplus": jax.nn.squareplus,
    "stack": lambda x: jnp.stack([x, x**2], axis=2),
    "standardize": jax.nn.standardize,
    "std": lambda x: x.std(axis=1),
    "tan": lambda x: jnp.tan(x / 3),
    "tanh": jnp.tanh,
    "tile": lambda x: jnp.tile(x, (1, 2, 3)) * jnp.arange(15.0),
    "top_k": lambda x: lax.top_k(x, 2)[0],
    "transpose": lambda x: jnp.transpose(x, (1, 2, 0)).reshape(20, -1) ** 2,
    "tril": lambda x: jnp.tril(x),
    "triu": lambda x: jnp.triu(x, 1),
    "unstack": lambda x: jnp.unstack(x, axis=1)[2] ** 2,
    "var": lambda x: x.var(),
    "var ddof": lambda x: x.var(axis=1, ddof=1),
    "vmap": lambda x: jax.vmap(lambda row: row @ row.T)(x),
    "where": lambda x: jnp.where(x > 0, x, 0.1 * x**2),
    "window max": lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2), (1, 1, 2), "VALID"),
    "window min": lambda x: lax.reduce_window(x, jnp.inf, lax.min, (1, 2, 1), (1, 2, 1), "SAME"),
    "window sum": lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 2), (1, 2, 1), "SAME"),
}


def loss(params, x, ids):
    values = {name: function(x * params[name]).mean() for name, function in FUNCTIONS.items()}
    values["embedding"] = (params["embedding"][ids] ** 2).sum(1).mean()
    values["one_hot"] = (jax.nn.one_hot(ids, 5) @ params["one_hot"]).mean()
    values["take"] = (jnp.take(params["take"], ids, axis=1) ** 2).mean()
    return sum(values.values()), values


@pytest.fixture(scope="module")
def trained(daemon):
    random = np.random.default_rng(2)
    params = {name: jnp.asarray(random.uniform(0.5, 1.5, (4, 5)), jnp.float32) for name in FUNCTIONS}
    for name in ("embedding", "one_hot", "take"):
        params[name] = jnp.asarray(random.normal(size=(5, 5)), jnp.float32)
    trainer = Trainer(loss, params, optax.sgd(1.0), has_aux=True)
    after = trainer.fit((X, IDS), len(X), steps=1, shuffle=False, verbose=0)
    (_, values), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params, X, IDS)
    return params, after, trainer.history, values, gradients


@pytest.mark.parametrize("name", [*FUNCTIONS, "embedding", "one_hot", "take"])
def test_value_and_gradient(trained, name):
    params, after, history, values, gradients = trained
    np.testing.assert_allclose(history[name][0], values[name], rtol=1e-5, atol=1e-6)
    # The parameters lost as much as the gradient, but for one rounding.
    np.testing.assert_allclose(params[name] - after[name], gradients[name], rtol=1e-4, atol=5e-7)
