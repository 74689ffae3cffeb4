"""sort, argsort and topk of a module: PyTorch's values, indices and gradients, also in the ONNX file of the model."""

import numpy as np
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import nn

from espalier.torch import Trainer

ROWS = 6
CASES = {
    "sort": lambda x: torch.sort(x),
    "descending": lambda x: torch.sort(x, dim=1, descending=True),
    "stable": lambda x: torch.sort((x * 2).round(), dim=1, stable=True),
    "stable, descending": lambda x: (x * 2).round().sort(stable=True, dim=-1, descending=True),
    "argsort": lambda x: (x, torch.argsort(x, dim=1, descending=True)),
    "topk": lambda x: torch.topk(x, 3),
    "smallest": lambda x: torch.topk(x, 2, dim=1, largest=False),
    "top of all": lambda x: x.flatten(1).topk(7),
}


class Sorted(nn.Module):
    def __init__(self, function):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.function = nn.Linear(5, 5), function

    def forward(self, x):
        return self.function(self.layer(x))


def examples():
    return torch.randn(ROWS, 4, 5, generator=torch.Generator().manual_seed(1))


def weighted(outputs, _):
    """A loss in which each sorted value has a weight of its own."""
    values = outputs[0].flatten(1)
    return (values * torch.linspace(0.5, 2, values.shape[1])).square().sum(1).mean()


@pytest.mark.parametrize("name", CASES)
def test_values_and_indices(daemon, name):
    module, x = Sorted(CASES[name]), examples()
    values, indices = Trainer(module, loss=weighted, optimizer="sgd").predict(x)
    wanted = module(x)
    torch.testing.assert_close(values, wanted[0].detach(), rtol=1e-6, atol=1e-6)
    assert indices.dtype == torch.int64
    assert torch.equal(indices, wanted[1])


@pytest.mark.parametrize("name", [name for name in CASES if "stable" not in name and name != "argsort"])
def test_gradients(daemon, name):
    module, x = Sorted(CASES[name]), examples()
    loss = weighted(module(x), None)
    loss.backward()
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    trainer = Trainer(module, loss=weighted, optimizer=torch.optim.SGD(module.parameters(), 1 / 16))
    result = trainer.fit((x, x[:, 0, 0]), steps=1, batch_size=ROWS, shuffle=False, verbose=0)
    assert result.history["loss"][0] == pytest.approx(loss.item(), rel=1e-5)
    for n, p in module.named_parameters():
        torch.testing.assert_close((before[n] - p.detach()) * 16, p.grad, rtol=1e-4, atol=1e-5, msg=n)


@pytest.mark.parametrize("name", ["sort", "stable, descending", "argsort", "topk"])
def test_the_models_onnx_file(daemon, name, tmp_path):
    module, x = Sorted(CASES[name]), examples()
    trainer = Trainer(module, loss=weighted, optimizer=torch.optim.SGD(module.parameters(), 0.01))
    fitted = trainer.fit((x, x[:, 0, 0]), steps=1, batch_size=ROWS, verbose=0, name=f"sorting-{name[:4]}")
    daemon.download(fitted.model, tmp_path / "model")
    (file,) = (tmp_path / "model").rglob("*.onnx")
    made = ReferenceEvaluator(str(file))
    assert any(node.op_type == "TopK" for node in made.proto_.graph.node)
    assert {"output.0", "output.1"} <= set(made.output_names)
    values, indices = made.run(["output.0", "output.1"], {"x": x.numpy()})
    wanted = module(x)
    np.testing.assert_allclose(values, wanted[0].detach().numpy(), rtol=1e-5, atol=1e-6)
    if "stable" not in name:  # ONNX does not say which of equal values comes first
        np.testing.assert_array_equal(indices, wanted[1].numpy())
