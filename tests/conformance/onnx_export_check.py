"""Checks an exported model in the environment of onnx_environment.py: the ONNX project's checker, and its results by
ONNX Runtime. Arguments: model.onnx, an .npz with the inputs by name and the expected outputs as "output:<name>"."""
import sys

import numpy as np
import onnx
import onnxruntime

path, data = sys.argv[1:]
onnx.checker.check_model(path, full_check=True)
arrays = dict(np.load(data))
expected = {k[len("output:"):]: v for k, v in arrays.items() if k.startswith("output:")}
feeds = {k: v for k, v in arrays.items() if not k.startswith("output:")}
session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
for name, value in zip(expected, session.run(list(expected), feeds)):
    assert value.shape == expected[name].shape, (name, value.shape, expected[name].shape)
    size = max(1e-3, np.abs(expected[name]).max())
    error = np.abs(value.astype(np.float64) - expected[name]).max() / size
    assert error < 1e-5, (name, error)
