"""Every layer: loss and gradients of one step are those of the real Keras.

A model has several layers side by side, each with an input, an output and a loss of its own: Keras compiles a model for
a second, however small it is.
"""

import keras
import numpy as np
import pytest
from against_keras import compare_step, randomized
from keras import layers as L  # noqa: N812

pytestmark = pytest.mark.usefixtures("numpy_initializers")
IMAGE, STEPS, VOLUME = (7, 6, 4), (6, 4), (5, 4, 6, 2)


def first(*shape):
    """The shape with its channels first."""
    return (shape[-1], *shape[:-1])


def both(name, make, shape):
    """The layer with channels last and first."""
    return [
        (f"{name}-last", make("channels_last"), shape),
        (f"{name}-first", make("channels_first"), first(*shape)),
    ]


CASES = [
    ("Dense", lambda: L.Dense(5), (4,)),
    ("Dense-relu", lambda: L.Dense(5, activation="relu"), (3, 4)),
    ("Dense-no-bias", lambda: L.Dense(5, use_bias=False, activation="tanh"), (4,)),
    ("BatchNormalization-dense", lambda: L.BatchNormalization(), (4,)),
    ("BatchNormalization-axis1", lambda: L.BatchNormalization(axis=1, momentum=0.9), (4, 5, 3)),
    ("BatchNormalization-plain", lambda: L.BatchNormalization(center=False, scale=False), (5, 3)),
    ("LayerNormalization", lambda: L.LayerNormalization(), STEPS),
    ("LayerNormalization-axes", lambda: L.LayerNormalization(axis=[1, 2]), STEPS),
    ("LayerNormalization-axis1", lambda: L.LayerNormalization(axis=1, scale=False), STEPS),
    ("RMSNormalization", lambda: L.RMSNormalization(), STEPS),
    ("GroupNormalization", lambda: L.GroupNormalization(groups=2), IMAGE),
    ("GroupNormalization-axis1", lambda: L.GroupNormalization(groups=-1, axis=1), first(*IMAGE)),
    ("UnitNormalization", lambda: L.UnitNormalization(), STEPS),
    ("LSTM", lambda: L.LSTM(5), STEPS),
    ("LSTM-sequences", lambda: L.LSTM(5, return_sequences=True), STEPS),
    ("LSTM-backwards", lambda: L.LSTM(5, return_sequences=True, go_backwards=True), STEPS),
    ("LSTM-relu", lambda: L.LSTM(5, activation="relu", recurrent_activation="hard_sigmoid", use_bias=False), STEPS),
    ("GRU", lambda: L.GRU(5), STEPS),
    ("GRU-reset-before", lambda: L.GRU(5, reset_after=False, return_sequences=True), STEPS),
    ("GRU-no-bias", lambda: L.GRU(5, use_bias=False), STEPS),
    ("SimpleRNN", lambda: L.SimpleRNN(5, return_sequences=True), STEPS),
    ("SimpleRNN-relu", lambda: L.SimpleRNN(5, activation="relu"), STEPS),
    ("Bidirectional", lambda: L.Bidirectional(L.LSTM(3, return_sequences=True)), STEPS),
    ("Bidirectional-sum", lambda: L.Bidirectional(L.GRU(3), merge_mode="sum"), STEPS),
    ("TimeDistributed", lambda: L.TimeDistributed(L.Dense(5)), STEPS),
    ("TimeDistributed-conv", lambda: L.TimeDistributed(L.Conv2D(3, 2)), (3, 5, 4, 2)),
    ("ReLU", lambda: L.ReLU(max_value=1.0, negative_slope=0.1), STEPS),
    ("ReLU-threshold", lambda: L.ReLU(negative_slope=0.2, threshold=0.5), STEPS),
    ("LeakyReLU", lambda: L.LeakyReLU(), STEPS),
    ("PReLU", lambda: L.PReLU(), STEPS),
    ("PReLU-shared", lambda: L.PReLU(shared_axes=[1]), STEPS),
    ("ELU", lambda: L.ELU(0.7), STEPS),
    ("Softmax", lambda: L.Softmax(), STEPS),
    ("Softmax-axis1", lambda: L.Softmax(axis=1), STEPS),
    ("Reshape", lambda: L.Reshape((3, -1)), STEPS),
    ("Permute", lambda: L.Permute((2, 1)), STEPS),
    ("RepeatVector", lambda: L.RepeatVector(3), (4,)),
    ("Rescaling", lambda: L.Rescaling(0.5, offset=-1.0), STEPS),
    ("Conv1D-same", lambda: L.Conv1D(5, 3, strides=2, padding="same"), STEPS),
    ("Conv1D-causal", lambda: L.Conv1D(5, 3, padding="causal", dilation_rate=2), STEPS),
    ("DepthwiseConv1D", lambda: L.DepthwiseConv1D(3, depth_multiplier=2), STEPS),
    ("SeparableConv1D", lambda: L.SeparableConv1D(5, 3, padding="same"), STEPS),
    ("Conv1DTranspose", lambda: L.Conv1DTranspose(5, 3, strides=2, padding="same"), STEPS),
    ("MaxPooling1D-same", lambda: L.MaxPooling1D(3, strides=2, padding="same"), STEPS),
    ("AveragePooling1D", lambda: L.AveragePooling1D(2), STEPS),
    ("GlobalMaxPooling1D", lambda: L.GlobalMaxPooling1D(), STEPS),
    ("GlobalAveragePooling1D", lambda: L.GlobalAveragePooling1D(keepdims=True), STEPS),
    ("ZeroPadding1D", lambda: L.ZeroPadding1D((1, 2)), STEPS),
    ("Cropping1D", lambda: L.Cropping1D((1, 2)), STEPS),
    ("UpSampling1D", lambda: L.UpSampling1D(3), STEPS),
    ("ActivityRegularization", lambda: L.ActivityRegularization(l1=0.1, l2=0.2), STEPS),
    ("Resizing", lambda: L.Resizing(5, 9), IMAGE),
]
for _name, _make, _shape in (
    ("Conv2D", lambda f: lambda: L.Conv2D(6, (3, 2), strides=(2, 1), data_format=f), IMAGE),
    (
        "Conv2D-same",
        lambda f: lambda: L.Conv2D(6, 3, strides=2, padding="same", activation="relu", data_format=f),
        IMAGE,
    ),
    ("Conv2D-groups", lambda f: lambda: L.Conv2D(6, 2, groups=2, dilation_rate=2, data_format=f), IMAGE),
    ("DepthwiseConv2D", lambda f: lambda: L.DepthwiseConv2D(3, depth_multiplier=2, data_format=f), IMAGE),
    ("SeparableConv2D", lambda f: lambda: L.SeparableConv2D(6, 3, padding="same", data_format=f), IMAGE),
    ("Conv2DTranspose", lambda f: lambda: L.Conv2DTranspose(3, 3, strides=2, data_format=f), IMAGE),
    (
        "Conv2DTranspose-same",
        lambda f: lambda: L.Conv2DTranspose(3, 4, strides=3, padding="same", data_format=f),
        IMAGE,
    ),
    ("Conv2DTranspose-wide", lambda f: lambda: L.Conv2DTranspose(3, 2, strides=3, data_format=f), IMAGE),
    ("MaxPooling2D", lambda f: lambda: L.MaxPooling2D(3, strides=2, padding="same", data_format=f), IMAGE),
    ("AveragePooling2D", lambda f: lambda: L.AveragePooling2D(3, strides=2, padding="same", data_format=f), IMAGE),
    ("GlobalMaxPooling2D", lambda f: lambda: L.GlobalMaxPooling2D(data_format=f), IMAGE),
    ("GlobalAveragePooling2D", lambda f: lambda: L.GlobalAveragePooling2D(keepdims=True, data_format=f), IMAGE),
    ("Flatten", lambda f: lambda: L.Flatten(data_format=f), IMAGE),
    ("ZeroPadding2D", lambda f: lambda: L.ZeroPadding2D(((1, 2), (0, 3)), data_format=f), IMAGE),
    ("Cropping2D", lambda f: lambda: L.Cropping2D(((1, 2), (0, 3)), data_format=f), IMAGE),
    ("UpSampling2D", lambda f: lambda: L.UpSampling2D((2, 3), data_format=f), IMAGE),
    ("UpSampling2D-linear", lambda f: lambda: L.UpSampling2D(2, interpolation="bilinear", data_format=f), IMAGE),
    ("Conv3D", lambda f: lambda: L.Conv3D(3, 2, strides=2, padding="same", data_format=f), VOLUME),
    ("Conv3DTranspose", lambda f: lambda: L.Conv3DTranspose(3, 3, data_format=f), VOLUME),
    ("MaxPooling3D", lambda f: lambda: L.MaxPooling3D(2, padding="same", data_format=f), VOLUME),
    ("AveragePooling3D", lambda f: lambda: L.AveragePooling3D(3, strides=2, padding="same", data_format=f), VOLUME),
    ("GlobalAveragePooling3D", lambda f: lambda: L.GlobalAveragePooling3D(data_format=f), VOLUME),
    ("ZeroPadding3D", lambda f: lambda: L.ZeroPadding3D(1, data_format=f), VOLUME),
    ("Cropping3D", lambda f: lambda: L.Cropping3D(1, data_format=f), VOLUME),
    ("UpSampling3D", lambda f: lambda: L.UpSampling3D(2, data_format=f), VOLUME),
):
    CASES += both(_name, _make, _shape)
