"""What to_graph says of modules that cannot be converted, and what graphs it makes."""

import inspect

import pytest
import torch
from torch import nn

from espalier.errors import InvalidArgument, UnsupportedOperators
from espalier.torch import to_graph
from espalier.torch.registry import HANDLERS
from espalier.v1 import graph_pb2

X = torch.randn(4, 6)


class Module(nn.Module):
    """A module of one function."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        self.layer = nn.Linear(6, 6)
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, x):
        return self.function(self, self.layer(x))


# PyTorch keeps the lines of methods named forward.
LINE = f"test_convert.py:{inspect.getsourcelines(Module.forward)[1] + 1}"


def strange(module, x):
    return torch.special.i0(x) + torch.special.i0(x * 2) + torch.lgamma(x) + torch.nonzero_static(x, size=3).sum()


def test_all_unsupported_operators_are_listed_at_once():
    with pytest.raises(UnsupportedOperators) as caught:
        to_graph(Module(strange), X)
    found = {operator.op: operator for operator in caught.value.operators}
    assert set(found) == {"aten.special_i0.default", "aten.lgamma.default", "aten.nonzero_static.default"}
    assert found["aten.special_i0.default"].count == 2
    assert found["aten.lgamma.default"].source.endswith(LINE)


def test_ways_of_use_without_a_counterpart_have_a_reason():
    with pytest.raises(UnsupportedOperators, match=r"__and__.Tensor.*single bits"):
        to_graph(Module(lambda m, x: x * (x.int() & torch.arange(6, dtype=torch.int32))), X)


def test_the_graph_is_for_any_batch():
    graph = to_graph(Module(lambda m, x: x.reshape(x.shape[0] * 2, 3).sum(1).view(-1, 2)), X).graph
    assert [list(v.type.dims) for v in graph.proto.values if v.kind == graph_pb2.INPUT] == [[-1, 6]]
    reshapes = [list(n.attributes["shape"].ints.values) for n in graph.proto.nodes if n.op == "reshape"]
    assert reshapes == [[-1, 3], [-1, 2]]


def counted(module, x):
    return x / x.shape[0]


def test_the_batch_size_is_asked_for_where_it_is_needed():
    with pytest.raises(InvalidArgument, match=r"give batch_size=") as caught:
        to_graph(Module(counted), X)
    assert LINE in str(caught.value)
    divided = [n for n in to_graph(Module(counted), X, batch_size=8).graph.proto.nodes if n.op == "divide_scalar"]
    assert divided[0].attributes["value"].f == 8


def test_nodes_carry_the_users_line_and_layer():
    def activated(module, x):
        return torch.tanh(x)

    graph = to_graph(Module(activated), X).graph
    (node,) = [n for n in graph.proto.nodes if n.op == "linear"]
    assert node.name == "layer.linear"
    assert any(source.endswith(LINE) for source in graph.sources.values())


def test_masks_and_tables_are_constants_and_unused_nodes_are_left_out():
    def masked(module, x):
        mask = torch.ones(6, 6).tril().bool()[2] & (torch.arange(6) > 0)
        _ = torch.exp(x) * 2
        return torch.where(mask.expand(x.shape[0], 6), x, module.table * 2)

    graph = to_graph(Module(masked, table=torch.ones(6)), X).graph
    assert [n.op for n in graph.proto.nodes] == ["linear", "where"]
    assert set(graph.parameters) == {"layer.weight", "layer.bias"}


def test_dropout_and_statistics_follow_the_mode():
    module = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.25))
    operators = [n.op for n in to_graph(module.train(), X).graph.proto.nodes]
    assert operators == ["linear", "batch_norm_stats", "batch_norm", "dropout"]
    converted = to_graph(module.eval(), X)
    assert not {"batch_norm", "dropout"} & {n.op for n in converted.graph.proto.nodes}
    assert not converted.counters


def test_what_cannot_be_trained_rightly_is_refused():
    with pytest.raises(InvalidArgument, match=r"norm: momentum=None, a cumulative average, is not supported"):
        to_graph(Module(lambda m, x: m.norm(x), norm=nn.BatchNorm1d(6, momentum=None)), X)
    with pytest.raises(InvalidArgument, match=r"layer.weight is torch.float64.*module.float\(\)"):
        to_graph(Module(lambda m, x: x).double(), X.double())
    with pytest.raises(UnsupportedOperators, match=r"changes average in place"):
        to_graph(Module(lambda m, x: m.average.mul_(0.9).add_(x.mean(0)) + x, average=torch.zeros(6)), X)
    with pytest.raises(InvalidArgument, match=r"the loss has shape"):
        to_graph(Module(lambda m, x: x), X, loss=lambda y, t: (y - t) ** 2, example_labels=X)
    with pytest.raises(InvalidArgument, match=r"depends on no parameter"):
        to_graph(Module(lambda m, x: x), X, loss=lambda y, t: t.mean(), example_labels=X)
    with pytest.raises(InvalidArgument, match=r"returns a tuple of output.0, output.1.*give a function"):
        to_graph(Module(lambda m, x: (x, x)), X, loss=nn.MSELoss(), example_labels=X)


def test_control_flow_that_depends_on_data_is_refused():
    with pytest.raises(InvalidArgument, match=r"give batch_size="):
        to_graph(Module(lambda m, x: x if x.sum() > 0 else -x), X)
    with pytest.raises(InvalidArgument, match=r"torch.export cannot trace the module"):
        to_graph(Module(lambda m, x: x if x.sum() > 0 else -x), X, batch_size=4)


class Block(nn.Module):
    def __init__(self, step):
        super().__init__()
        self.self_attn, self.step = nn.MultiheadAttention(6, 2, batch_first=True), step

    def forward(self, x):
        return self.step(self.self_attn(x, x, x)[0])


STEP = f"test_convert.py:{inspect.getsourcelines(Block.forward)[1] + 1}"


class Special(nn.Module):
    def forward(self, x):
        return torch.lgamma(x)


SPECIAL = f"test_convert.py:{inspect.getsourcelines(Special.forward)[1] + 1}"


def test_errors_name_the_users_line_and_layer_and_not_pytorchs(monkeypatch):
    x = torch.randn(4, 5, 6)
    blocks = nn.Sequential(Block(nn.Identity()), Block(nn.Softplus()))
    graph = to_graph(blocks, x).graph
    assert {source for name, source in graph.sources.items() if name.startswith("1.self_attn")} == {
        next(source for source in graph.sources.values() if source.endswith(STEP))
    }
    with pytest.raises(UnsupportedOperators) as caught:
        to_graph(nn.Sequential(Block(nn.Identity()), Block(Special())), x)
    (operator,) = caught.value.operators
    assert operator.source.endswith(SPECIAL)
    assert f"{SPECIAL}, in self.1.step (Special)" in str(caught.value)
    # In a layer of PyTorch's own, and in one that no user's line calls.
    monkeypatch.delitem(HANDLERS, "softplus.default")
    with pytest.raises(UnsupportedOperators, match=rf"{STEP}, in self.1.step \(Softplus\)"):
        to_graph(blocks, x)
    here = inspect.currentframe().f_lineno + 2
    with pytest.raises(UnsupportedOperators) as caught:
        to_graph(nn.Sequential(nn.Linear(6, 6), nn.Softplus()), x)
    assert f"test_convert.py:{here}, in self.1 (Softplus)" in str(caught.value)


def test_nodes_of_a_loss_have_the_line_that_asked_for_it():
    here = inspect.currentframe().f_lineno + 1
    graph = to_graph(Module(lambda m, x: x), X, loss=nn.MSELoss(), example_labels=X).graph
    assert graph.sources["loss.mse_loss"].endswith(f"test_convert.py:{here}")


class Wrong(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(7, 3)

    def forward(self, x):
        return self.head(x)


class Packs(Wrong):
    def forward(self, x):
        return nn.utils.rnn.pack_padded_sequence(x, torch.tensor([2] * 4), batch_first=True)


def test_a_trace_that_fails_says_where():
    line = f"test_convert.py:{inspect.getsourcelines(Wrong.forward)[1] + 1}"
    with pytest.raises(InvalidArgument, match=rf"RuntimeError: .*; at .*{line}, in self.0.head \(Linear\)"):
        to_graph(nn.Sequential(Wrong()), X, batch_size=4)
    line = f"test_convert.py:{inspect.getsourcelines(Packs.forward)[1] + 1}"
    with pytest.raises(InvalidArgument, match=rf"packed sequences .*; at .*{line}, in Packs"):
        to_graph(Packs(), torch.randn(4, 5, 7), batch_size=4)
