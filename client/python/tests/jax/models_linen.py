"""Models of flax.linen: functions that give loss, parameters, state (or None) and a batch."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

cross_entropy = optax.softmax_cross_entropy_with_integer_labels


def images(n=8, size=8, channels=3, classes=10):
    random = np.random.default_rng(1)
    return (
        random.normal(size=(n, size, size, channels)).astype(np.float32),
        random.integers(0, classes, n).astype(np.int32),
    )


def tokens(n=6, length=8, vocabulary=50):
    return np.random.default_rng(2).integers(1, vocabulary, (n, length)).astype(np.int32)


def sequences(n=6, length=7, features=5):
    return np.random.default_rng(3).normal(size=(n, length, features)).astype(np.float32)


def initial(init, *arguments):
    """Variables of a model without compiling its initializers: NumPy draws them, for speed."""
    random = np.random.default_rng(5)

    def fill(path, leaf):
        name = jax.tree_util.keystr(path)
        if leaf.ndim < 2:
            return jnp.full(leaf.shape, float("scale" in name or "var" in name or name.endswith("w']")), leaf.dtype)
        fan = np.prod(leaf.shape[:-1]) if leaf.ndim != 3 else leaf.shape[0]
        return jnp.asarray(random.normal(size=leaf.shape) / np.sqrt(fan), leaf.dtype)

    return jax.tree_util.tree_map_with_path(fill, jax.eval_shape(init, *arguments))


def varied(params, size=0.05):
    """Parameters that no symmetry hides: biases and scales differ from element to element."""
    leaves, tree = jax.tree_util.tree_flatten(params)
    random = np.random.default_rng(4)
    moved = [np.asarray(x) + size * random.normal(size=np.shape(x)).astype(np.float32) for x in leaves]
    return jax.tree_util.tree_unflatten(tree, [jnp.asarray(x, jnp.float32) for x in moved])


def classifier(model, x, y):
    params = varied(initial(model.init, jax.random.key(0), x))
    return lambda p, x, y: cross_entropy(model.apply(p, x), y).mean(), params, None, (x, y)


class Mlp(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Dense(24)(x))
        x = nn.elu(nn.Dense(24)(x))
        return nn.Dense(1)(nn.softplus(nn.Dense(16)(x)))


def mlp():
    model, random = Mlp(), np.random.default_rng(0)
    x, y = random.normal(size=(16, 10)).astype(np.float32), random.normal(size=(16, 1)).astype(np.float32)
    params = varied(initial(model.init, jax.random.key(0), x))
    return lambda p, x, y: optax.huber_loss(model.apply(p, x), y).mean(), params, None, (x, y)


class SeedCnn(nn.Module):
    """The network of the seed's Flax programs."""

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(features=6, kernel_size=(5, 5))(x)
        x = nn.relu(x)
        x = nn.max_pool(x, window_shape=(2, 2))
        x = nn.Conv(features=16, kernel_size=(5, 5))(x)
        x = nn.relu(x)
        x = nn.max_pool(x, window_shape=(2, 2))
        x = x.reshape((x.shape[0], -1))
        x = nn.relu(nn.Dense(features=120)(x))
        x = nn.relu(nn.Dense(features=84)(x))
        return nn.Dense(features=10)(x)


def cnn():
    model = SeedCnn()
    params = varied(initial(model.init, jax.random.key(0), jnp.ones([3, 32, 32])), 0.01)
    random = np.random.default_rng(0)
    batch = random.normal(size=(8, 3, 32, 32)).astype(np.float32), random.integers(0, 10, 8).astype(np.int32)

    def loss(p, x, y):
        return jnp.mean(optax.softmax_cross_entropy(logits=model.apply(p, x), labels=jax.nn.one_hot(y, 10)))

    return loss, params, None, batch


class Block(nn.Module):
    features: int
    strides: int = 1

    @nn.compact
    def __call__(self, x):
        def norm(y):
            return nn.BatchNorm(use_running_average=False, momentum=0.9)(y)

        y = nn.relu(norm(nn.Conv(self.features, (3, 3), (self.strides, self.strides), use_bias=False)(x)))
        y = norm(nn.Conv(self.features, (3, 3), use_bias=False)(y))
        if x.shape != y.shape:
            x = norm(nn.Conv(self.features, (1, 1), (self.strides, self.strides), use_bias=False)(x))
        return nn.relu(x + y)


class ResNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.BatchNorm(use_running_average=False, momentum=0.9)(nn.Conv(8, (3, 3))(x)))
        x = Block(16, 2)(Block(8)(x))
        x = nn.Dense(16)(x.mean((1, 2)))
        return nn.Dense(10)(nn.relu(nn.BatchNorm(use_running_average=False, use_bias=False)(x)))


def with_batch_stats(model, x, y):
    variables = initial(model.init, jax.random.key(0), x)

    def loss(p, state, x, y):
        logits, updates = model.apply({"params": p, "batch_stats": state}, x, mutable=["batch_stats"])
        return cross_entropy(logits, y).mean(), updates["batch_stats"]

    return loss, varied(variables["params"]), variables["batch_stats"], (x, y)


def resnet():
    return with_batch_stats(ResNet(), *images())


class EncoderBlock(nn.Module):
    heads: int = 4
    dropout: bool = False

    @nn.compact
    def __call__(self, x, mask=None):
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=self.heads)(y, mask=mask)
        y = nn.gelu(nn.Dense(2 * x.shape[-1])(nn.LayerNorm()(x)), approximate=False)
        return x + nn.Dense(x.shape[-1])(y)


class Encoder(nn.Module):
    """A Transformer encoder with a padding mask."""

    @nn.compact
    def __call__(self, t):
        mask = nn.make_attention_mask(t > 5, t > 5)
        x = nn.Embed(50, 16)(t) + self.param("positions", nn.initializers.normal(0.1), (1, t.shape[1], 16))
        for _ in range(2):
            x = EncoderBlock()(x, mask)
        weights = (t > 5).astype(jnp.float32)[..., None]
        return nn.Dense(3)((x * weights).sum(1) / jnp.maximum(weights.sum(1), 1.0))


def encoder():
    t = tokens()
    return classifier(Encoder(), t, (t.sum(1) % 3).astype(np.int32))


class Gpt(nn.Module):
    """A decoder whose output shares the embedding."""

    @nn.compact
    def __call__(self, t):
        embed = nn.Embed(50, 16)
        x = embed(t) + nn.Embed(8, 16)(jnp.arange(t.shape[1]))
        mask = nn.make_causal_mask(t)
        for _ in range(2):
            x = EncoderBlock()(x, mask)
        return embed.attend(nn.LayerNorm()(x))


def gpt():
    model, t = Gpt(), tokens()
    params = varied(initial(model.init, jax.random.key(0), t))
    return lambda p, t: cross_entropy(model.apply(p, t)[:, :-1], t[:, 1:]).mean(), params, None, (t,)


class RematGpt(nn.Module):
    """Layers by nn.scan, each rematerialized."""

    @nn.compact
    def __call__(self, t):
        x = nn.Embed(50, 16)(t)
        layers = nn.scan(
            nn.remat(ScanBlock),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=3,
            in_axes=nn.broadcast,
        )()
        x, _ = layers(x, nn.make_causal_mask(t))
        return nn.Dense(50)(x)


class ScanBlock(nn.Module):
    @nn.compact
    def __call__(self, x, mask):
        return EncoderBlock(heads=2)(x, mask), None


def scanned_layers():
    model, t = RematGpt(), tokens()
    params = varied(initial(model.init, jax.random.key(0), t))
    return lambda p, t: cross_entropy(model.apply(p, t)[:, :-1], t[:, 1:]).mean(), params, None, (t,)


