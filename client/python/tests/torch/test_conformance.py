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
    assert found.loss.within(1e-5), found.loss
    assert found.gradient.within(1e-4), found.gradient
    for workers in (1, 2):
        assert found.middle[workers].within(1e-5), (workers, found.middle)
        # Where rounding turns the sign of one value before a ReLU, a step differs by more, in PyTorch's float32, too.
        limit = 1e-5 if ZOO[name].library in ("transformers", "torch.nn") else 1e-3
        assert found.curve[workers].within(limit), (workers, found.curve)
        assert found.weights[workers].within(limit), (workers, found.weights)
