"""Each layer of espalier.core computes, and trains, as PyTorch does."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F  # noqa: N812

from espalier.core import (
    ActiMode,
    AggrMode,
    DataType,
    FFConfig,
    FFModel,
    LossType,
    PoolType,
    SGDOptimizer,
)

BATCH, RATE = 4, 0.1
ACTIVATIONS = {
    ActiMode.AC_MODE_NONE: lambda x: x,
    ActiMode.AC_MODE_RELU: torch.relu,
    ActiMode.AC_MODE_SIGMOID: torch.sigmoid,
    ActiMode.AC_MODE_TANH: torch.tanh,
    ActiMode.AC_MODE_GELU: F.gelu,
}


class Case:
    """A layer: shapes of its inputs without the batch, what makes it, what PyTorch makes of inputs and parameters.

    A shape of a name's kind ("ids 5 3": integers below 5, of shape [3]) stands for integers.
    """

    def __init__(self, name, shapes, build, expected):
        self.name, self.shapes, self.build, self.expected = name, shapes, build, expected


def attention(m, q, k, v, **options):
    return m.multihead_attention(q, k, v, 8, 2, name="l", **options)


def torch_attention(q, k, v, p, extra=False, zero=False):
    """Of the layer's formula, by PyTorch's own module."""
    layer = torch.nn.MultiheadAttention(
        8, 2, bias=True, add_bias_kv=extra, add_zero_attn=zero, kdim=k.shape[2], vdim=v.shape[2], batch_first=True
    )
    kinds = ("query", "key", "value")
    if layer.in_proj_weight is None:
        given = {f"{kind[0]}_proj_weight": p[f"l.{kind}"] for kind in kinds}
    else:
        given = {"in_proj_weight": torch.cat([p[f"l.{kind}"] for kind in kinds])}
    given |= {
        "in_proj_bias": torch.cat([p[f"l.bias_{kind}"] for kind in kinds]),
        "out_proj.weight": p["l.out"],
        "out_proj.bias": p["l.bias_out"],
    }
    if extra:
        given |= {"bias_k": p["l.bias_k"][None, None], "bias_v": p["l.bias_v"][None, None]}
    return torch.func.functional_call(layer, given, (q, k, v), {"need_weights": False})[0]


def batch_norm(x, p, relu):
    y = F.batch_norm(x, None, None, p["l.scale"], p["l.bias"], training=True)
    return torch.relu(y) if relu else y


UNARY = {
    "exp": torch.exp,
    "sin": torch.sin,
    "cos": torch.cos,
    "relu": torch.relu,
    "elu": F.elu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "identity": lambda x: x,
    "softmax": lambda x: torch.softmax(x, -1),
}
BINARY = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
}
CASES = [
    *(
        Case(
            f"conv2d-{mode.name}",
            [(3, 9, 8)],
            lambda m, x, mode=mode: m.conv2d(x, 4, 3, 2, 2, 1, 1, 0, mode, name="l"),
            lambda x, p, mode=mode: ACTIVATIONS[mode](F.conv2d(x, p["l.kernel"], p["l.bias"], (2, 1), (1, 0))),
        )
        for mode in ActiMode
    ),
    Case(
        "conv2d-groups",
        [(4, 6, 6)],
        lambda m, x: m.conv2d(x, 6, 3, 3, 1, 1, 1, 1, groups=2, use_bias=False, name="l"),
        lambda x, p: F.conv2d(x, p["l.kernel"], None, 1, 1, 1, 2),
    ),
    Case(
        "pool2d-max",
        [(2, 7, 8)],
        lambda m, x: m.pool2d(x, 3, 2, 2, 2, 1, 0, name="l"),
        lambda x, p: F.max_pool2d(x, (3, 2), 2, (1, 0)),
    ),
    Case(
        "pool2d-average",
        [(2, 7, 8)],
        lambda m, x: m.pool2d(x, 3, 3, 2, 2, 1, 1, PoolType.POOL_AVG, ActiMode.AC_MODE_RELU, name="l"),
        lambda x, p: torch.relu(F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)),
    ),
    *(
        Case(
            f"dense-{mode.name}",
            [(5,)],
            lambda m, x, mode=mode: m.dense(x, 6, mode, name="l"),
            lambda x, p, mode=mode: ACTIVATIONS[mode](F.linear(x, p["l.kernel"], p["l.bias"])),
        )
        for mode in ActiMode
    ),
    Case(
        "dense-sequence",
        [(3, 5)],
        lambda m, x: m.dense(x, 2, use_bias=False, name="l"),
        lambda x, p: F.linear(x, p["l.kernel"]),
    ),
    Case(
        "embedding-none",
        ["ids 7 3"],
        lambda m, x: m.embedding(x, 7, 4, AggrMode.AGGR_MODE_NONE, name="l"),
        lambda x, p: F.embedding(x, p["l.kernel"]),
    ),
    Case(
        "embedding-sum",
        ["ids 7 3"],
        lambda m, x: m.embedding(x, 7, 4, AggrMode.AGGR_MODE_SUM, name="l"),
        lambda x, p: F.embedding(x, p["l.kernel"]).sum(1),
    ),
    Case(
        "embedding-average",
        ["ids 7 3"],
        lambda m, x: m.embedding(x, 7, 4, AggrMode.AGGR_MODE_AVG, name="l"),
        lambda x, p: F.embedding(x, p["l.kernel"]).mean(1),
    ),
    Case("transpose", [(3, 5)], lambda m, x: m.transpose(x, (0, 2, 1)), lambda x, p: x.transpose(1, 2)),
    Case(
        "transpose-batch",
        [(3, 5)],
        lambda m, x: m.transpose(m.exp(m.transpose(x, (2, 0, 1))), (1, 2, 0)),
        lambda x, p: torch.exp(x),
    ),
    Case("reverse", [(3, 5)], lambda m, x: m.reverse(x, 1), lambda x, p: x.flip(1)),
    Case("concat", [(3, 5), (2, 5)], lambda m, x, y: m.concat([x, y], 1), lambda x, y, p: torch.cat([x, y], 1)),
    Case("concat-last", [(3,), (2,)], lambda m, x, y: m.concat([x, y], -1), lambda x, y, p: torch.cat([x, y], -1)),
    Case(
        "split-equal",
        [(6, 2)],
        lambda m, x: m.subtract(*m.split(x, 2, 1)),
        lambda x, p: x[:, :3] - x[:, 3:],
    ),
    Case(
        "split-sizes",
        [(6, 2)],
        lambda m, x: m.concat(m.split(x, [1, 3, 2], 1)[::-1], 1),
        lambda x, p: torch.cat([x[:, 4:], x[:, 1:4], x[:, :1]], 1),
    ),
    Case("reshape", [(6, 2)], lambda m, x: m.reshape(x, (BATCH, 3, 4)), lambda x, p: x.reshape(-1, 3, 4)),
    Case(
        "reshape-into-batch",
        [(6, 2)],
        lambda m, x: m.dense(m.reshape(x, (BATCH * 6, 2)), 3, name="l"),
        lambda x, p: F.linear(x.reshape(-1, 2), p["l.kernel"], p["l.bias"]),
    ),
    Case("flat", [(3, 2, 2)], lambda m, x: m.flat(x), lambda x, p: x.flatten(1)),
    Case(
        "gather",
        [(5, 3), "ids 5 2 3"],
        lambda m, x, i: m.gather(x, i, 1),
        lambda x, i, p: x.gather(1, i),
    ),
    Case("batch_norm-relu", [(3, 4, 4)], lambda m, x: m.batch_norm(x, name="l"), lambda x, p: batch_norm(x, p, True)),
    Case(
        "batch_norm",
        [(3, 4, 4)],
        lambda m, x: m.batch_norm(x, relu=False, name="l"),
        lambda x, p: batch_norm(x, p, False),
    ),
    Case(
        "layer_norm",
        [(3, 5)],
        lambda m, x: m.layer_norm(x, [-1], name="l"),
        lambda x, p: F.layer_norm(x, [5], p["l.scale"], p["l.bias"]),
    ),
    Case(
        "layer_norm-two-dimensions",
        [(3, 5)],
        lambda m, x: m.layer_norm(x, [1, 2], False, 1e-3),
        lambda x, p: F.layer_norm(x, [3, 5], eps=1e-3),
    ),
    Case(
        "batch_matmul",
        [(3, 5), (5, 2)],
        lambda m, a, b: m.batch_matmul(a, b),
        lambda a, b, p: a @ b,
    ),
    Case(
        "batch_matmul-four-dimensions",
        [(2, 3, 5), (2, 5, 4)],
        lambda m, a, b: m.batch_matmul(a, b, a_seq_length_dim=2, b_seq_length_dim=3),
        lambda a, b, p: a @ b,
    ),
    *(Case(name, [(5,)], lambda m, x, n=name: getattr(m, n)(x), lambda x, p, f=f: f(x)) for name, f in UNARY.items()),
    *(
        Case(name, [(3, 5), (1, 5)], lambda m, x, y, n=name: getattr(m, n)(x, y), lambda x, y, p, f=f: f(x, y))
        for name, f in BINARY.items()
    ),
    Case(
        "divide",
        [(5,), (5,)],
        lambda m, x, y: m.divide(x, m.scalar_add(m.sigmoid(y), 1.0)),
        lambda x, y, p: x / (torch.sigmoid(y) + 1),
    ),
    Case("rsqrt", [(5,)], lambda m, x: m.rsqrt(m.exp(x)), lambda x, p: torch.exp(x).rsqrt()),
    Case("pow", [(5,)], lambda m, x: m.pow(x, 3), lambda x, p: x**3),
    Case(
        "scalars",
        [(5,)],
        lambda m, x: m.scalar_sub(m.scalar_true_divide(m.scalar_multiply(x, 3), 2), 1),
        lambda x, p: x * 3 / 2 - 1,
    ),
    Case(
        "constant",
        [(5,)],
        lambda m, x: m.multiply(x, m.create_constant([BATCH, 5], 2.5, DataType.DT_FLOAT)),
        lambda x, p: x * 2.5,
    ),
    Case("softmax-axis", [(3, 5)], lambda m, x: m.softmax(x, axis=1), lambda x, p: torch.softmax(x, 1)),
    Case("reduce_sum", [(3, 5)], lambda m, x: m.reduce_sum(x, [1]), lambda x, p: x.sum(1)),
    Case("mean", [(3, 5)], lambda m, x: m.mean(x, [1, 2], keepdims=True), lambda x, p: x.mean((1, 2), keepdim=True)),
    Case(
        "multihead_attention",
        [(3, 8), (5, 6), (5, 7)],
        attention,
        lambda q, k, v, p: torch_attention(q, k, v, p),
    ),
    Case(
        "multihead_attention-kdim-of-flexflow",
        [(3, 8), (5, 8), (5, 8)],
        lambda m, q, k, v: attention(m, q, k, v, kdim=4, vdim=4),
        lambda q, k, v, p: torch_attention(q, k, v, p),
    ),
    Case(
        "multihead_attention-more-rows",
        [(3, 8), (5, 8), (5, 8)],
        lambda m, q, k, v: attention(m, q, k, v, add_bias_kv=True, add_zero_attn=True),
        lambda q, k, v, p: torch_attention(q, k, v, p, extra=True, zero=True),
    ),
]
PARAMETERS = {"conv2d", "dense", "embedding", "batch_norm", "multihead_attention"}


def config(batch=BATCH):
    found = FFConfig([])
    found.batch_size = batch
    return found


def close(here, there, what):
    np.testing.assert_allclose(here, there, rtol=1e-4, atol=2e-5, err_msg=what)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_layer_computes_and_trains_as_in_pytorch(daemon, case):
    rng = np.random.default_rng(0)
    model = FFModel(config())
    inputs, arrays, fed = [], [], []
    for place, shape in enumerate(case.shapes):
        if isinstance(shape, str):
            below, *sizes = map(int, shape.split()[1:])
            arrays.append(rng.integers(0, below, (BATCH, *sizes)))
            inputs.append(model.create_tensor([BATCH, *sizes], DataType.DT_INT64))
            fed.append(inputs[-1])
        else:
            arrays.append(rng.normal(size=(BATCH, *shape)).astype(np.float32))
            inputs.append(model.create_tensor([BATCH, *shape], DataType.DT_FLOAT))
            # What reaches its kernel has passed through the layer.
            fed.append(model.dense(inputs[-1], shape[-1], use_bias=False, name=f"before{place}"))
    final = model.identity(case.build(model, *fed))
    model.compile(SGDOptimizer(model, RATE), LossType.LOSS_MEAN_SQUARED_ERROR_AVG_REDUCE, [])
    label = rng.normal(size=final.dims).astype(np.float32)
    with model:
        before = {name: torch.tensor(array) for name, array in model.parameters().items()}
        for tensor, array in zip([*inputs, model.label_tensor], [*arrays, label], strict=True):
            tensor.set_tensor(model, array)
        values = model.forward()
        output = final.get_tensor(model)
        model.zero_gradients()
        model.backward()
        model.update()
        after = model.parameters()

    p = {name: tensor.requires_grad_() for name, tensor in before.items() if ".running_" not in name}
    given = [
        torch.tensor(array) if f"before{i}.kernel" not in p else F.linear(torch.tensor(array), p[f"before{i}.kernel"])
        for i, array in enumerate(arrays)
    ]
    expected = case.expected(*given, p)
    loss = F.mse_loss(expected, torch.tensor(label))
    loss.backward()
    assert final.dims == tuple(expected.shape)
    close(output, expected.detach(), "output")
    close(values["loss"], loss.item(), "loss")
    for name, tensor in p.items():
        close(after[name], (tensor - RATE * tensor.grad).detach(), name)
    if case.name.partition("-")[0] in PARAMETERS:
        assert any(name.startswith("l.") for name in p)


def test_all_24_layers_of_the_manual_are_compared():
    manual = {
        "conv2d",
        "pool2d",
        "dense",
        "embedding",
        "transpose",
        "reverse",
        "concat",
        "split",
        "reshape",
        "flat",
        "batch_norm",
        "batch_matmul",
        "add",
        "subtract",
        "multiply",
        "divide",
        "exp",
        "relu",
        "elu",
        "sigmoid",
        "tanh",
        "softmax",
        "dropout",
        "multihead_attention",
    }
    assert len(manual) == 24
    compared = {case.name.partition("-")[0] for case in CASES} | {"dropout"}
    assert manual <= compared


def test_dropout_scales_what_it_keeps_and_is_off_in_evaluation(daemon):
    model = FFModel(config(64))
    x = model.create_tensor([64, 200], DataType.DT_FLOAT)
    y = model.dropout(model.dense(x, 200, use_bias=False, name="d"), 0.25, 7)
    model.compile(SGDOptimizer(model), LossType.LOSS_MEAN_SQUARED_ERROR_AVG_REDUCE, [])
    ones = np.ones((64, 200), np.float32)
    with model:
        model.set_parameters({"d.kernel": np.eye(200, dtype=np.float32)})
        x.set_tensor(model, ones)
        model.label_tensor.set_tensor(model, ones)
        model.forward()
        first = y.get_tensor(model)
        model.forward()
        assert not np.array_equal(first, y.get_tensor(model))
        assert np.array_equal(model.predict(ones), ones)
    zeros = first == 0
    assert 0.23 < zeros.mean() < 0.27
    np.testing.assert_allclose(first[~zeros], 1 / 0.75, rtol=1e-6)


def test_running_statistics_of_batch_norm_are_used_in_evaluation(daemon):
    rng = np.random.default_rng(1)
    model = FFModel(config(8))
    x = model.create_tensor([8, 3, 4, 4], DataType.DT_FLOAT)
    model.batch_norm(x, relu=False, name="bn")
    model.compile(SGDOptimizer(model), LossType.LOSS_IDENTITY, [])
    layer, data = torch.nn.BatchNorm2d(3), rng.normal(2, 3, size=(8, 3, 4, 4)).astype(np.float32)
    with model:
        x.set_tensor(model, data)
        model.forward()
        model.zero_gradients()
        model.backward()
        layer(torch.tensor(data))
        state = model.parameters()
        close(state["bn.running_mean"], layer.running_mean, "mean")
        close(state["bn.running_var"], layer.running_var, "variance")
        close(model.predict(data[:3]), layer.eval()(torch.tensor(data[:3])).detach(), "evaluation")


def test_sequences_are_cut_at_the_length_of_forward(daemon):
    rng = np.random.default_rng(2)
    model = FFModel(config())
    a, b = (model.create_tensor([BATCH, *shape], DataType.DT_FLOAT) for shape in ((3, 5), (5, 2)))
    scaled = model.dense(a, 5, use_bias=False, name="d")
    y = model.batch_matmul(scaled, b, a_seq_length_dim=2, b_seq_length_dim=1)
    model.compile(SGDOptimizer(model), LossType.LOSS_IDENTITY, [])
    left, right = (rng.normal(size=tensor.dims).astype(np.float32) for tensor in (a, b))
    with model:
        model.set_parameters({"d.kernel": np.eye(5, dtype=np.float32)})
        a.set_tensor(model, left)
        b.set_tensor(model, right)
        for length in (None, 5, 2):
            model.forward(seq_length=length)
            close(y.get_tensor(model), left[:, :, :length] @ right[:, :length], f"length {length}")


def test_layers_that_share_parameters_sum_their_gradients(daemon):
    rng = np.random.default_rng(3)
    model = FFModel(config())
    x = model.create_tensor([BATCH, 6], DataType.DT_FLOAT)
    t = model.dense(x, 6, ActiMode.AC_MODE_TANH, name="first")
    y = model.dense(t, 6, shared_op=model.get_last_layer(), name="second")
    model.compile(SGDOptimizer(model, RATE), LossType.LOSS_MEAN_SQUARED_ERROR_AVG_REDUCE, [])
    data, label = (rng.normal(size=(BATCH, 6)).astype(np.float32) for _ in range(2))
    with model:
        before = {name: torch.tensor(array).requires_grad_() for name, array in model.parameters().items()}
        assert set(before) == {"first.kernel", "first.bias"}
        model.fit(data, label, verbose=0)
        after = model.parameters()
        assert y.dims == (BATCH, 6)
    hidden = torch.tanh(F.linear(torch.tensor(data), before["first.kernel"], before["first.bias"]))
    F.mse_loss(F.linear(hidden, before["first.kernel"], before["first.bias"]), torch.tensor(label)).backward()
    for name, tensor in before.items():
        close(after[name], (tensor - RATE * tensor.grad).detach(), name)
