"""The Python of docs/guide/pytorch.md and README.md runs as it stands there."""

import torch
from pages import run
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def test_the_guide_runs(daemon):
    torch.manual_seed(0)
    x = torch.randn(1024, 20)
    module = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3))
    loader = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=32, shuffle=True)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    names = run("pytorch.md", {"module": module, "loader": loader})
    assert names["gradient"].shape == (32, 20)
    losses = names["result"].history["loss"]
    assert losses[-1] < 0.8 * losses[0]
    for name, tensor in module.state_dict().items():
        assert not torch.equal(tensor, before[name]), name


def test_the_readme_runs():
    torch.manual_seed(0)
    names = run("../../README.md", {})
    assert names["result"].history["loss"][-1] < 0.3
    with torch.no_grad():
        expected = names["model"](names["x"][:4]).numpy()
    assert abs(names["logits"]["output"] - expected).max() < 1e-4
