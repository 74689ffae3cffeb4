"""Computes logits of small random Hugging Face models for family_logits_test. Run by hand after each change of the cases,
with transformers 4.57 and torch; the test needs neither.

    python tests/conformance/make_family_golden.py tests/conformance/families.json
    python tests/conformance/make_family_golden.py --hidden tests/conformance/hidden_states.json

With transformers 5 only the configurations are written, for family_configs_test:

    python tests/conformance/make_family_golden.py --configs tests/conformance/families_transformers5.json

Weights are not stored: element i of a tensor is mean + scale * u, where SplitMix64 (Steele et al. 2014) computes u in
[-1, 1) from the tensor's name and i, here and in the test.
"""
import base64
import json
import math
import sys

import numpy as np
import torch
import transformers as hf

TOKENS = [3, 14, 1, 5, 9, 2, 6, 5, 3, 11, 8, 9, 7, 0, 13, 2, 10, 4]
VOCABULARY = 17


def uniform(name, count):
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x100000001B3) % (1 << 64)
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(40)).astype(np.float64) / (1 << 23) - 1


def distribution(name, shape, gemma):
    """Logits of order 1, attention that prefers some keys, norms and biases that matter."""
    if name.endswith(".bias"):
        return 0.0, 0.3
    if len(shape) == 1:
        return (0.0 if gemma else 1.0), 0.4
    if any(part in name for part in ("embed", "wte", "wpe")):
        return 0.0, 0.7
    fan_in = shape[0] if "Conv1D" in name else shape[1]
    sharper = 1.6 if any(part in name for part in ("q_proj", "k_proj", "qkv", "query_key", "c_attn")) else 1.0
    return 0.0, round(sharper * math.sqrt(3 / fan_in), 3)


CASES = {}


def case(name, config, architecture=None, max_positions=0, patch=None, **options):
    assert name not in CASES
    CASES[name] = (config, architecture, max_positions, patch, options)


SMALL = dict(vocab_size=VOCABULARY, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
             pad_token_id=None)


def llama(name, **changes):
    case(name, hf.LlamaConfig(**{**SMALL, **changes}))


llama("llama")
llama("llama_heads_not_grouped", num_key_value_heads=4, rms_norm_eps=1e-3, rope_theta=500.0)
llama("llama_biases", attention_bias=True, mlp_bias=True)
llama("llama_tied_head_dim", tie_word_embeddings=True, head_dim=10)
llama("llama_gelu", hidden_act="gelu")
llama("llama_linear", rope_scaling={"rope_type": "linear", "factor": 3.0})
case("llama_dynamic", hf.LlamaConfig(**SMALL, rope_scaling={"rope_type": "dynamic", "factor": 4.0}), max_positions=64)
llama("llama_llama3", head_dim=16, rope_theta=200.0,
      rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 32})
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4.0, "beta_slow": 0.5}
llama("llama_yarn", head_dim=16, rope_theta=100.0, rope_scaling=YARN)
llama("llama_yarn_attention", head_dim=16, rope_theta=100.0, rope_scaling={**YARN, "attention_factor": 1.3})
llama("llama_yarn_mscale", head_dim=16, rope_theta=100.0,
      rope_scaling={**YARN, "mscale": 1.2, "mscale_all_dim": 0.7, "truncate": False})

case("qwen2", hf.Qwen2Config(**SMALL, tie_word_embeddings=True, rope_theta=1e6))
case("qwen2_window", hf.Qwen2Config(**{**SMALL, "num_hidden_layers": 3}, use_sliding_window=True, sliding_window=5,
                                    max_window_layers=1))
case("qwen3", hf.Qwen3Config(**SMALL, head_dim=8))
case("qwen3_bias_window", hf.Qwen3Config(**SMALL, head_dim=8, attention_bias=True, use_sliding_window=True,
                                         sliding_window=6, max_window_layers=0))
case("mistral", hf.MistralConfig(**SMALL, sliding_window=None, head_dim=10))
case("mistral_window", hf.MistralConfig(**SMALL, sliding_window=7))

case("gemma", hf.GemmaConfig(**SMALL, head_dim=8, hidden_act="gelu_pytorch_tanh"))
case("gemma2", hf.Gemma2Config(**SMALL, head_dim=8, query_pre_attn_scalar=12, sliding_window=5,
                               attn_logit_softcapping=2.0, final_logit_softcapping=3.0))
case("gemma2_bias_no_caps", hf.Gemma2Config(**SMALL, head_dim=8, attention_bias=True, attn_logit_softcapping=None,
                                            final_logit_softcapping=None, sliding_window=5,
                                            layer_types=["full_attention", "sliding_attention"]))
