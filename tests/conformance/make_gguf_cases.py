"""What llama.cpp's converter (conversion/*.py, before 2026 convert_hf_to_gguf.py) makes of cases of families.json, as
names, keys and orders of rows: those of the gguf package (0.19), not ours. make_gguf_golden.py writes them, or

    python tests/conformance/make_gguf_cases.py tests/conformance/families.json tests/conformance/gguf_cases.json

which needs neither torch nor transformers. A case says by which metadata and tensors a GGUF file holds the model of a
family's case, whose "config" may differ ("config", "without": tensors) where GGUF cannot say it, and whose tensors may
be wider ("widths": extents by those of the family's), as blocks of quantised numbers are longer than its rows. A tensor
is made of those in "from", which are stacked if there are several; "rows" says which rows it holds in which order.
"""
import json
import math
import sys

import gguf
import numpy as np

ARCH = gguf.MODEL_ARCH


class Case:
    def __init__(self, family, arch, changes=(), without=()):
        changes = dict(changes)
        widths = changes.pop("widths", {})
        self.config = {**family["config"], **changes}
        self.data = {"family": family["name"], "config": changes, "without": list(without),
                     "widths": [list(pair) for pair in widths.items()]}
        self.sources = {name: [widths.get(n, n) for n in spec[0]] for name, spec in family["tensors"].items()
                        if name not in without}
        self.writer = gguf.GGUFWriter(None, gguf.MODEL_ARCH_NAMES[arch])
        self.names = gguf.get_tensor_name_map(arch, 8)
        self.tensors = {}

    def add(self, name, sources, **how):
        assert name is not None and name not in self.tensors, (name, sources)
        self.tensors[name] = {"from": sources, **how}

    def name(self, of):
        return self.names.get_name(of, try_suffixes=(".weight", ".bias"))

    def values(self, name, values):
        self.add(name, [], values=[float(np.float32(v)) for v in values])

    def add_all(self, how=lambda name, shape: {}):
        for name, shape in self.sources.items():
            if ".experts." not in name:
                self.add(self.name(name), [name], **how(name, shape))

    def add_experts(self, count, weights, pattern, merged):
        for layer in range(self.config["num_hidden_layers"]):
            for w in weights:
                self.add(self.name(merged % (layer, w)), [pattern % (layer, e, w) for e in range(count)])

    def finish(self, name):
        entries = {key: [v.type.name, v.value] for part in self.writer.kv_data for key, v in part.items()}
        return {"name": name, **self.data, "metadata": entries, "tensors": self.tensors}


