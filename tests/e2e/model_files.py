"""Writes small models with random weights: folders in Hugging Face layout, GGUF files and FlexFlow's files."""
import json
import os
import struct
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "conformance"))
import tokenizer_gguf as gguf  # noqa: E402

HIDDEN, WIDE, VOCABULARY = 32, 48, 256
CONFIG = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": VOCABULARY,
          "hidden_size": HIDDEN, "intermediate_size": WIDE, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "tie_word_embeddings": True,
          "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tokenizer": "bytes"}


def weights(wide=WIDE):
    shapes = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for layer in range(2):
        p = f"model.layers.{layer}."
        shapes.update({p + "input_layernorm.weight": (HIDDEN,), p + "post_attention_layernorm.weight": (HIDDEN,),
                       p + "self_attn.q_proj.weight": (64, HIDDEN), p + "self_attn.k_proj.weight": (32, HIDDEN),
                       p + "self_attn.v_proj.weight": (32, HIDDEN), p + "self_attn.o_proj.weight": (HIDDEN, 64),
                       p + "self_attn.q_norm.weight": (16,), p + "self_attn.k_norm.weight": (16,),
                       p + "mlp.gate_proj.weight": (wide, HIDDEN), p + "mlp.up_proj.weight": (wide, HIDDEN),
                       p + "mlp.down_proj.weight": (HIDDEN, wide)})
    random = np.random.default_rng(5)
    return {name: random.normal(size=shape).astype(np.float32) / shape[-1] ** 0.5 for name, shape in shapes.items()}


MIXTURE = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 4,
           "num_experts_per_tok": 2, "tie_word_embeddings": True}


def mixture():
    """Four experts in each layer in place of the MLP."""
    tensors = {name: value for name, value in weights().items() if "mlp" not in name and "_norm" not in name}
    random = np.random.default_rng(6)
    for layer in range(2):
        p = f"model.layers.{layer}.block_sparse_moe."
        shapes = {p + "gate.weight": (4, HIDDEN)}
        for expert in range(4):
            e = f"{p}experts.{expert}."
            shapes.update({e + "w1.weight": (WIDE, HIDDEN), e + "w2.weight": (HIDDEN, WIDE), e + "w3.weight": (WIDE, HIDDEN)})
        tensors.update({name: random.normal(size=shape).astype(np.float32) / shape[-1] ** 0.5
                        for name, shape in shapes.items()})
    return tensors


def in_gguf(tensors):
    """A LLaMA's by llama.cpp's names, in its order of rows."""
    def turned(name, value):  # pairs that turn together lie beside each other
        heads = 4 if "q_proj" in name else 2
        return np.ascontiguousarray(value.reshape(heads, 2, 8, HIDDEN).swapaxes(1, 2).reshape(value.shape))
    stems = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
             "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
             "model.embed_tokens": "token_embd", "model.norm": "output_norm", "model.layers": "blk"}
    inside = {}
    for name, value in tensors.items():
        if "q_proj" in name or "k_proj" in name:
            value = turned(name, value)
        for a, b in stems.items():
            name = name.replace(a, b)
        inside[name] = value
    return inside


def in_blocks(kind, value):
    """Numbers in ggml's Q4_0 (2) or Q8_0 (8): the block's bytes, and what they mean."""
    groups = value.reshape(-1, 32)
    if kind == 8:
        scale = (np.abs(groups).max(1, keepdims=True) / 127).astype(np.float16)
        q = np.rint(groups / scale.astype(np.float32)).astype(np.int8)
        held = q.view(np.uint8)
    else:
        largest = np.take_along_axis(groups, np.abs(groups).argmax(1, keepdims=True), 1)
        scale = (largest / -8).astype(np.float16)
        q = np.clip(np.rint(groups / scale.astype(np.float32)) + 8, 0, 15).astype(np.uint8)
        held = q[:, :16] | q[:, 16:] << 4
        q = q.astype(np.int8) - 8
    data = np.concatenate([scale.view(np.uint8), held], axis=1).tobytes()
    return gguf.Blocks(kind, value.shape, data), (q * scale.astype(np.float32)).reshape(value.shape)


def flexflow(tensors):
    """By the names of FlexFlow's converter."""
    names = (("self_attn.q_proj", "attention_wq"), ("self_attn.k_proj", "attention_wk"),
             ("self_attn.v_proj", "attention_wv"), ("self_attn.o_proj", "attention_wo"),
             ("mlp.gate_proj", "feed_forward_w1"), ("mlp.down_proj", "feed_forward_w2"),
             ("mlp.up_proj", "feed_forward_w3"), ("input_layernorm", "attention_norm"),
             ("post_attention_layernorm", "ffn_norm"), ("model.embed_tokens", "tok_embeddings"), ("model.", ""), (".", "_"))
    out = {}
    for name, value in tensors.items():
        for a, b in names:
            name = name.replace(a, b)
        out[name] = value
    return out


def compressed(name, weights, bits):
    """Three files, groups of 32 rows of a column: q, minima, (2^bits - 1) / (max - min)."""
    padded = np.concatenate([weights, np.zeros((-len(weights) % 32, weights.shape[1]), np.float32)])
    groups = padded.reshape(-1, 32, weights.shape[1])
    low, high = groups.min(1, keepdims=True), groups.max(1, keepdims=True)
    scale = ((2 ** bits - 1) / (high - low)).astype(np.float32)
    return {name: ((groups - low) * scale).round().astype(np.uint8), name + "_offset": low, name + "_scale": scale}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, value in tensors.items():
        dtype = {"float32": "F32", "float16": "F16", "uint16": "BF16"}[value.dtype.name]
        header[name] = {"dtype": dtype, "shape": list(value.shape),
                        "data_offsets": [len(data), len(data) + value.nbytes]}
        data += value.tobytes()
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)


def bf16(value):
    """Nearest, ties to even, as its bits; NumPy has no such type."""
    bits = value.view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


# What each byte is called in byte-level vocabularies.
PLAIN = [*range(33, 127), *range(161, 173), *range(174, 256)]
LETTERS = {byte: chr(byte) for byte in PLAIN}
LETTERS.update({byte: chr(256 + i) for i, byte in enumerate(b for b in range(256) if b not in PLAIN)})


def write_tokenizer(folder, tokens, merges=(), added=()):
    """A byte-level BPE's tokenizer.json; `added`: ids of special tokens."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    with open(os.path.join(folder, "tokenizer.json"), "w") as file:
        json.dump({"added_tokens": [{"id": i, "content": tokens[i], "special": True, **flags} for i in added],
                   "pre_tokenizer": byte_level, "decoder": byte_level,
                   "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens)},
                             "merges": [list(m) for m in merges]}}, file)


def write_model(folder, tensors, **changes):
    """In two shards."""
    os.makedirs(folder)
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for shard, held in shards.items():
        write_safetensors(os.path.join(folder, shard), {name: tensors[name] for name in held})
    with open(os.path.join(folder, "model.safetensors.index.json"), "w") as file:
        json.dump({"weight_map": {name: shard for shard, held in shards.items() for name in held}}, file)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({**CONFIG, **changes}, file)
