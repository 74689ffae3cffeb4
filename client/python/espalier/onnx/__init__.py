"""ONNX files in Python: FlexFlow's `flexflow.onnx`, which adds one to an FFModel.

`espalier train --onnx` trains a whole file and reads more operators (docs/guide/onnx.md).
"""

from espalier.onnx.model import ONNXModel

__all__ = ["ONNXModel"]
