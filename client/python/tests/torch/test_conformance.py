"""Models of torchvision, timm, transformers and torch.nn train here as in PyTorch."""

import os

import conformance
import pytest
from zoo import FAMILIES, ZOO

MODELS = [name for name, entry in ZOO.items() if not entry.slow]


def test_there_are_enough_models():
    assert len(MODELS) >= 40
    assert {ZOO[name].library for name in FAMILIES} == {"torchvision", "timm", "transformers", "torch.nn"}


@pytest.mark.parametrize("name", MODELS if os.environ.get("ESPALIER_TEST_ALL") else FAMILIES)
def test_trains_as_in_torch(daemon, name):
    found = conformance.compare(ZOO[name])
    assert found.loss.here < 1e-5, found.loss
    assert found.gradient.here < 1e-4, found.gradient
    for workers in (1, 2):
        assert found.curve[workers].here < 1e-5, (workers, found.curve)
        assert found.weights[workers].here < 1e-5, (workers, found.weights)
