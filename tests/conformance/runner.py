"""Talks to op_runner, the program that runs our kernels (see op_runner.cc for the protocol)."""
import json
import os
import subprocess

import torch

RUNNER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "op_runner")

NAMES = {torch.float64: "f32", torch.float32: "f32", torch.int64: "i64", torch.int32: "i32", torch.bool: "bool"}
TYPES = {"f32": torch.float64, "i64": torch.int64, "i32": torch.int32, "bool": torch.bool}


def to_json(tensor):
    if tensor is None:
        return None
    data = tensor.reshape(-1).tolist()
    if tensor.dtype == torch.bool:
        data = [int(x) for x in data]
    return {"dtype": NAMES[tensor.dtype], "dims": list(tensor.shape), "data": data}


def from_json(value):
    data = [float(x) for x in value["data"]]
    return torch.tensor(data, dtype=TYPES.get(value["dtype"], torch.float64)).reshape(value["dims"])


class Runner:
    def __init__(self):
        self.process = subprocess.Popen([RUNNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"op_runner died (exit {self.process.wait()}) on {request.get('op', request.get('onnx'))}")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
