#include "models/weights/gguf_architectures.h"

#include "absl/strings/str_cat.h"

namespace espalier {
namespace {

using enum GgufWeightTransform;

// Names and transformations follow llama.cpp's convert_hf_to_gguf.py and
// gguf-py/gguf/tensor_mapping.py.
constexpr GgufName kDecoderNames[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
constexpr GgufName kGemmaNames[] = {{"token_embd", "model.embed_tokens"},
                                    {"output_norm", "model.norm", kPlusOne},
                                    {"output", "lm_head"}};
constexpr GgufName kGptNames[] = {{"token_embd", "transformer.wte"},
                                  {"position_embd", "transformer.wpe"},
                                  {"output_norm", "transformer.ln_f"},
                                  {"output", "lm_head"}};
constexpr GgufName kFalconNames[] = {{"token_embd", "transformer.word_embeddings"},
                                     {"output_norm", "transformer.ln_f"},
                                     {"output", "lm_head"}};
constexpr GgufName kMptNames[] = {{"token_embd", "transformer.wte"},
                                  {"output_norm", "transformer.norm_f"},
                                  {"output", "lm_head"}};

constexpr GgufName kLlamaLayer[] = {{"attn_norm", "input_layernorm"},
                                    {"attn_q", "self_attn.q_proj", kPermutedQuery},
                                    {"attn_k", "self_attn.k_proj", kPermutedKey},
                                    {"attn_v", "self_attn.v_proj"},
                                    {"attn_output", "self_attn.o_proj"},
                                    {"ffn_norm", "post_attention_layernorm"},
                                    {"ffn_gate", "mlp.gate_proj"},
                                    {"ffn_up", "mlp.up_proj"},
                                    {"ffn_down", "mlp.down_proj"}};
constexpr GgufName kQwenLayer[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"}};
constexpr GgufName kGemmaLayer[] = {{"attn_norm", "input_layernorm", kPlusOne},
                                    {"attn_q", "self_attn.q_proj"},
                                    {"attn_k", "self_attn.k_proj"},
                                    {"attn_v", "self_attn.v_proj"},
                                    {"attn_output", "self_attn.o_proj"},
                                    {"ffn_norm", "post_attention_layernorm", kPlusOne},
                                    {"ffn_gate", "mlp.gate_proj"},
                                    {"ffn_up", "mlp.up_proj"},
                                    {"ffn_down", "mlp.down_proj"}};
// Norms after attention and MLP too, which shifts their names.
constexpr GgufName kGemma2Layer[] = {{"attn_norm", "input_layernorm", kPlusOne},
                                     {"attn_q", "self_attn.q_proj"},
                                     {"attn_k", "self_attn.k_proj"},
                                     {"attn_v", "self_attn.v_proj"},
                                     {"attn_output", "self_attn.o_proj"},
                                     {"attn_q_norm", "self_attn.q_norm", kPlusOne},
                                     {"attn_k_norm", "self_attn.k_norm", kPlusOne},
                                     {"post_attention_norm", "post_attention_layernorm", kPlusOne},
                                     {"ffn_norm", "pre_feedforward_layernorm", kPlusOne},
                                     {"post_ffw_norm", "post_feedforward_layernorm", kPlusOne},
                                     {"ffn_gate", "mlp.gate_proj"},
                                     {"ffn_up", "mlp.up_proj"},
                                     {"ffn_down", "mlp.down_proj"}};
constexpr GgufName kPhi3Layer[] = {
    {"attn_norm", "input_layernorm"},    {"attn_qkv", "self_attn.qkv_proj"},
    {"attn_output", "self_attn.o_proj"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_up", "mlp.gate_up_proj"},      {"ffn_down", "mlp.down_proj"}};
constexpr GgufName kGpt2Layer[] = {{"attn_norm", "ln_1"},
                                   {"attn_qkv", "attn.c_attn", kTransposed},
                                   {"attn_output", "attn.c_proj", kTransposed},
                                   {"ffn_norm", "ln_2"},
                                   {"ffn_up", "mlp.c_fc", kTransposed},
                                   {"ffn_down", "mlp.c_proj", kTransposed}};
constexpr GgufName kBigCodeLayer[] = {{"attn_norm", "ln_1"},          {"attn_qkv", "attn.c_attn"},
                                      {"attn_output", "attn.c_proj"}, {"ffn_norm", "ln_2"},
                                      {"ffn_up", "mlp.c_fc"},         {"ffn_down", "mlp.c_proj"}};
constexpr GgufName kFalconLayer[] = {
    {"attn_norm", "input_layernorm"},
    {"attn_qkv", "self_attention.query_key_value", kFalconFusedQkv},
    {"attn_output", "self_attention.dense"},
    {"ffn_up", "mlp.dense_h_to_4h"},
    {"ffn_down", "mlp.dense_4h_to_h"}};
constexpr GgufName kFalconTwoNormsLayer[] = {
    {"attn_norm", "ln_mlp"},
    {"attn_norm_2", "ln_attn"},
    {"attn_qkv", "self_attention.query_key_value", kFalconFusedQkv},
    {"attn_output", "self_attention.dense"},
    {"ffn_up", "mlp.dense_h_to_4h"},
    {"ffn_down", "mlp.dense_4h_to_h"}};
constexpr GgufName kMptLayer[] = {
    {"attn_norm", "norm_1"},      {"attn_qkv", "attn.Wqkv"},     {"attn_output", "attn.out_proj"},
    {"attn_q_norm", "attn.q_ln"}, {"attn_k_norm", "attn.k_ln"},  {"ffn_norm", "norm_2"},
    {"ffn_up", "ffn.up_proj"},    {"ffn_down", "ffn.down_proj"},
};

constexpr char kModelLayers[] = "model.layers.", kHeads[] = "transformer.h.";
constexpr char kSecondNorm[] = "blk.0.attn_norm_2.weight";

constexpr GgufExpertNames kMixtralExperts = {"block_sparse_moe.gate", "block_sparse_moe.experts",
                                             "w1", "w3", "w2"};
constexpr GgufExpertNames kQwenExperts = {"mlp.gate", "mlp.experts", "gate_proj", "up_proj",
                                          "down_proj"};

// The first match is the file's.
constexpr GgufArchitecture kArchitectures[] = {
    {"llama", "LlamaForCausalLM", "llama", kModelLayers, kDecoderNames, kLlamaLayer, {}},
    {"llama", "MixtralForCausalLM", "mixtral", kModelLayers, kDecoderNames, kLlamaLayer,
     kMixtralExperts},
    {"qwen2", "Qwen2ForCausalLM", "qwen2", kModelLayers, kDecoderNames, kQwenLayer, {}},
    {"qwen3", "Qwen3ForCausalLM", "qwen3", kModelLayers, kDecoderNames, kQwenLayer, {}},
    {"qwen3moe", "Qwen3MoeForCausalLM", "qwen3_moe", kModelLayers, kDecoderNames, kQwenLayer,
     kQwenExperts},
    {"gemma", "GemmaForCausalLM", "gemma", kModelLayers, kGemmaNames, kGemmaLayer, {}},
    {"gemma2", "Gemma2ForCausalLM", "gemma2", kModelLayers, kGemmaNames, kGemma2Layer, {}},
    {"gemma3", "Gemma3ForCausalLM", "gemma3_text", kModelLayers, kGemmaNames, kGemma2Layer, {}},
    {"phi3", "Phi3ForCausalLM", "phi3", kModelLayers, kDecoderNames, kPhi3Layer, {}},
    {"gpt2", "GPT2LMHeadModel", "gpt2", kHeads, kGptNames, kGpt2Layer, {}},
    {"starcoder", "GPTBigCodeForCausalLM", "gpt_bigcode", kHeads, kGptNames, kBigCodeLayer, {}},
    {"falcon",
     "FalconForCausalLM",
     "falcon",
     kHeads,
     kFalconNames,
     kFalconTwoNormsLayer,
     {},
     kSecondNorm},
    {"falcon", "FalconForCausalLM", "falcon", kHeads, kFalconNames, kFalconLayer, {}},
    {"mpt", "MptForCausalLM", "mpt", "transformer.blocks.", kMptNames, kMptLayer, {}}};

// Distinct names of architectures that are always, or sometimes, mixtures of experts.
std::string Accepted(bool only_experts) {
  std::string accepted, last;
  for (const GgufArchitecture& a : kArchitectures) {
    if (a.name == last || (only_experts && !a.has_experts())) continue;
    last = a.name;
    absl::StrAppend(&accepted, accepted.empty() ? "" : ", ", last);
  }
  return accepted;
}

}  // namespace

absl::StatusOr<const GgufArchitecture*> FindGgufArchitecture(GgufMetadata& metadata) {
  const GgufFile& file = metadata.file();
  const int64_t experts = metadata.Int("expert_count", 0, 0);
  if (!metadata.status().ok()) return metadata.status();
  bool known = false;
  for (const GgufArchitecture& a : kArchitectures) {
    if (metadata.architecture() != a.name) continue;
    known = true;
    if (a.has_experts() == (experts > 0) &&
        (a.tensor == nullptr || file.tensors().count(a.tensor) > 0)) {
      return &a;
    }
  }
  const std::string shown = metadata.architecture().substr(0, 60);
  if (!known) {
    return absl::UnimplementedError(absl::StrCat("'", file.path(), "': general.architecture is '",
                                                 shown, "'; accepted: ", Accepted(false)));
  }
  if (experts > 0) {
    return absl::UnimplementedError(
        absl::StrCat("'", file.path(), "': ", metadata.Key("expert_count"), " is ", experts,
                     "; mixtures of experts are read of ", Accepted(true)));
  }
  metadata.Fail("expert_count", "1 or more");
  return metadata.status();
}

absl::StatusOr<GgufExperts> ReadGgufExperts(GgufMetadata& metadata) {
  // The limit of model configurations: each expert's tensors get names.
  constexpr int64_t kMost = 1 << 18;
  GgufExperts experts;
  experts.layers = metadata.Size("block_count");
  experts.count = metadata.Size("expert_count");
  experts.used = metadata.Size("expert_used_count");
  if (experts.count > 4096) metadata.Fail("expert_count", "at most 4096");
  if (experts.used > experts.count) {
    metadata.Fail("expert_used_count",
                  absl::StrCat("at most ", experts.count, ", as many as there are experts, not ",
                               experts.used));
  }
  if (experts.layers > kMost / experts.count) {
    metadata.Fail("block_count", absl::StrCat("at most ", kMost / experts.count, " with ",
                                              experts.count, " experts each"));
  }
  const auto refuse = [&](const char* name, const char* accepted) {
    metadata.Fail(absl::UnimplementedError(absl::StrCat("'", metadata.file().path(),
                                                        "': metadata '", metadata.Key(name),
                                                        "' is set; accepted: ", accepted)));
  };
  const double scale = metadata.Number("expert_weights_scale", 1);
  if (scale != 0 && scale != 1) refuse("expert_weights_scale", "0 or 1 (not scaled)");
  if (metadata.Int("expert_gating_func", 1, 0) > 1) refuse("expert_gating_func", "1 (softmax)");
  if (metadata.Int("expert_shared_count", 0, 0) != 0) refuse("expert_shared_count", "0");
  if (metadata.Int("expert_group_count", 0, 0) > 1) refuse("expert_group_count", "0 or 1");
  if (!metadata.status().ok()) return metadata.status();
  return experts;
}

GgufHfName HfNameOf(const GgufArchitecture& architecture, const std::string& name) {
  std::string rest = name, prefix;
  if (name.rfind("blk.", 0) == 0) {
    const size_t dot = name.find('.', 4);
    if (dot == std::string::npos) return {name};
    prefix = absl::StrCat(architecture.layers, name.substr(4, dot - 4), ".");
    rest = name.substr(dot + 1);
  }
  const size_t dot = rest.rfind('.');
  if (dot == std::string::npos) return {name};
  const std::string stem = rest.substr(0, dot);
  const GgufExpertNames& experts = architecture.experts;
  if (architecture.has_experts() && !prefix.empty() && stem == "ffn_gate_inp") {
    return {absl::StrCat(prefix, experts.router, rest.substr(dot))};
  }
  for (const GgufName& entry : prefix.empty() ? architecture.names : architecture.layer_names) {
    if (stem == entry.gguf) return {absl::StrCat(prefix, entry.hf, rest.substr(dot)), entry.change};
  }
  return {name};
}

}  // namespace espalier