class Vit(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(16, (4, 4), strides=(4, 4), padding="VALID")(x)
        x = x.reshape(x.shape[0], -1, 16)
        start = self.param("class", nn.initializers.normal(0.1), (1, 1, 16))
        x = jnp.concatenate([jnp.tile(start, (x.shape[0], 1, 1)), x], axis=1)
        x = x + self.param("positions", nn.initializers.normal(0.1), (1, x.shape[1], 16))
        for _ in range(2):
            x = EncoderBlock()(x)
        return nn.Dense(10)(nn.LayerNorm()(x)[:, 0])


def vit():
    return classifier(Vit(), *images(size=12))


class Mixer(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(12, (4, 4), strides=(4, 4))(x)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        for _ in range(2):
            y = jnp.swapaxes(nn.LayerNorm()(x), 1, 2)
            y = nn.Dense(y.shape[-1])(nn.gelu(nn.Dense(8)(y)))
            x = x + jnp.swapaxes(y, 1, 2)
            x = x + nn.Dense(12)(nn.silu(nn.Dense(20)(nn.LayerNorm()(x))))
        return nn.Dense(10)(x.mean(axis=1))


def mixer():
    return classifier(Mixer(), *images(size=12))


def lstm():
    model, x = nn.RNN(nn.LSTMCell(8)), sequences()
    params = varied(initial(model.init, jax.random.key(0), x))
    return lambda p, x: jnp.mean((model.apply(p, x)[:, -1, :5] - x[:, 0]) ** 2), params, None, (x,)


class BiGru(nn.Module):
    @nn.compact
    def __call__(self, x):
        forward, backward = nn.RNN(nn.GRUCell(6)), nn.RNN(nn.GRUCell(6))
        x = nn.Bidirectional(forward, backward)(x)
        return nn.Dense(5)(x)


def gru():
    model, x = BiGru(), sequences()
    params = varied(initial(model.init, jax.random.key(0), x))
    return lambda p, x: jnp.mean(jnp.abs(model.apply(p, x) - x)), params, None, (x,)


class Autoencoder(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(8, (3, 3), strides=(2, 2))(x))
        x = nn.leaky_relu(nn.Conv(12, (3, 3), strides=(2, 2))(x))
        x = nn.relu(nn.ConvTranspose(8, (3, 3), strides=(2, 2))(x))
        return nn.sigmoid(nn.ConvTranspose(3, (4, 4), strides=(2, 2))(x))


def autoencoder():
    model, (x, _) = Autoencoder(), images()
    params = varied(initial(model.init, jax.random.key(0), x))
    return lambda p, x: jnp.mean((model.apply(p, x) - x) ** 2), params, None, (x,)


class Vae(nn.Module):
    @nn.compact
    def __call__(self, x):
        h = nn.relu(nn.Dense(20)(x))
        mean, log_variance = jnp.split(nn.Dense(8)(h), 2, axis=-1)
        return nn.Dense(x.shape[-1])(nn.relu(nn.Dense(20)(mean))), mean, log_variance


def vae():
    """Without sampling: reconstruction from the mean, and the divergence."""
    model = Vae()
    x = np.random.default_rng(5).uniform(size=(8, 16)).astype(np.float32)
    params = varied(initial(model.init, jax.random.key(0), x))

    def loss(p, x):
        logits, mean, log_variance = model.apply(p, x)
        divergence = -0.5 * jnp.sum(1 + log_variance - mean**2 - jnp.exp(log_variance), axis=-1)
        return jnp.mean(optax.sigmoid_binary_cross_entropy(logits, x).sum(-1) + divergence)

    return loss, params, None, (x,)


class Generator(nn.Module):
    @nn.compact
    def __call__(self, z):
        x = nn.Dense(4 * 4 * 8)(z).reshape(z.shape[0], 4, 4, 8)
        x = nn.relu(nn.BatchNorm(use_running_average=False)(x))
        x = nn.ConvTranspose(6, (4, 4), strides=(2, 2), use_bias=False)(x)
        x = nn.relu(nn.BatchNorm(use_running_average=False)(x))
        return nn.tanh(nn.ConvTranspose(3, (4, 4), strides=(2, 2))(x))


def dcgan_generator():
    model = Generator()
    z = np.random.default_rng(6).normal(size=(6, 5)).astype(np.float32)
    variables = initial(model.init, jax.random.key(0), z)

    def loss(p, state, z):
        fake, updates = model.apply({"params": p, "batch_stats": state}, z, mutable=["batch_stats"])
        return jnp.mean((fake[:, ::2, ::2] - 0.3) ** 2), updates["batch_stats"]

    return loss, varied(variables["params"]), variables["batch_stats"], (z,)


class Discriminator(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.leaky_relu(nn.Conv(6, (4, 4), strides=(2, 2))(x), 0.2)
        x = nn.GroupNorm(num_groups=2)(nn.Conv(8, (4, 4), strides=(2, 2))(x))
        return nn.Dense(1)(nn.leaky_relu(x, 0.2).reshape(x.shape[0], -1))[:, 0]


def dcgan_discriminator():
    model, (x, y) = Discriminator(), images()
    params = varied(initial(model.init, jax.random.key(0), x))

    def loss(p, x, y):
        return optax.sigmoid_binary_cross_entropy(model.apply(p, x), (y > 4).astype(jnp.float32)).mean()

    return loss, params, None, (x, y)


class DenseMoe(nn.Module):
    """Every expert sees every row; the gate keeps the two largest."""

    @nn.compact
    def __call__(self, x):
        gate = nn.Dense(4)(x)
        largest = jax.lax.top_k(gate, 2)[0][:, -1:]
        gate = nn.softmax(jnp.where(gate >= largest, gate, -1e9))
        first = self.param("first", nn.initializers.normal(0.3), (4, x.shape[-1], 12))
        second = self.param("second", nn.initializers.normal(0.3), (4, 12, 6))
        hidden = nn.relu(jnp.einsum("bi,eih->beh", x, first))
        return jnp.einsum("beh,eho,be->bo", hidden, second, gate)


def moe():
    random = np.random.default_rng(7)
    x, y = random.normal(size=(12, 8)).astype(np.float32), random.integers(0, 6, 12).astype(np.int32)
    return classifier(DenseMoe(), x, y)


class ConvNext(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.LayerNorm()(nn.Conv(8, (2, 2), strides=(2, 2))(x))
        for _ in range(2):
            y = nn.Conv(8, (7, 7), feature_group_count=8)(x)
            y = nn.Dense(8)(nn.gelu(nn.Dense(32)(nn.LayerNorm()(y))))
            x = x + self.param(f"scale{_}", nn.initializers.constant(0.5), (8,)) * y
        return nn.Dense(10)(nn.LayerNorm()(x.mean((1, 2))))


def convnext():
    return classifier(ConvNext(), *images())


class MobileNet(nn.Module):
    """Inverted residuals with squeeze and excitation."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu6(nn.Conv(8, (3, 3), strides=(2, 2))(x))
        y = nn.hard_swish(nn.Conv(16, (1, 1))(x))
        y = nn.hard_swish(nn.Conv(16, (3, 3), feature_group_count=16)(y))
        squeezed = y.mean((1, 2), keepdims=True)
        y = y * nn.hard_sigmoid(nn.Conv(16, (1, 1))(nn.relu(nn.Conv(4, (1, 1))(squeezed))))
        x = x + nn.Conv(8, (1, 1))(y)
        return nn.Dense(10)(nn.avg_pool(x, (2, 2), (2, 2), "SAME", count_include_pad=False).reshape(x.shape[0], -1))


def mobilenet():
    return classifier(MobileNet(), *images(size=10))


class UNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        one = nn.relu(nn.Conv(6, (3, 3))(x))
        two = nn.relu(nn.Conv(8, (3, 3))(nn.max_pool(one, (2, 2), (2, 2))))
        up = jnp.repeat(jnp.repeat(two, 2, axis=1), 2, axis=2)
        return nn.Conv(4, (1, 1))(nn.relu(nn.Conv(6, (3, 3))(jnp.concatenate([up, one], -1))))


def unet():
    model, (x, _) = UNet(), images(n=4)
    y = np.random.default_rng(8).integers(0, 4, x.shape[:3]).astype(np.int32)
    params = varied(initial(model.init, jax.random.key(0), x))
    return lambda p, x, y: cross_entropy(model.apply(p, x), y).mean(), params, None, (x, y)


class TextCnn(nn.Module):
    @nn.compact
    def __call__(self, t):
        x = nn.Embed(50, 12)(t)
        parts = [nn.relu(nn.Conv(6, (k,), kernel_dilation=(d,))(x)).max(axis=1) for k, d in ((2, 1), (3, 2))]
        return nn.Dense(3)(jnp.concatenate(parts, axis=-1))


def text_cnn():
    t = tokens()
    return classifier(TextCnn(), t, (t.sum(1) % 3).astype(np.int32))


MODELS = {
    "linen MLP": mlp,
    "linen CNN of the seed": cnn,
    "linen ResNet, BatchNorm": resnet,
    "linen Transformer encoder": encoder,
    "linen GPT, tied embedding": gpt,
    "linen GPT, scanned and remat": scanned_layers,
    "linen ViT": vit,
    "linen MLP-Mixer": mixer,
    "linen LSTM": lstm,
    "linen bidirectional GRU": gru,
    "linen autoencoder": autoencoder,
    "linen VAE": vae,
    "linen DCGAN generator": dcgan_generator,
    "linen DCGAN discriminator": dcgan_discriminator,
    "linen dense MoE": moe,
    "linen ConvNeXt": convnext,
    "linen MobileNet": mobilenet,
    "linen U-Net": unet,
    "linen TextCNN": text_cnn,
}
