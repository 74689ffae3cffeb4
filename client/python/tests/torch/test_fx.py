"""Files of torch_to_flexflow hold the whole module, and no code."""

import json

import pytest
import torch
from torch import nn

from espalier import safetensors_io
from espalier.errors import InvalidArgument
from espalier.torch import fx
from espalier.torch.model import PyTorchModel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding="same", bias=False)
        self.norm = nn.BatchNorm2d(8, momentum=0.3)
        self.act = nn.LeakyReLU(0.2)
        self.head = nn.Linear(8 * 16, 5)
        self.scale = nn.Parameter(torch.tensor([2.0]))
        self.first.weight.requires_grad_(False)

    def forward(self, x):
        x = self.act(self.norm(self.first(x)))
        x = torch.nn.functional.max_pool2d(x, 2)
        return self.head(torch.flatten(x[:, :, ::1], 1)) * self.scale + x.size(0)


def test_a_module_comes_back_from_its_file(tmp_path):
    torch.manual_seed(0)
    module, x = Net(), torch.randn(4, 3, 8, 8)
    fx.torch_to_flexflow(module, tmp_path / "net.ff")
    again = PyTorchModel(tmp_path / "net.ff").module
    torch.testing.assert_close(again(x), module(x), rtol=0, atol=0)
    assert {name for name, p in again.named_parameters() if not p.requires_grad} == {"first.weight"}
    assert set(again.state_dict()) == set(module.state_dict())
    graph = PyTorchModel(tmp_path / "net.ff").to_graph(x, batch_size=4).graph
    assert {"conv2d", "batch_norm", "leaky_relu", "linear"} <= {node.op for node in graph.proto.nodes}


def test_names_of_layers_may_have_dashes(tmp_path):
    module = nn.Sequential()
    module.add_module("block1-0", nn.Linear(3, 2))
    fx.torch_to_flexflow(module, tmp_path / "dash.ff")
    x = torch.randn(4, 3)
    torch.testing.assert_close(PyTorchModel(tmp_path / "dash.ff").module(x), module(x), rtol=0, atol=0)


def test_tied_weights_stay_tied(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(self.first(x))

    fx.torch_to_flexflow(Tied(), tmp_path / "tied.ff")
    again = PyTorchModel(tmp_path / "tied.ff").module
    assert again.first.weight is again.second.weight


def test_control_flow_is_refused_with_the_remedy(tmp_path):
    class Branches(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(InvalidArgument, match=r"cannot trace Branches.*PyTorchModel\(module\)"):
        fx.torch_to_flexflow(Branches(), tmp_path / "branches.ff")


def test_other_files_are_refused(tmp_path):
    (tmp_path / "text.ff").write_text("x; input; conv; ")
    with pytest.raises(InvalidArgument, match="FlexFlow's own files are not read"):
        PyTorchModel(tmp_path / "text.ff")
    with pytest.raises(InvalidArgument, match="no such file"):
        PyTorchModel(tmp_path / "absent.ff")


@pytest.mark.parametrize(
    ("op", "target", "arguments"),
    [
        ("call_function", "builtins.exec", ["1"]),
        ("call_function", "torch.load", ["weights.pt"]),
        ("call_function", "operator.methodcaller", ["__reduce__"]),
        ("call_function", "builtins.getattr", ["x", "__class__"]),
        ("call_method", "numpy() or print", ["x"]),
        ("call_method", "__reduce__", ["x"]),
        ("placeholder", "x=print()", []),
        ("call_module", 'a"+print()+"', ["x"]),
    ],
)
def test_a_file_cannot_call_what_it_likes(tmp_path, op, target, arguments):
    call = {"name": "boom", "op": op, "target": target, "args": {"tuple": arguments}, "kwargs": {"dict": {}}}
    described = {"calls": [call], "layers": {}, "tied": {}, "frozen": [], "buffers": []}
    metadata = {"format": "espalier.torch.fx 1", "graph": json.dumps(described)}
    safetensors_io.save_file({}, tmp_path / "evil.ff", metadata)
    with pytest.raises(InvalidArgument, match=r"the file (calls|has a call of)"):
        PyTorchModel(tmp_path / "evil.ff")


def test_transformers_models_take_token_ids():
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 50,
        "d_model": 16,
        "d_kv": 4,
        "d_ff": 32,
        "num_layers": 1,
        "num_heads": 4,
        "dropout_rate": 0.0,
    }
    model = transformers.MT5ForConditionalGeneration(transformers.MT5Config(**sizes, decoder_start_token_id=0))
    wrapped = PyTorchModel(model, is_hf_model=True, batch_size=2, seq_length=[12, 7])
    graph = wrapped.to_graph().graph
    shapes = {v.name: list(v.type.dims) for v in graph.proto.values if v.name in wrapped.input_names}
    assert shapes == {"input_ids": [-1, 12], "attention_mask": [-1, 12], "labels": [-1, 7]}
    with pytest.raises(InvalidArgument, match="seq_length"):
        PyTorchModel(model, is_hf_model=True)
