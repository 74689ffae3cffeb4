"""Models of torchvision, timm and transformers train here as in PyTorch."""

import conformance
import pytest
from zoo import ZOO


def test_there_are_enough_models():
    assert len(ZOO) >= 40
    assert {entry.library for entry in ZOO.values()} == {"torchvision", "timm", "transformers"}


@pytest.mark.parametrize("name", ZOO)
def test_trains_as_in_torch(daemon, name):
    found = conformance.compare(ZOO[name])
    assert found.loss < 1e-5
    assert found.gradient < 1e-4
    for workers in (1, 2):
        assert found.curve[workers] < 1e-5, f"losses on {workers} workers"
        assert found.weights[workers] < 1e-5, f"weights on {workers} workers"
