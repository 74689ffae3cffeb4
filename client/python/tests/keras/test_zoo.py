"""Whole models: losses and weights of ten steps, and the first step's gradients, are those of the real Keras."""

import os

import keras
import numpy as np
import pytest
from against_keras import compare_training, randomized
from keras import layers as L  # noqa: N812

pytestmark = pytest.mark.usefixtures("numpy_initializers")
COUNT = 80


def images(rng, *shape):
    # Small enough that no probability is below Keras' 1e-7, where it clips them.
    return (rng.standard_normal((COUNT, *shape)) / 2).astype(np.float32)


def classes(rng, count):
    return rng.integers(0, count, COUNT)


def mlp(rng):
    model = keras.Sequential(
        [
            L.Input((12,)),
            L.Dense(16, activation="relu"),
            L.Dense(16, activation="tanh"),
            L.Dense(5, activation="softmax"),
        ]
    )
    return model, images(rng, 12), classes(rng, 5), "sparse_categorical_crossentropy"


def flexflow_cnn(rng):
    first = {"data_format": "channels_first"}
    model = keras.Sequential(
        [
            L.Input((3, 16, 16)),
            L.Conv2D(8, 3, padding="same", activation="relu", **first),
            L.Conv2D(8, 3, activation="relu", **first),
            L.MaxPooling2D(2, **first),
            L.Flatten(),
            L.Dense(16, activation="relu"),
            L.Dense(10),
            L.Activation("softmax"),
        ]
    )
    return model, images(rng, 3, 16, 16), classes(rng, 10), "sparse_categorical_crossentropy"


def lenet(rng):
    model = keras.Sequential(
        [
            L.Input((16, 16, 1)),
            L.Conv2D(6, 5, padding="same", activation="tanh"),
            L.AveragePooling2D(2),
            L.Conv2D(12, 5, activation="tanh"),
            L.AveragePooling2D(2),
            L.Flatten(),
            L.Dense(20, activation="tanh"),
            L.Dense(10, activation="softmax"),
        ]
    )
    labels = keras.utils.to_categorical(classes(rng, 10), 10)
    return model, images(rng, 16, 16, 1), labels, "categorical_crossentropy"


def resnet(rng):
    x = begin = L.Input((12, 12, 3))
    x = L.Conv2D(8, 3, padding="same", use_bias=False)(x)
    for filters, stride in ((8, 1), (12, 2)):
        short = x
        y = L.Activation("relu")(L.BatchNormalization()(x))
        y = L.Conv2D(filters, 3, strides=stride, padding="same", use_bias=False)(y)
        y = L.Conv2D(filters, 3, padding="same")(L.ReLU()(L.BatchNormalization()(y)))
        if stride > 1:
            short = L.Conv2D(filters, 1, strides=stride)(x)
        x = L.Add()([short, y])
    out = L.Dense(6, activation="softmax")(L.GlobalAveragePooling2D()(x))
    return keras.Model(begin, out), images(rng, 12, 12, 3), classes(rng, 6), "sparse_categorical_crossentropy"