def permuted(heads):
    def rows(shape):
        return np.arange(shape[0]).reshape(heads, 2, shape[0] // heads // 2).swapaxes(1, 2).reshape(-1).tolist()
    return rows


def decoder(case, rope_dim=True):
    """TextModel.set_gguf_parameters and, with `rope_dim`, LlamaModel's."""
    config, w = case.config, case.writer
    w.add_block_count(config["num_hidden_layers"])
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_head_count_kv(config["num_key_value_heads"])
    w.add_rope_freq_base(config["rope_theta"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    experts = config.get("num_local_experts", config.get("num_experts"))
    if experts is not None:
        w.add_expert_count(experts)
        w.add_expert_used_count(config["num_experts_per_tok"])
    if config.get("head_dim") is not None:
        w.add_key_length(config["head_dim"])
        w.add_value_length(config["head_dim"])
    if rope_dim:
        w.add_vocab_size(config["vocab_size"])
        w.add_rope_dimension_count(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(scaling["factor"])
    if scaling.get("rope_type") == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(scaling["factor"])
        w.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        w.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
        w.add_rope_scaling_yarn_beta_slow(scaling["beta_slow"])


def llama(family, without=(), split_experts=False, **changes):
    case = Case(family, ARCH.LLAMA, changes, without)
    decoder(case)
    config = case.config
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]

    def how(name, shape):
        if "q_proj" in name:
            return {"rows": permuted(heads)(shape)}
        return {"rows": permuted(kv_heads)(shape)} if "k_proj" in name else {}

    case.add_all(how)
    pattern = "model.layers.%d.block_sparse_moe.experts.%d.%s.weight"
    count = config.get("num_local_experts", 0)
    if split_experts:  # until April 2024 (llama.cpp's pull request 6387)
        for layer in range(config["num_hidden_layers"]):
            for e in range(count):
                for w, part in (("w1", "gate"), ("w2", "down"), ("w3", "up")):
                    case.add(f"blk.{layer}.ffn_{part}.{e}.weight", [pattern % (layer, e, w)])
    elif count:
        case.add_experts(count, ("w1", "w2", "w3"), pattern, "layers.%d.feed_forward.experts.%s.weight")
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "llama3":
        dim, context = config["head_dim"], scaling["original_max_position_embeddings"]
        factors = []
        for i in range(0, dim, 2):
            wave = 2 * math.pi * config["rope_theta"] ** (i / dim)
            low, high, factor = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["factor"]
            smooth = (context / wave - low) / (high - low)
            kept = 1 / ((1 - smooth) / factor + smooth)
            factors.append(1 if wave < context / high else factor if wave > context / low else kept)
        case.values("rope_freqs.weight", factors)
    return case


def qwen(family, arch, **changes):
    case = Case(family, arch, changes)
    decoder(case, rope_dim=False)
    if arch == ARCH.QWEN3MOE:
        case.writer.add_expert_feed_forward_length(case.config["moe_intermediate_size"])
        case.add_experts(case.config["num_experts"], ("gate_proj", "up_proj", "down_proj"),
                         "model.layers.%d.mlp.experts.%d.%s.weight", "model.layers.%d.mlp.experts.%s.weight")
    case.add_all()
    return case


def gemma(family, arch, **changes):
    case = Case(family, arch, changes)
    config, w = case.config, case.writer
    decoder(case, rope_dim=False)
    if arch == ARCH.GEMMA2:
        w.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    if config.get("final_logit_softcapping"):
        w.add_final_logit_softcapping(config["final_logit_softcapping"])
    if arch != ARCH.GEMMA:
        w.add_sliding_window(config["sliding_window"])
    if arch == ARCH.GEMMA3:
        w.add_rope_freq_base_swa(config["rope_local_base_freq"])
        full = [t == "full_attention" for t in config["layer_types"]]
        if full != [(i + 1) % 6 == 0 for i in range(len(full))]:
            w.add_sliding_window_pattern(full.index(True) + 1 if full.index(True) else [not f for f in full])
    case.add_all(lambda name, shape: {"add": 1} if name.endswith("norm.weight") else {})
    return case


def phi3(family, **changes):
    case = Case(family, ARCH.PHI3, changes)
    config, w = case.config, case.writer
    w.add_context_length(config["max_position_embeddings"])
    w.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_block_count(config["num_hidden_layers"])
    w.add_head_count(config["num_attention_heads"])
    w.add_head_count_kv(config["num_key_value_heads"])
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    turned = int(config["partial_rotary_factor"] * config["hidden_size"]) // config["num_attention_heads"]
    w.add_rope_dimension_count(turned)
    w.add_rope_freq_base(config["rope_theta"])
    w.add_sliding_window(config["sliding_window"] or 0)
    scaling = config["rope_scaling"]
    if scaling is not None:
        scale = config["max_position_embeddings"] / config["original_max_position_embeddings"]
        w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        w.add_rope_scaling_attn_factors(
            math.sqrt(1 + math.log(scale) / math.log(config["original_max_position_embeddings"])) if scale > 1 else 1.0)
        case.values("rope_factors_long.weight", scaling["long_factor"])
        case.values("rope_factors_short.weight", scaling["short_factor"])
    case.add_all()
    return case


def gpt(family, arch):
    case = Case(family, arch)
    config, w = case.config, case.writer
    w.add_block_count(config["n_layer"])
    w.add_context_length(config["n_positions"])
    w.add_embedding_length(config["n_embd"])
    w.add_feed_forward_length(4 * config["n_embd"])
    w.add_head_count(config["n_head"])
    if arch == ARCH.STARCODER:
        w.add_head_count_kv(1)
    w.add_layer_norm_eps(config["layer_norm_epsilon"])
    matrices = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight") if arch == ARCH.GPT2 else ()
    case.add_all(lambda name, shape: {"transposed": True} if name.endswith(matrices) else {})
    return case


def falcon(family, kv_heads, without=(), **changes):
    case = Case(family, ARCH.FALCON, changes, without)
    config, w = case.config, case.writer
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    w.add_context_length(2048)
    w.add_tensor_data_layout("jploski")
    w.add_embedding_length(hidden)
    w.add_feed_forward_length(4 * hidden)
    w.add_block_count(config["num_hidden_layers"])
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_layer_norm_eps(config["layer_norm_epsilon"])

    def how(name, shape):
        if "query_key_value" not in name:
            return {}
        groups = np.arange(shape[0]).reshape(kv_heads, heads // kv_heads + 2, hidden // heads)
        parts = groups[:, :-2], groups[:, [-2]], groups[:, [-1]]
        return {"rows": np.concatenate([part.reshape(-1) for part in parts]).tolist()}

    case.add_all(how)
    return case


def mpt(family, **changes):
    case = Case(family, ARCH.MPT, changes)
    config, w = case.config, case.writer
    attention = config["attn_config"]
    w.add_context_length(config["max_seq_len"])
    w.add_embedding_length(config["d_model"])
    w.add_block_count(config["n_layers"])
    w.add_feed_forward_length(4 * config["d_model"])
    w.add_head_count(config["n_heads"])
    w.add_layer_norm_eps(1e-5)
    if attention["clip_qkv"] is not None:
        w.add_clamp_kqv(attention["clip_qkv"])
    w.add_max_alibi_bias(float(attention["alibi_bias_max"]))
    case.add_all()
    return case


def biases(family):
    return [name for name in family["tensors"] if name.endswith(".bias") and "ln_" not in name]


def write_cases(path, families):
    f = families
    clipped = {**f["mpt_clip_scale_untied"]["config"]["attn_config"], "softmax_scale": None}
    wide = {"widths": {24: 32, 40: 64, 12: 16, 20: 32}, "hidden_size": 32, "intermediate_size": 64}
    listed = ["full_attention", "sliding_attention", "sliding_attention"]
    cases = {
        "wide_llama": llama(f["llama"], head_dim=8, **wide),
        "wide_mixtral": llama(f["mixtral"], **wide),
        "wide_qwen3moe": qwen(f["qwen3_moe"], ARCH.QWEN3MOE, moe_intermediate_size=32, **wide),
        "mixtral": llama(f["mixtral"]),
        "mixtral_one_tensor_for_each_expert": llama(f["mixtral"], split_experts=True),
        "mixtral_one_expert": llama(f["mixtral_window_one_expert"], sliding_window=None),
        "qwen3moe": qwen(f["qwen3_moe"], ARCH.QWEN3MOE),
        "llama_biases": llama(f["llama_biases"]),
        "llama_tied_head_dim": llama(f["llama_tied_head_dim"]),
        "llama_linear": llama(f["llama_linear"]),
        "llama_yarn": llama(f["llama_yarn"]),
        "llama_llama3": llama(f["llama_llama3"]),
        "mistral": llama(f["mistral"]),
        "qwen2": qwen(f["qwen2"], ARCH.QWEN2),
        "qwen3": qwen(f["qwen3"], ARCH.QWEN3),
        "gemma": gemma(f["gemma"], ARCH.GEMMA),
        "gemma2": gemma(f["gemma2"], ARCH.GEMMA2, query_pre_attn_scalar=8),
        "gemma3": gemma(f["gemma3"], ARCH.GEMMA3, query_pre_attn_scalar=8),
        "gemma3_layers_listed": gemma(f["gemma3"], ARCH.GEMMA3, query_pre_attn_scalar=8, layer_types=listed),
        "gemma3_linear_cap": gemma(f["gemma3_linear_cap"], ARCH.GEMMA3, query_pre_attn_scalar=8),
        "phi3": phi3(f["phi3"]),
        "phi3_window_partial": phi3(f["phi3_window_partial"]),
        "phi3_longrope_long": phi3(f["phi3_longrope_long"]),
        "phi3_longrope_short": phi3(f["phi3_longrope_short"]),
        "gpt2": gpt(f["gpt2"], ARCH.GPT2),
        "starcoder": gpt(f["gpt_bigcode_mqa"], ARCH.STARCODER),
        "falcon_7b": falcon(f["falcon_7b"], 1),
        "falcon_40b": falcon(f["falcon_40b"], 2, biases(f["falcon_40b"]), bias=False),
        "mpt": mpt(f["mpt"]),
        "mpt_clip_untied": mpt(f["mpt_clip_scale_untied"], attn_config=clipped),
        "mpt_six_heads": mpt(f["mpt_six_heads"]),
        "mpt_qk_ln": mpt(f["mpt_qk_ln"]),
    }
    with open(path, "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(case.finish(name)) for name, case in cases.items()) + "\n]\n")


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        write_cases(sys.argv[2], {case["name"]: case for case in json.load(file)})
