"""Models of flax.nnx, of haiku, and of plain JAX: functions that give loss, parameters, state (or None) and a batch."""

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from models_linen import cross_entropy, images, initial, sequences, tokens, varied


class NnxCnn(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 8, kernel_size=(3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(8, momentum=0.9, rngs=rngs)
        self.linear = nnx.Linear(8, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.avg_pool(nnx.relu(self.norm(self.conv(x))), (2, 2), (2, 2))
        return self.linear(x.mean((1, 2)))


def nnx_cnn():
    structure, params, state = nnx.split(NnxCnn(nnx.Rngs(0)), nnx.Param, ...)

    def loss(p, state, x, y):
        model = nnx.merge(structure, p, state, copy=True)
        return cross_entropy(model(x), y).mean(), nnx.state(model, nnx.Not(nnx.Param))

    return loss, varied(params), state, images()


class NnxBlock(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(50, 16, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, 16, 16, decode=False, rngs=rngs)
        self.norm = nnx.RMSNorm(16, rngs=rngs)
        self.out = nnx.Linear(16, 50, rngs=rngs)

    def __call__(self, t):
        x = self.embed(t)
        mask = nnx.make_causal_mask(t)
        x = x + self.attention(self.norm(x), mask=mask)
        return self.out(nnx.gelu(x))


def nnx_transformer():
    t = tokens()
    structure, params, state = nnx.split(NnxBlock(nnx.Rngs(0)), nnx.Param, ...)

    def loss(p, t):
        logits = nnx.merge(structure, p, state)(t)
        return cross_entropy(logits[:, :-1], t[:, 1:]).mean()

    return loss, varied(params), None, (t,)


class NnxMlp(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(10, 20, rngs=rngs)
        self.norm = nnx.LayerNorm(20, rngs=rngs)
        self.second = nnx.LinearGeneral(20, (3, 2), rngs=rngs)

    def __call__(self, x):
        return self.second(nnx.swish(self.norm(self.first(x))))


def nnx_mlp():
    structure, params = nnx.split(NnxMlp(nnx.Rngs(0)))
    random = np.random.default_rng(0)
    batch = random.normal(size=(12, 10)).astype(np.float32), random.normal(size=(12, 3, 2)).astype(np.float32)
    return lambda p, x, y: jnp.mean((nnx.merge(structure, p)(x) - y) ** 2), varied(params), None, batch


def haiku_classifier(function, x, y):
    model = hk.without_apply_rng(hk.transform(function))
    params = varied(initial(model.init, jax.random.PRNGKey(0), x))
    return lambda p, x, y: cross_entropy(model.apply(p, x), y).mean(), params, None, (x, y)


def haiku_cnn():
    def network(x):
        x = jax.nn.relu(hk.Conv2D(8, 3, stride=2)(x))
        x = hk.MaxPool((2, 2, 1), (2, 2, 1), "SAME")(jax.nn.relu(hk.DepthwiseConv2D(1, 3)(x)))
        return hk.Sequential([hk.Flatten(), hk.Linear(16), jax.nn.relu, hk.Linear(10)])(x)

    return haiku_classifier(network, *images(size=10))


def haiku_lstm():
    def network(x):
        core = hk.LSTM(8)
        outputs, _ = hk.dynamic_unroll(core, jnp.swapaxes(x, 0, 1), core.initial_state(x.shape[0]))
        return hk.Linear(3)(outputs[-1])

    return haiku_classifier(network, sequences(), np.arange(6, dtype=np.int32) % 3)


def haiku_transformer():
    def network(t):
        x = hk.Embed(50, 12)(t)
        mask = jnp.tril(jnp.ones((1, 1, t.shape[1], t.shape[1])))
        x = x + hk.MultiHeadAttention(3, 4, w_init=hk.initializers.VarianceScaling(1.0))(x, x, x, mask=mask)
        x = hk.LayerNorm(-1, True, True)(x)
        return hk.Linear(3)(x.mean(1))

    t = tokens()
    return haiku_classifier(network, t, (t.sum(1) % 3).astype(np.int32))


def llama():
    """RMS norms, rotary positions, grouped heads and SwiGLU in plain functions, layers by lax.scan."""
    random = np.random.default_rng(0)
    layers, width, heads, groups, size, length = 2, 16, 4, 2, 4, 8

    def weight(*shape):
        return jnp.asarray(random.normal(size=shape) * 0.2, jnp.float32)

    params = {
        "embed": weight(50, width),
        "layers": {
            "norm1": 1 + weight(layers, width),
            "norm2": 1 + weight(layers, width),
            "q": weight(layers, width, heads, size),
            "k": weight(layers, width, groups, size),
            "v": weight(layers, width, groups, size),
            "o": weight(layers, heads, size, width),
            "gate": weight(layers, width, 24),
            "up": weight(layers, width, 24),
            "down": weight(layers, 24, width),
        },
        "norm": 1 + weight(width),
    }
    angles = np.outer(np.arange(length), 10000.0 ** (-np.arange(0, size, 2) / size))
    cos, sin = jnp.asarray(np.cos(angles), jnp.float32), jnp.asarray(np.sin(angles), jnp.float32)

    def norm(x, w):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * w

    def rotate(x):
        a, b = jnp.split(x, 2, axis=-1)
        c, s = cos[None, :, None], sin[None, :, None]
        return jnp.concatenate([a * c - b * s, b * c + a * s], -1)

    def layer(x, p):
        y = norm(x, p["norm1"])
        q, k, v = (jnp.einsum("bsw,whd->bshd", y, p[name]) for name in "qkv")
        k, v = jnp.repeat(rotate(k), heads // groups, axis=2), jnp.repeat(v, heads // groups, axis=2)
        scores = jnp.einsum("bshd,bthd->bhst", rotate(q), k) / np.sqrt(size)
        scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
        x = x + jnp.einsum("bhst,bthd,hdw->bsw", jax.nn.softmax(scores), v, p["o"])
        y = norm(x, p["norm2"])
        return x + (jax.nn.silu(y @ p["gate"]) * (y @ p["up"])) @ p["down"], None

    def loss(p, t):
        x, _ = jax.lax.scan(layer, p["embed"][t], p["layers"])
        logits = norm(x, p["norm"]) @ p["embed"].T
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), t[:, 1:, None], axis=-1)
        return -picked.mean()

    return loss, params, None, (tokens(),)


def dlrm():
    """Embeddings of categories, dot products between all features."""
    random = np.random.default_rng(0)

    def weight(*shape):
        return jnp.asarray(random.normal(size=shape) * 0.3, jnp.float32)

    params = {
        "tables": [weight(20, 6), weight(30, 6), weight(10, 6)],
        "bottom": (weight(5, 6), weight(6)),
        "top": (weight(12, 1), weight(1)),
    }
    pairs = np.triu_indices(4, 1)

    def loss(p, batch):
        dense = jax.nn.relu(batch["dense"] @ p["bottom"][0] + p["bottom"][1])
        rows = [table[batch["ids"][:, i]] for i, table in enumerate(p["tables"])]
        features = jnp.stack([dense, *rows], axis=1)
        products = jnp.einsum("bfe,bge->bfg", features, features)[:, pairs[0], pairs[1]]
        logits = jnp.concatenate([dense, products], axis=-1) @ p["top"][0] + p["top"][1]
        y = batch["click"]
        return jnp.mean(jnp.maximum(logits[:, 0], 0) - logits[:, 0] * y + jnp.log1p(jnp.exp(-jnp.abs(logits[:, 0]))))

    batch = {
        "dense": random.normal(size=(10, 5)).astype(np.float32),
        "ids": random.integers(0, 10, (10, 3)).astype(np.int32),
        "click": random.integers(0, 2, 10).astype(np.float32),
    }
    return loss, params, None, batch


def graph_network():
    """A graph convolution of one fixed graph, whose nodes are features."""
    random = np.random.default_rng(0)
    adjacency = random.uniform(size=(6, 6)) < 0.4
    adjacency = jnp.asarray((adjacency | np.eye(6, dtype=bool)) / 3, jnp.float32)
    params = [jnp.asarray(random.normal(size=s) * 0.4, jnp.float32) for s in ((4, 8), (8, 3))]

    def loss(p, x, y):
        x = jnp.tanh(jnp.einsum("ij,bjf,fg->big", adjacency, x, p[0]))
        logits = jnp.einsum("ij,bjf,fg->big", adjacency, x, p[1]).max(axis=1)
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(x.shape[0]), y])

    x, y = random.normal(size=(8, 6, 4)).astype(np.float32), random.integers(0, 3, 8).astype(np.int32)
    return loss, params, None, (x, y)


def contrastive():
    """CLIP's loss: the other rows of the batch are the negatives."""
    random = np.random.default_rng(0)
    params = {
        "image": jnp.asarray(random.normal(size=(6, 5)), jnp.float32),
        "text": jnp.asarray(random.normal(size=(7, 5)), jnp.float32),
        "scale": jnp.asarray(0.7, jnp.float32),
    }

    def loss(p, image, text):
        a, b = image @ p["image"], text @ p["text"]
        a = a / jnp.linalg.norm(a, axis=-1, keepdims=True)
        b = b / jnp.linalg.norm(b, axis=-1, keepdims=True)
        logits = jnp.exp(p["scale"]) * a @ b.T
        labels = jnp.arange(a.shape[0])
        return (cross_entropy(logits, labels).mean() + cross_entropy(logits.T, labels).mean()) / 2

    batch = random.normal(size=(8, 6)).astype(np.float32), random.normal(size=(8, 7)).astype(np.float32)
    return loss, params, None, batch


MODELS = {
    "nnx CNN, BatchNorm": nnx_cnn,
    "nnx Transformer": nnx_transformer,
    "nnx MLP": nnx_mlp,
    "haiku CNN": haiku_cnn,
    "haiku LSTM": haiku_lstm,
    "haiku Transformer": haiku_transformer,
    "LLaMA in plain JAX": llama,
    "DLRM in plain JAX": dlrm,
    "graph network in plain JAX": graph_network,
    "CLIP's loss in plain JAX": contrastive,
}
