"""GGUF files for tests, written by the gguf package (0.19) from PyPI: run by hand, once for each change.

    python tests/conformance/make_gguf_golden.py tests/conformance/families.json

writes tests/conformance/llama.gguf, the case "llama" of families.json as llama.cpp's converter would write it;
models/weights/testdata/blocks.gguf, which holds a tensor "x.<type>" of every type that we read and, in f32, what the
package makes of it ("y.<type>"); and tests/conformance/gguf_cases.json (by make_gguf_cases.py): other cases of
families.json in words, of which gguf_families_test makes files.
"""
import json
import sys

import gguf
import numpy as np
from make_family_golden import uniform
from make_gguf_cases import write_cases

TYPES = gguf.GGMLQuantizationType


def write_blocks(path):
    writer = gguf.GGUFWriter(path, "test")
    writer.add_uint32("test.answer", 42)
    writer.add_float64("test.half", 0.5)
    writer.add_bool("test.flag", True)
    writer.add_array("test.words", ["a", "bb", ""])
    writer.add_string("test.text", "grüße")
    x = np.random.default_rng(1).normal(size=(3, 512)).astype(np.float32)
    # Where the package only reads a type, any bits: with sane scales, which lie at these bytes.
    scales_at = {TYPES.Q4_K: (0, 2), TYPES.Q6_K: (208,), TYPES.Q5_K: (0, 2), TYPES.Q3_K: (108,), TYPES.Q2_K: (80, 82)}
    for kind in (TYPES.F32, TYPES.F16, TYPES.BF16, TYPES.Q8_0, TYPES.Q4_0, TYPES.Q4_K, TYPES.Q6_K,
                 TYPES.Q4_1, TYPES.Q5_0, TYPES.Q5_1, TYPES.Q5_K, TYPES.Q3_K, TYPES.Q2_K):
        if kind in scales_at:
            size = gguf.GGML_QUANT_SIZES[kind][1]
            data = np.random.default_rng(kind).integers(0, 256, size=(6, size), dtype=np.uint8)
            scales = np.linspace(0.01, 0.06, 6).astype(np.float16).view(np.uint8).reshape(6, 2)
            for at, values in zip(scales_at[kind], (scales, scales[::-1])):
                data[:, at:at + 2] = values
            data = data.reshape(3, 2 * size)
        else:
            data = gguf.quants.quantize(x, kind)
        writer.add_tensor("x." + kind.name, data, raw_dtype=kind)
        writer.add_tensor("y." + kind.name, gguf.quants.dequantize(data, kind).astype(np.float32).reshape(3, 512))
    finish(writer)


def permute(weight, heads):
    """As convert_hf_to_gguf.py does for q and k of LLaMA."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def write_llama(path, case):
    config = case["config"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_token_list(["<%d>" % i for i in range(config["vocab_size"])])
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config["num_hidden_layers"])
    for name, (shape, mean, scale) in case["tensors"].items():
        weight = (mean + scale * uniform(name, int(np.prod(shape)))).astype(np.float32).reshape(shape)
        if "q_proj" in name:
            weight = permute(weight, config["num_attention_heads"])
        if "k_proj" in name:
            weight = permute(weight, config["num_key_value_heads"])
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), np.ascontiguousarray(weight))
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    with open(sys.argv[1]) as file:
        cases = {case["name"]: case for case in json.load(file)}
    write_llama("tests/conformance/llama.gguf", cases["llama"])
    write_blocks("models/weights/testdata/blocks.gguf")
    write_cases("tests/conformance/gguf_cases.json", cases)


main()
