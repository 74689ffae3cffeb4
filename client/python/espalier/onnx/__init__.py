"""ONNX files in Python: `fit` trains a whole file, as `espalier train --onnx` does.

    result = espalier.onnx.fit("model.onnx", (x, y), optimizer="adam", batch_size=64, epochs=3)
    result.history["loss"], result.weights()
    result.save("trained.onnx")

`ONNXModel` is FlexFlow's `flexflow.onnx`, which adds a file to an FFModel; `fit` reads more operators. The page
docs/guide/onnx.md says how to export a model for training, and which of its tensors are trained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from espalier.onnx.objective import Loss, Metric
from espalier.onnx.training import OnnxResult, dry_run, fit

if TYPE_CHECKING:
    from espalier.onnx.model import ONNXModel

__all__ = ["Loss", "Metric", "ONNXModel", "OnnxResult", "dry_run", "fit"]


def __getattr__(name: str) -> Any:
    # Its module needs the package onnx, which `artifact:NAME` does not.
    if name == "ONNXModel":
        from espalier.onnx.model import ONNXModel

        return ONNXModel
    raise AttributeError(f"module 'espalier.onnx' has no attribute {name!r}")