case("gemma3", hf.Gemma3TextConfig(**{**SMALL, "num_hidden_layers": 3}, head_dim=8, query_pre_attn_scalar=10,
                                   sliding_window=6, sliding_window_pattern=3, rope_theta=5000.0,
                                   rope_local_base_freq=50.0))
case("gemma3_linear_cap", hf.Gemma3TextConfig(**SMALL, head_dim=8, sliding_window=4, final_logit_softcapping=2.5,
                                              layer_types=["sliding_attention", "full_attention"],
                                              rope_scaling={"rope_type": "linear", "factor": 8.0}))

case("phi3", hf.Phi3Config(**SMALL))
case("phi3_window_partial", hf.Phi3Config(**{**SMALL, "num_attention_heads": 2}, sliding_window=6,
                                          partial_rotary_factor=0.5))
FACTORS = {"type": "longrope", "short_factor": [1.0, 1.1, 1.3], "long_factor": [2.0, 3.0, 5.0]}
case("phi3_longrope_long", hf.Phi3Config(**SMALL, original_max_position_embeddings=12, rope_scaling=dict(FACTORS)))
case("phi3_longrope_short", hf.Phi3Config(**SMALL, original_max_position_embeddings=32, rope_scaling=dict(FACTORS)),
     max_positions=32)

OPT = dict(vocab_size=VOCABULARY, hidden_size=24, ffn_dim=40, num_hidden_layers=2, num_attention_heads=4,
           max_position_embeddings=64, word_embed_proj_dim=24, bos_token_id=None, eos_token_id=None, pad_token_id=None)
case("opt", hf.OPTConfig(**OPT))
case("opt_350m", hf.OPTConfig(**{**OPT, "word_embed_proj_dim": 12}, do_layer_norm_before=False))
case("opt_no_final_norm", hf.OPTConfig(**OPT, _remove_final_layer_norm=True, activation_function="gelu"))
case("opt_galactica", hf.OPTConfig(**OPT, enable_bias=False, layer_norm_elementwise_affine=False,
                                   tie_word_embeddings=False))

FALCON = dict(vocab_size=VOCABULARY, hidden_size=24, num_hidden_layers=2, num_attention_heads=3,
              max_position_embeddings=64, bos_token_id=None, eos_token_id=None)
case("falcon_7b", hf.FalconConfig(**FALCON))
case("falcon_40b", hf.FalconConfig(**{**FALCON, "num_attention_heads": 6}, new_decoder_architecture=True,
                                   num_kv_heads=2, bias=True))
case("falcon_11b", hf.FalconConfig(**{**FALCON, "num_attention_heads": 6}, new_decoder_architecture=True,
                                   num_kv_heads=3, num_ln_in_parallel_attn=1, ffn_hidden_size=36,
                                   rope_scaling={"rope_type": "linear", "factor": 2.0}))
case("falcon_rw", hf.FalconConfig(**FALCON, multi_query=False, parallel_attn=False, alibi=True, bias=True))
case("falcon_rw_parallel_untied", hf.FalconConfig(**{**FALCON, "num_attention_heads": 4}, multi_query=False,
                                                  alibi=True, tie_word_embeddings=False))

GPT = dict(vocab_size=VOCABULARY, n_embd=24, n_layer=2, n_head=4, n_positions=64, bos_token_id=None,
           eos_token_id=None)
case("gpt_bigcode_mqa", hf.GPTBigCodeConfig(**GPT))
case("gpt_bigcode_mha", hf.GPTBigCodeConfig(**GPT, multi_query=False, n_inner=36, scale_attn_weights=False,
                                            activation_function="gelu"))
case("gpt2", hf.GPT2Config(**GPT))
case("gpt2_by_depth", hf.GPT2Config(**GPT, n_inner=36, scale_attn_by_inverse_layer_idx=True,
                                    tie_word_embeddings=False))


def mpt(name, attention=None, heads=4, patch=None, **changes):
    config = hf.MptConfig(vocab_size=VOCABULARY, d_model=24, n_heads=heads, n_layers=2, max_seq_len=64,
                          attn_config=attention or {}, **changes)
    case(name, config, patch=patch)


class QkLayerNorm(torch.nn.Module):
    """MPT's own code normalises all heads of q, and of k, together; Hugging Face's leaves it out."""

    def __init__(self, inner, q_ln, k_ln):
        super().__init__()
        self.weight, self.q_ln, self.k_ln = inner.weight, q_ln, k_ln

    def forward(self, x):
        q, k, v = torch.nn.functional.linear(x, self.weight).chunk(3, -1)
        return torch.cat([self.q_ln(q), self.k_ln(k), v], -1)


def add_qk_ln(model):
    for block in model.transformer.blocks:
        for name in ("q_ln", "k_ln"):
            norm = torch.nn.LayerNorm(24)
            norm.bias = None
            block.attn.add_module(name, norm)


