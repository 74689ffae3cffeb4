"""Flags of FFConfig, and what they do to plans."""

import pytest
from test_core import classifier

from espalier.core import DLRMConfig, FFConfig, NetConfig
from espalier.errors import EspalierWarning, InvalidArgument


def test_flags():
    config = FFConfig(["prog.data", "-e", "3", "-batch-size", "32", "--budget=20", "-alpha", "0.1", "-d", "x.npz"])
    assert (config.epochs, config.batch_size, config.get_batch_size(), config.dataset_path) == (3, 32, 32, "x.npz")
    assert config.search() == {"budget": 20, "alpha": 0.1}
    assert FFConfig(["--only-data-parallel"]).search() == {"strategy": "data_parallel"}
    assert FFConfig(["--budget", "0"]).search() == {"strategy": "data_parallel"}
    assert FFConfig(["--enable-parameter-parallel", "--enable-attribute-parallel", "--user-flag", "7"]).search() == {}
    config.enable_parameter_parallel = False
    assert config.search()["disable_parameter_parallel"] is True
    assert FFConfig(["--import", "plan.json"]).search() == {"imported": "plan.json"}
    with pytest.raises(InvalidArgument, match="-b many: accepted is an integer above 0"):
        FFConfig(["-b", "many"])
    with pytest.raises(InvalidArgument, match="-e needs a value"):
        FFConfig(["-e"])
    with pytest.warns(EspalierWarning, match="-ll:gpu -ll:fsize: flags of Legion change nothing"):
        FFConfig(["-ll:gpu", "4", "-ll:fsize", "14000"])
    with pytest.warns(EspalierWarning, match="--fusion changes nothing"):
        FFConfig(["--fusion"])
    assert NetConfig(["-d", "images"]).dataset_path == "images"
    dlrm = DLRMConfig(["--arch-embedding-size", "100-20", "--arch-mlp-bot", "13-64-8"])
    assert (dlrm.embedding_size, dlrm.mlp_bot, dlrm.mlp_top) == ([100, 20], [13, 64, 8], [8, 2])


def test_a_plan_is_exported_and_imported(daemon, tmp_path):
    path, tasks, nodes = tmp_path / "plan.json", tmp_path / "tasks.dot", tmp_path / "nodes.dot"
    first, _ = classifier(
        arguments=["--only-data-parallel", "--export", str(path), "--taskgraph", str(tasks), "--compgraph", str(nodes)]
    )
    with first:
        first.init_layers()
        plan = first.plan
    assert "digraph" in tasks.read_text()
    assert "hidden" in nodes.read_text()
    second, _ = classifier(arguments=["--import", str(path)])
    with second:
        assert [list(op.devices) for op in second.plan.proto.operators] == [
            list(op.devices) for op in plan.proto.operators
        ]
