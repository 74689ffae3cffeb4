"""Talks to op_runner and onnx_runner, the programs that run our kernels (see their .cc files for the protocol).

ESPALIER_OP_RUNNER names another op_runner than the one beside this file, ESPALIER_OP_RUNNER_ARGS its options:
"--device=cuda --plugin=libespalier_cuda.so" runs the CUDA kernels.
"""
import json
import os
import shlex
import subprocess

import torch

HERE = os.path.dirname(os.path.abspath(__file__))
OP_RUNNER = [os.environ.get("ESPALIER_OP_RUNNER") or os.path.join(HERE, "op_runner"),
             *shlex.split(os.environ.get("ESPALIER_OP_RUNNER_ARGS", ""))]

NAMES = {torch.float64: "f32", torch.float32: "f32", torch.int64: "i64", torch.int32: "i32", torch.bool: "bool",
         torch.int8: "i8", torch.uint8: "u8", torch.bfloat16: "bf16", torch.float16: "f16"}
TYPES = {"f32": torch.float64, "i64": torch.int64, "i32": torch.int32, "bool": torch.bool, "i8": torch.int8,
         "u8": torch.uint8}


def to_json(tensor):
    if tensor is None:
        return None
    data = tensor.reshape(-1).tolist()
    if tensor.dtype == torch.bool:
        data = [int(x) for x in data]
    elif tensor.dtype.is_floating_point and not torch.isfinite(tensor).all():
        data = [x if abs(x) < float("inf") else str(x) for x in data]
    return {"dtype": NAMES[tensor.dtype], "dims": list(tensor.shape), "data": data}


def from_json(value):
    data = [float(x) if isinstance(x, str) else x for x in value["data"]]
    return torch.tensor(data, dtype=TYPES.get(value["dtype"], torch.float64)).reshape(value["dims"])


class Runner:
    def __init__(self, program="op_runner"):
        self.program = program
        command = OP_RUNNER if program == "op_runner" else [os.path.join(HERE, program)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, **request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended: told below
        line = self.process.stdout.readline()
        if not line:
            what = request.get("op", request.get("onnx"))
            raise RuntimeError(f"{self.program} died (exit {self.process.wait()}) on {what}")
        return json.loads(line)

    def close(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        self.process.wait()
        self.process.stdout.close()
