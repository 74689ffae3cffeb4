"""Weights compressed as FlexFlow Serve's inference/utils/compress_llama_weights.py compresses them (group_size 32,
group_dim 0, asymmetric), for weights_test: run by hand, once for each change; needs numpy.

    python tests/conformance/make_flexflow_golden.py models/weights/testdata/flexflow

Groups are 32 rows of one column; q = round((w - min) * (2^bits - 1) / (max - min)), kept as one byte, with `_offset`
(min) and `_scale` ((2^bits - 1) / (max - min)) beside it. "packed" is how FlexFlow holds the same in memory: q, offsets,
scales; 4 bits two to a byte, the first one high. expected.safetensors has what they stand for: q / scale + min.
"""
import json
import os
import struct
import sys

import numpy as np


def compress(weights, bits, dtype):
    rows, columns = weights.shape
    padded = np.concatenate([weights, np.zeros((-rows % 32, columns), weights.dtype)])
    groups = padded.reshape(-1, 32, columns)
    low, high = groups.min(1, keepdims=True), groups.max(1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = ((2 ** bits - 1) / (high - low)).astype(dtype)  # infinite where all are equal
        low = low.astype(dtype)
        q = np.nan_to_num((groups - low.astype(np.float32)) * scale.astype(np.float32), posinf=0)
    q = q.clip(0, 2 ** bits - 1).round().astype(np.uint8)
    stands_for = q / scale.astype(np.float32) + low.astype(np.float32)
    return q, low, scale, stands_for.reshape(-1, columns)[:rows].astype(np.float32)


def main():
    folder = sys.argv[1]
    os.makedirs(folder, exist_ok=True)
    random = np.random.default_rng(1)
    expected = {}

    def save(name, array):
        array.tofile(os.path.join(folder, name))

    # By three files: 8 bits, whole groups; 4 bits in half precision, with rows that fill no group.
    for name, file, rows, columns, bits, dtype in (
            ("model.layers.0.self_attn.q_proj.weight", "layers_0_attention_wq_weight", 64, 12, 8, np.float32),
            ("model.layers.0.mlp.up_proj.weight", "layers_0_feed_forward_w3_weight", 40, 9, 4, np.float16)):
        weights = random.normal(0, 0.1, (rows, columns)).astype(np.float32)
        weights[:32, 3] = 0.25  # a group of equal weights
        q, low, scale, expected[name] = compress(weights, bits, dtype)
        save(file, q)
        save(file + "_offset", low)
        save(file + "_scale", scale)
    # In one file.
    for name, file, bits, dtype in (
            ("model.layers.0.mlp.gate_proj.weight", "layers_0_feed_forward_w1_weight", 4, np.float32),
            ("lm_head.weight", "lm_head.weight", 8, np.float16)):
        weights = random.normal(0, 0.1, (64, 7)).astype(np.float32)
        q, low, scale, expected[name] = compress(weights, bits, dtype)
        q = q.reshape(-1)
        if bits == 4:
            q = q[0::2] << 4 | q[1::2]
        with open(os.path.join(folder, file), "wb") as out:
            out.write(q.tobytes() + low.tobytes() + scale.tobytes())
    # As they are.
    for name, file, dtype in (("model.norm.weight", "norm_weight", np.float32),
                              ("model.layers.0.input_layernorm.weight", "layers.0.input_layernorm.weight", np.float16)):
        weights = random.normal(1, 0.1, 12).astype(dtype)
        save(file, weights)
        expected[name] = weights.astype(np.float32)

    header, at = {}, 0
    for name, array in expected.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "expected.safetensors"), "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for array in expected.values():
            out.write(array.tobytes())


if __name__ == "__main__":
    main()
