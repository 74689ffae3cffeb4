"""Accuracy and cross-entropy of an ONNX classifier in ONNX Runtime, on the held-out end of a dataset, full batches only.
Arguments: model.onnx, an .npz with the model's input and "y", the held-out fraction, the batch size."""
import json
import sys

import numpy as np
import onnx
import onnxruntime

path, data, part, batch = sys.argv[1], np.load(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
onnx.checker.check_model(path, full_check=True)
session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
name = session.get_inputs()[0].name
labels = data["y"]
held_out = int(len(labels) * part)
begin = len(labels) - held_out
end = begin + held_out // batch * batch
logits = session.run(None, {name: data[name][begin:end].astype(np.float32)})[0].astype(np.float64)
labels = labels[begin:end]
log_sums = np.log(np.exp(logits - logits.max(1, keepdims=True)).sum(1)) + logits.max(1)
print(json.dumps({"accuracy": float((logits.argmax(1) == labels).mean()),
                  "loss": float((log_sums - logits[np.arange(len(labels)), labels]).mean())}))