def resnext(rng):
    x = begin = L.Input((8, 8, 8))
    y = L.Conv2D(8, 1, activation="relu")(x)
    y = L.Conv2D(8, 3, padding="same", groups=4, activation="relu")(y)
    x = L.Activation("relu")(L.add([x, L.BatchNormalization()(L.Conv2D(8, 1)(y))]))
    out = L.Dense(3)(L.GlobalMaxPooling2D()(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return keras.Model(begin, out), images(rng, 8, 8, 8), classes(rng, 3), loss


def inception(rng):
    begin = L.Input((8, 8, 4))
    branches = [
        L.Conv2D(4, 1, activation="relu")(begin),
        L.Conv2D(4, 3, padding="same", activation="relu")(L.Conv2D(3, 1)(begin)),
        L.Conv2D(4, 1)(L.MaxPooling2D(3, strides=1, padding="same")(begin)),
        L.Conv2D(4, 1)(L.AveragePooling2D(3, strides=1, padding="same")(begin)),
    ]
    out = L.Dense(4, activation="softmax")(L.Flatten()(L.concatenate(branches)))
    return keras.Model(begin, out), images(rng, 8, 8, 4), classes(rng, 4), "sparse_categorical_crossentropy"


def mobilenet(rng):
    model = keras.Sequential(
        [
            L.Input((12, 12, 3)),
            L.ZeroPadding2D(((0, 1), (0, 1))),
            L.Conv2D(6, 3, strides=2, use_bias=False),
            L.BatchNormalization(momentum=0.9),
            L.ReLU(6.0),
            L.DepthwiseConv2D(3, padding="same", use_bias=False),
            L.BatchNormalization(),
            L.ReLU(6.0),
            L.SeparableConv2D(8, 3, padding="same", activation="relu"),
            L.GlobalAveragePooling2D(keepdims=True),
            L.Conv2D(5, 1),
            L.Reshape((5,)),
            L.Softmax(),
        ]
    )
    return model, images(rng, 12, 12, 3), classes(rng, 5), "sparse_categorical_crossentropy"


def unet(rng):
    begin = L.Input((8, 8, 2))
    down = L.Conv2D(4, 3, padding="same", activation="relu")(begin)
    deep = L.Conv2D(6, 3, padding="same", activation="relu")(L.MaxPooling2D()(down))
    up = L.Conv2DTranspose(4, 2, strides=2, activation="relu")(deep)
    out = L.Conv2D(1, 1, activation="sigmoid")(L.Concatenate()([down, up]))
    mask = (rng.random((COUNT, 8, 8, 1)) > 0.5).astype(np.float32)
    return keras.Model(begin, out), images(rng, 8, 8, 2), mask, "binary_crossentropy"


def autoencoder(rng):
    model = keras.Sequential(
        [
            L.Input((8, 8, 1)),
            L.Conv2D(4, 3, strides=2, padding="same", activation="elu"),
            L.Conv2D(2, 3, padding="same"),
            L.UpSampling2D(),
            L.Conv2D(4, 3, padding="same", activation="swish"),
            L.Cropping2D(1),
        ]
    )
    return model, images(rng, 8, 8, 1), images(rng, 6, 6, 4), "mean_squared_error"


def text_lstm(rng):
    model = keras.Sequential(
        [
            L.Input((7,), dtype="int32"),
            L.Embedding(20, 6),
            L.LSTM(8, return_sequences=True),
            L.LSTM(5),
            L.Dense(1, "sigmoid"),
        ]
    )
    labels = rng.integers(0, 2, COUNT).astype(np.float32)
    return model, rng.integers(0, 20, (COUNT, 7)).astype(np.int32), labels, "binary_crossentropy"


def text_gru(rng):
    x = begin = L.Input((6,), dtype="int32")
    x = L.Embedding(15, 5)(x)
    x = L.Bidirectional(L.GRU(4, return_sequences=True))(x)
    x = L.TimeDistributed(L.Dense(6, activation="gelu"))(x)
    out = L.Dense(15, activation="softmax")(x)
    ids = rng.integers(0, 15, (COUNT, 6)).astype(np.int32)
    return keras.Model(begin, out), ids, rng.integers(0, 15, (COUNT, 6)), "sparse_categorical_crossentropy"


def text_cnn(rng):
    begin = L.Input((12,), dtype="int32")
    words = L.Embedding(30, 8)(begin)
    found = [L.GlobalMaxPooling1D()(L.Conv1D(4, k, activation="relu")(words)) for k in (2, 3, 4)]
    out = L.Dense(3, activation="softmax")(L.Concatenate()(found))
    ids = rng.integers(0, 30, (COUNT, 12)).astype(np.int32)
    return keras.Model(begin, out), ids, classes(rng, 3), "sparse_categorical_crossentropy"


def transformer(rng):
    x = begin = L.Input((6, 8))
    for causal in (False, True):
        y = L.MultiHeadAttention(2, 4)(L.LayerNormalization()(x), L.LayerNormalization()(x), use_causal_mask=causal)
        x = x + y
        y = L.Dense(8)(L.Dense(16, activation="gelu")(L.LayerNormalization(epsilon=1e-6)(x)))
        x = L.Add()([x, y])
    out = L.Dense(4, activation="softmax")(L.GlobalAveragePooling1D()(x))
    return keras.Model(begin, out), images(rng, 6, 8), classes(rng, 4), "sparse_categorical_crossentropy"


def cross_attention(rng):
    a, b = begin = [L.Input((5, 6)), L.Input((7, 4))]
    y = L.MultiHeadAttention(3, 2, output_shape=4, use_bias=False)(a, b, b)
    a = L.Dense(4)(a)
    y = L.Attention(use_scale=True)([y, a])
    out = L.Dense(2)(L.Flatten()(y))
    return keras.Model(begin, out), [images(rng, 5, 6), images(rng, 7, 4)], images(rng, 2), "mse"


def dlrm(rng):
    dense, first, second = L.Input((6,)), L.Input((1,), dtype="int32"), L.Input((1,), dtype="int32")
    parts = [L.Dense(4, activation="relu")(dense)]
    parts += [L.Flatten()(L.Embedding(10, 4)(ids)) for ids in (first, second)]
    dots = [L.Dot(axes=1)([parts[i], parts[j]]) for i, j in ((0, 1), (0, 2), (1, 2))]
    out = L.Dense(1, activation="sigmoid")(L.Concatenate()([parts[0], *dots]))
    ids = [rng.integers(0, 10, (COUNT, 1)).astype(np.int32) for _ in range(2)]
    labels = rng.integers(0, 2, (COUNT, 1)).astype(np.float32)
    return keras.Model([dense, first, second], out), [images(rng, 6), *ids], labels, "binary_crossentropy"


def nested_shared(rng):
    tower = keras.Sequential([L.Input((6,)), L.Dense(8, activation="relu"), L.Dense(4)], name="tower")
    a, b = L.Input((6,)), L.Input((6,))
    u, v = tower(a), tower(b)
    out = L.Dense(1)(L.Concatenate()([u - v, L.Multiply()([u, v]), L.Maximum()([u, v]), L.Average()([u, v]) * 0.5]))
    return keras.Model([a, b], out), [images(rng, 6), images(rng, 6)], images(rng, 1), "mae"


def two_outputs(rng):
    begin = L.Input((8,))
    shared = L.Dense(10, activation="relu", kernel_regularizer="l2")(begin)
    kind = L.Dense(3, activation="softmax", name="kind")(shared)
    size = L.Dense(2, name="size", bias_regularizer=keras.regularizers.L1L2(0.01, 0.02))(shared)
    model = keras.Model(begin, [kind, size])
    return model, images(rng, 8), [classes(rng, 3), images(rng, 2)], ["sparse_categorical_crossentropy", "huber"]


def frozen(rng):
    base = keras.Sequential([L.Input((8, 8, 2)), L.Conv2D(4, 3), L.BatchNormalization(), L.ReLU()], name="base")
    base.trainable = False
    x = begin = L.Input((8, 8, 2))
    out = L.Dense(3, activation="softmax")(L.Flatten()(base(x)))
    return keras.Model(begin, out), images(rng, 8, 8, 2), classes(rng, 3), "sparse_categorical_crossentropy"


def stopped(rng):
    begin = L.Input((6,))
    x = L.Dense(8, activation="tanh")(begin)
    x = x * keras.ops.stop_gradient(x) + keras.ops.stop_gradient(L.Dense(8, name="still")(begin))
    return keras.Model(begin, L.Dense(2)(x)), images(rng, 6), images(rng, 2), "mse"


def volumes(rng):
    model = keras.Sequential(
        [
            L.Input((6, 6, 6, 1)),
            L.Conv3D(3, 3, activation="relu"),
            L.MaxPooling3D(),
            L.GroupNormalization(3),
            L.Flatten(),
            L.Dense(2, activation="softmax"),
        ]
    )
    return model, images(rng, 6, 6, 6, 1), classes(rng, 2), "sparse_categorical_crossentropy"


# CI trains these; with $ESPALIER_TEST_ALL set, all are trained.
FAMILIES = (
    flexflow_cnn,
    resnet,
    mobilenet,
    unet,
    text_gru,
    transformer,
    dlrm,
    nested_shared,
    two_outputs,
    frozen,
    stopped,
)
OTHERS = (
    mlp,
    lenet,
    resnext,
    inception,
    autoencoder,
    text_lstm,
    text_cnn,
    cross_attention,
    volumes,
)
MODELS = (*FAMILIES, *OTHERS) if os.environ.get("ESPALIER_TEST_ALL") else FAMILIES


@pytest.mark.parametrize("make", MODELS, ids=[make.__name__ for make in MODELS])
def test_model(daemon, make):
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(7)
    model, x, y, loss = make(rng)
    randomized(model, rng)
    compare_training(model, x, y, loss)
