"""Writes what ONNX Runtime computes in inference mode, also of files that were exported in training mode.
Arguments: model.onnx, an .npz with its inputs, the .npz to write, examples of a pass."""

import sys

import numpy as np
import onnx
import onnxruntime

onnxruntime.set_default_logger_severity(3)
model, inputs, to, batch = onnx.load(sys.argv[1]), np.load(sys.argv[2]), sys.argv[3], int(sys.argv[4])
for node in model.graph.node:
    if node.op_type == "Dropout":
        del node.input[1:]
    elif node.op_type == "BatchNormalization":
        del node.output[1:]
        for attribute in node.attribute:
            if attribute.name == "training_mode":
                attribute.i = 0
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
names = [value.name for value in session.get_inputs()]
passes = [
    session.run(None, {name: inputs[name][first : first + batch] for name in names})
    for first in range(0, len(inputs[names[0]]), batch)
]
outputs = [np.concatenate(parts) for parts in zip(*passes, strict=True)]
np.savez(to, **{value.name: array for value, array in zip(session.get_outputs(), outputs, strict=True)})