ACTIVATIONS = (
    "celu",
    "elu",
    "exponential",
    "gelu",
    "hard_shrink",
    "hard_sigmoid",
    "hard_silu",
    "hard_tanh",
    "leaky_relu",
    "linear",
    "log_sigmoid",
    "log_softmax",
    "mish",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_shrink",
    "softplus",
    "softsign",
    "squareplus",
    "tanh",
    "tanh_shrink",
)


SIDE_BY_SIDE = 12
GROUPS = [CASES[i : i + SIDE_BY_SIDE] for i in range(0, len(CASES), SIDE_BY_SIDE)]


@pytest.mark.parametrize("cases", GROUPS, ids=[f"{group[0][0]}..{group[-1][0]}" for group in GROUPS])
def test_layers(daemon, cases):
    begins, ends = [], []
    for name, make, shape in cases:
        begins.append(keras.Input(shape))
        # The weights before the layer show the gradient of its input.
        ends.append(make()(L.Dense(shape[-1], name=f"before-{name}")(begins[-1])))
    model = keras.Model(begins, ends)
    rng = np.random.default_rng(len(cases))
    randomized(model, rng)
    x = [rng.standard_normal((8, *shape)).astype(np.float32) for _, _, shape in cases]
    y = [rng.standard_normal((8, *end.shape[1:])).astype(np.float32) for end in ends]
    compare_step(model, x, y, ["mse"] * len(cases))


def test_activations(daemon):
    rng = np.random.default_rng(1)
    begin = keras.Input(STEPS)
    model = keras.Model(begin, [L.Activation(name, name=name)(L.Dense(4)(begin)) for name in ACTIVATIONS])
    randomized(model, rng)
    x = rng.standard_normal((8, *STEPS)).astype(np.float32)
    y = [rng.standard_normal((8, *STEPS)).astype(np.float32) for _ in ACTIVATIONS]
    compare_step(model, x, y, ["mse"] * len(ACTIVATIONS))
