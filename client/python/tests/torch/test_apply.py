"""PyTorch modules as layers of an FFModel."""

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from espalier.core import DataType, FFConfig, FFModel, LossType, MetricsType, SGDOptimizer
from espalier.errors import InvalidArgument
from espalier.torch import fx
from espalier.torch.model import PyTorchModel

BATCH = 8
SPARSE = LossType.LOSS_SPARSE_CATEGORICAL_CROSSENTROPY


class Net(nn.Module):
    def __init__(self, softmax):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.top = nn.Linear(6 * 16, 5)
        self.softmax = nn.Softmax(-1) if softmax else nn.Identity()

    def forward(self, x):
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        return self.softmax(self.top(torch.flatten(x, 1)))


def arrays(examples=48):
    rng = np.random.default_rng(0)
    return rng.normal(size=(examples, 3, 8, 8)).astype(np.float32), rng.integers(0, 5, (examples, 1)).astype(np.int32)


def train(wrapped, optimizer=0.1):
    model = FFModel(FFConfig(["-b", str(BATCH)]))
    x = model.create_tensor([BATCH, 3, 8, 8], DataType.DT_FLOAT)
    (output,) = wrapped.apply(model, x)
    assert output.dims == (BATCH, 5)
    model.compile(SGDOptimizer(model, optimizer), SPARSE, [MetricsType.METRICS_ACCURACY])
    return model


@pytest.mark.parametrize("from_file", [False, True])
def test_a_module_trains_as_in_pytorch_and_is_read_back(daemon, tmp_path, from_file):
    torch.manual_seed(0)
    module = Net(softmax=True)
    reference = copy.deepcopy(module)
    given = module
    if from_file:
        given = tmp_path / "net.ff"
        fx.torch_to_flexflow(module, given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # its softmax is seen
        wrapped = PyTorchModel(given)
        model = train(wrapped)
    x, y = arrays()
    with model:
        history = model.fit(x, y, epochs=2, verbose=0)
        wrapped.read_back(model)
    optimizer, losses = torch.optim.SGD(reference.parameters(), 0.1), []
    reference.softmax = nn.Identity()
    for _ in range(2):
        total = 0.0
        for i in range(0, len(x), BATCH):
            optimizer.zero_grad()
            labels = torch.tensor(y[i : i + BATCH, 0]).long()
            loss = nn.functional.cross_entropy(reference(torch.tensor(x[i : i + BATCH])), labels)
            loss.backward()
            optimizer.step()
            total += loss.item() / (len(x) // BATCH)
        losses.append(total)
    assert [h["loss"] for h in history] == pytest.approx(losses, rel=1e-4)
    for name, tensor in reference.state_dict().items():
        if "num_batches" not in name:
            torch.testing.assert_close(wrapped.module.state_dict()[name], tensor, rtol=1e-3, atol=1e-5)


def test_layers_before_and_behind_a_module(daemon):
    model = FFModel(FFConfig(["-b", str(BATCH)]))
    x = model.create_tensor([BATCH, 12], DataType.DT_FLOAT)
    wrapped = PyTorchModel(nn.Sequential(nn.Linear(6, 7), nn.Tanh()))
    (t,) = wrapped.apply(model, [model.dense(x, 6)])
    model.softmax(model.dense(t, 3))
    model.compile(SGDOptimizer(model, 0.5), SPARSE, [])
    rng = np.random.default_rng(0)
    points = rng.normal(size=(64, 12)).astype(np.float32)
    with model:
        before = model.get_layer_by_id(1).get_weight_tensor().get_weights(model)
        history = model.fit(points, points[:, :3].argmax(1), epochs=10, verbose=0)
        assert history[-1]["loss"] < history[0]["loss"] / 2
        assert not np.array_equal(before, model.parameters()["0.weight"])


def test_other_models_are_not_read_back(daemon):
    wrapped, other = PyTorchModel(Net(softmax=True)), PyTorchModel(Net(softmax=True))
    with train(wrapped) as model, pytest.raises(InvalidArgument, match="not applied to this model"):
        other.read_back(model)


def test_an_encoder_decoder_of_transformers(daemon):
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 30, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 1, "num_heads": 4, "dropout_rate": 0}
    torch.manual_seed(0)
    module = transformers.MT5ForConditionalGeneration(transformers.MT5Config(**sizes, decoder_start_token_id=0))
    model = FFModel(FFConfig(["-b", "4"]))
    inputs = [model.create_tensor([4, n], DataType.DT_INT64) for n in (9, 9, 6)]
    wrapped = PyTorchModel(module, is_hf_model=True, batch_size=4, seq_length=(9, 6))
    outputs = wrapped.to_ff(model, inputs)
    assert outputs[0].dims == (4, 6, 30)
    with pytest.warns(match="taken as logits"):
        model.compile(SGDOptimizer(model, 0.1), SPARSE, [MetricsType.METRICS_ACCURACY])
    rng = np.random.default_rng(0)
    ids, decoder = rng.integers(1, 30, (8, 9)), rng.integers(1, 30, (8, 6))
    labels = np.where(decoder > 25, -100, decoder)
    mask = np.ones_like(ids)
    with model:
        found = model.eval([ids, mask, decoder], labels.astype(np.int32))
    logits = module.eval()(torch.tensor(ids), torch.tensor(mask), torch.tensor(decoder)).logits
    expected = nn.functional.cross_entropy(logits.reshape(-1, 30), torch.tensor(labels).reshape(-1))
    assert found["loss"] == pytest.approx(expected.item(), rel=1e-4)


SMALL = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
MODELS = {
    "bert": ("BertForMaskedLM", "BertConfig", SMALL),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 2}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", SMALL),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers_train(daemon, name):
    transformers = pytest.importorskip("transformers")
    kind, config, sizes = MODELS[name]
    torch.manual_seed(0)
    module = getattr(transformers, kind)(getattr(transformers, config)(**sizes))
    before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    model = FFModel(FFConfig(["-b", "4"]))
    inputs = [model.create_tensor([4, 10], DataType.DT_INT64) for _ in range(2)]
    wrapped = PyTorchModel(module, is_hf_model=True, batch_size=4, seq_length=10)
    assert wrapped.to_ff(model, inputs)[0].dims == (4, 10, 40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.compile("adam", SPARSE, ["accuracy"])
    ids = np.random.default_rng(0).integers(1, 40, (16, 10))
    with model:
        history = model.fit([ids, np.ones_like(ids)], (ids + 1) % 40, epochs=8, verbose=0)
        wrapped.read_back(model)
    assert history[-1]["loss"] < 0.98 * history[0]["loss"]
    assert any(not torch.equal(tensor, before[key]) for key, tensor in module.state_dict().items())
