"""What is generated and checked in: stubs of the protocol, and the functions of the operators."""

import inspect
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from espalier import ops
from espalier.errors import InvalidArgument
from espalier.graph import Graph
from espalier.training import fit

PACKAGE = Path(__file__).absolute().parents[1]


def test_stubs_are_those_of_the_protocol():
    if shutil.which("protoc") is None:
        pytest.fail("protoc is missing; deploy/install.sh installs protobuf-compiler")
    done = subprocess.run([sys.executable, PACKAGE / "generate_stubs.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_operators_are_those_of_the_registry():
    done = subprocess.run([sys.executable, PACKAGE / "generate_ops.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ops.__all__)
def test_each_function_makes_its_node(name):
    function = getattr(ops, name)
    graph = Graph()
    x = graph.input("x", (None, 2))
    arguments, keywords = [], {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == "graph":
            arguments.append(graph)
        elif parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.VAR_POSITIONAL):
            arguments.append(x)
        elif parameter.default is parameter.empty:
            keywords[parameter.name] = {"int": 2, "float": 0.5, "bool": True, "str": "f32"}.get(
                parameter.annotation, [1]
            )
    function(*arguments, **keywords, name="made")
    (node,) = graph.proto.nodes
    assert (node.op, node.name) == (name, "made")
    assert list(node.inputs) == [x.index] * sum(a is x for a in arguments)
    assert graph.sources["made"].startswith(__file__)
    assert set(keywords) <= set(node.attributes)


def test_functions_train(daemon):
    graph = Graph("ops")
    x = graph.input("x", (None, 4))
    w = graph.parameter("w", data=np.eye(4, dtype=np.float32))
    first, second = ops.split(ops.linear(x, w), axis=1, sizes=[2, 2])
    joined = ops.concat(first, ops.multiply(second, 3.0), axis=1)
    graph.output("loss", ops.mean_squared_error(joined, ops.add(x, np.float32(1))))
    data = np.arange(32, dtype=np.float32).reshape(8, 4)
    result = fit(graph, {"x": data}, optimizer="sgd", batch_size=8, steps=1, shuffle=False, verbose=1)
    scaled = data * [1, 1, 3, 3]
    assert result.history["loss"] == pytest.approx([np.mean((scaled - data - 1) ** 2)], rel=1e-6)


def test_an_operator_needs_a_tensor():
    with pytest.raises(InvalidArgument, match="add: at least one input must be a tensor"):
        ops.add(1.0, 2.0)