def use_qk_ln(model):
    for block in model.transformer.blocks:
        block.attn.Wqkv = QkLayerNorm(block.attn.Wqkv, block.attn.q_ln, block.attn.k_ln)


mpt("mpt")
mpt("mpt_clip_scale_untied", {"clip_qkv": 1.1, "softmax_scale": 0.2}, tie_word_embeddings=False)
mpt("mpt_six_heads", heads=6)
mpt("mpt_qk_ln", {"qk_ln": True}, patch=(add_qk_ln, use_qk_ln))

case("mixtral", hf.MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2))
case("mixtral_window_one_expert", hf.MixtralConfig(**SMALL, num_local_experts=3, num_experts_per_tok=1,
                                                   sliding_window=5))
QWEN_MOE = dict(**SMALL, head_dim=8, moe_intermediate_size=20, num_experts=5, num_experts_per_tok=3)
case("qwen3_moe", hf.Qwen3MoeConfig(**QWEN_MOE, norm_topk_prob=True))
case("qwen3_moe_sparse_step", hf.Qwen3MoeConfig(**{**QWEN_MOE, "num_hidden_layers": 4}, norm_topk_prob=False,
                                                decoder_sparse_step=2, mlp_only_layers=[3], attention_bias=True,
                                                use_sliding_window=True, sliding_window=6))


def make(name):
    """The model with its weights, and how they were drawn: {name: [shape, mean, scale]}."""
    config, _, _, patch, _ = CASES[name]
    # Falcon's eager code adds ALiBi twice, once in its mask.
    attention = "sdpa" if getattr(config, "alibi", False) else "eager"
    with hf.modeling_utils.no_init_weights():  # which fails for norms without weights
        model = hf.AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval().float()
    model.tie_weights()
    if patch:
        patch[0](model)
    gemma = name.startswith("gemma")
    tensors = {}
    with torch.no_grad():
        for tensor, parameter in model.named_parameters():  # tied ones once
            shape = list(parameter.shape)
            transposed = "Conv1D" if name.startswith("gpt2") and len(shape) == 2 and ".h." in tensor else ""
            mean, scale = distribution(tensor + transposed, shape, gemma)
            values = (mean + scale * uniform(tensor, parameter.numel())).astype(np.float32)
            parameter.copy_(torch.from_numpy(values).view(shape))
            tensors[tensor] = [shape, mean, scale]
        if patch:
            patch[1](model)
    return model, tensors


def encode(values):
    assert torch.isfinite(values).all()
    return base64.b64encode(values.numpy().astype("<f4").tobytes()).decode()


def last_hidden_state(model):
    """Of the last token, as the base model returns it; `model` may be PEFT's."""
    with torch.no_grad():
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        base = inner.model if hasattr(inner, "model") else inner.transformer
        return base(torch.tensor([TOKENS]), use_cache=False).last_hidden_state[0, -1]


def run(name):
    config, _, max_positions, _, _ = CASES[name]
    model, tensors = make(name)
    with torch.no_grad():
        logits = model(torch.tensor([TOKENS]), use_cache=False).logits[0]
    written = json.loads(config.to_json_string())
    written["architectures"] = [type(model).__name__]
    for noise in ("transformers_version", "_attn_implementation_autoset", "initializer_range", "use_cache", "dtype",
                  "attn_implementation"):
        written.pop(noise, None)
    return {"name": name, "config": written, "max_positions": max_positions, "tokens": TOKENS, "tensors": tensors,
            "logits": encode(logits)}


def written_config(name):
    """As this version of transformers saves it."""
    config = CASES[name][0]
    written = json.loads(config.to_json_string())
    written["architectures"] = [hf.AutoModelForCausalLM._model_mapping[type(config)].__name__]
    return f"{json.dumps(name)}:{json.dumps(written, separators=(',', ':'), sort_keys=True)}"


def main():
    torch.set_num_threads(1)
    if sys.argv[1] == "--configs":
        with open(sys.argv[2], "w") as file:
            file.write("{\n" + ",\n".join(written_config(name) for name in CASES) + "\n}\n")
        return
    if sys.argv[1] == "--hidden":
        states = {name: encode(last_hidden_state(make(name)[0])) for name in CASES}
        with open(sys.argv[2], "w") as file:
            json.dump(states, file, indent=0)
            file.write("\n")
        return
    chosen = sys.argv[2:] or list(CASES)
    lines = []
    for name in chosen:
        result = run(name)
        logits = np.frombuffer(base64.b64decode(result["logits"]), "<f4")
        print(f"{name:28} logits {logits.min():7.3f} to {logits.max():6.3f}, {len(result['tensors'])} tensors")
        lines.append(json.dumps(result, separators=(",", ":")))
    with open(sys.argv[1], "w") as file:
        file.write("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
