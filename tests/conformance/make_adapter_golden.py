"""Computes logits of small random models with LoRA adapters with Hugging Face PEFT, for adapter_logits_test. Run by hand
after each change of the cases, with peft 0.17, transformers 4.57 and torch; the test needs none of them.

    python tests/conformance/make_adapter_golden.py tests/conformance/adapters.json

Models are those of families.json. Names of tensors and adapter_config.json are what PEFT writes; a tensor is drawn as
make_family_golden.py says, of "<adapter>/<its name>".
"""
import json
import os
import sys
import tempfile

import numpy as np
import peft
import torch
from safetensors import safe_open

import make_family_golden as families

LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
CASES = {}


def case(name, base, **adapters):
    CASES[name] = (base, adapters)


case("llama", "llama", every=dict(r=4, lora_alpha=8, target_modules=LLAMA + ["lm_head"]),
     attention=dict(r=18, lora_alpha=10, use_rslora=True, target_modules=["q_proj", "v_proj"]),
     first_layer=dict(r=2, lora_alpha=4, target_modules=["down_proj"], layers_to_transform=[0]))
case("llama_tied", "llama_tied_head_dim", head=dict(r=3, lora_alpha=3, target_modules=["lm_head", "o_proj"]))
case("qwen2_biases", "qwen2", all_linear=dict(r=5, lora_alpha=7, target_modules="all-linear"))
case("gemma2", "gemma2", mlp=dict(r=4, lora_alpha=8, target_modules=["gate_proj", "down_proj"]))
case("phi3_fused", "phi3", fused=dict(r=4, lora_alpha=8, target_modules=["qkv_proj", "gate_up_proj"]),
     out=dict(r=7, lora_alpha=8, target_modules=["o_proj", "down_proj"]))
case("gpt2_conv1d", "gpt2", conv=dict(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj", "c_fc"],
                                      fan_in_fan_out=True))
case("gpt_bigcode_interleaved", "gpt_bigcode_mha", fused=dict(r=4, lora_alpha=8, target_modules=["c_attn", "c_fc"]))
case("falcon_groups", "falcon_40b", fused=dict(r=4, lora_alpha=8,
                                               target_modules=["query_key_value", "dense", "dense_4h_to_h"]))
case("mpt", "mpt", fused=dict(r=4, lora_alpha=8, target_modules=["Wqkv", "out_proj", "up_proj"]))
case("opt_350m", "opt_350m", every=dict(r=4, lora_alpha=8, target_modules=["q_proj", "fc1", "project_in",
                                                                          "project_out"]))
case("mixtral_attention", "mixtral", attention=dict(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]))


def run(base, adapter, options):
    model, _ = families.make(base)
    model = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options)).eval()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        with open(os.path.join(folder, "adapter_config.json")) as file:
            config = json.load(file)
        with safe_open(os.path.join(folder, "adapter_model.safetensors"), "pt") as file:
            # Without the copies of output layers that PEFT adds.
            shapes = {name: file.get_slice(name).get_shape() for name in file.keys() if ".lora_" in name}
    config["target_modules"] = sorted(config["target_modules"])  # a set's order changes with each run
    tensors, values = {}, {}
    for name, shape in sorted(shapes.items()):
        scale = round(0.9 / shape[1] ** 0.5, 3)
        drawn = scale * families.uniform(f"{adapter}/{name}", shape[0] * shape[1])
        tensors[name] = [shape, 0.0, scale]
        values[name] = torch.from_numpy(drawn.astype(np.float32)).view(shape)
    loaded = peft.set_peft_model_state_dict(model, values)
    assert not loaded.unexpected_keys, loaded.unexpected_keys
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([families.TOKENS]), use_cache=False).logits[0]
    return {"name": adapter, "config": config, "tensors": tensors, "logits": families.encode(logits),
            "hidden": families.encode(families.last_hidden_state(model))}, logits


def main():
    torch.set_num_threads(1)
    lines = []
    for name, (base, adapters) in CASES.items():
        results = []
        for adapter, options in adapters.items():
            result, logits = run(base, adapter, options)
            print(f"{name:24} {adapter:12} logits {logits.min():7.3f} to {logits.max():6.3f}, "
                  f"{len(result['tensors'])} tensors")
            results.append(result)
        lines.append(json.dumps({"name": name, "base": base, "adapters": results}, separators=(",", ":")))
    with open(sys.argv[1], "w") as file:
        file.write("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
