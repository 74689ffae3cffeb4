"""Accuracy and cross-entropy of an ONNX classifier in ONNX Runtime, on the held-out end of a dataset, over the labels that
are not -100.
Arguments: model.onnx, an .npz with the model's input and the labels, the labels' column, the held-out fraction."""
import json
import sys

import numpy as np
import onnx
import onnxruntime

path, data, column, part = sys.argv[1], np.load(sys.argv[2]), sys.argv[3], float(sys.argv[4])
onnx.checker.check_model(path, full_check=True)
session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
model_input = session.get_inputs()[0]
held_out = int(len(data[column]) * part)
x, labels = data[model_input.name][-held_out:], data[column][-held_out:].reshape(-1)
if model_input.type == "tensor(float)":
    x = x.astype(np.float32)
logits = session.run(None, {model_input.name: x})[0].astype(np.float64)
logits = logits.reshape(len(labels), -1)[labels != -100]
labels = labels[labels != -100]
log_sums = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
print(json.dumps({"accuracy": float((logits.argmax(1) == labels).mean()), "labels": len(labels),
                  "loss": float((log_sums - logits[np.arange(len(labels)), labels]).mean())}))
