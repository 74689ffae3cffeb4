// The decoder that LLaMA and its kin share: RMS norms, rotary embeddings, grouped heads, gated MLPs
// or a mixture of them. What differs between families is data here; names of weights are LLaMA's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/family.h"

namespace espalier {

struct DecoderLayer {
  int rope = 0;        // index into Decoder::ropes
  int64_t window = 0;  // 0: all keys
  bool experts = false;
};

// Mixtures of experts: each row goes through the MLPs of its `chosen` experts.
struct DecoderExperts {
  int64_t count = 0, chosen = 0;
  int64_t intermediate = 0;
  bool normalized = false;  // the weights of the chosen ones add up to 1
  // Names of the weights after "model.layers.N.".
  std::string router, experts, gate, up, down;  // "mlp.gate", "mlp.experts", "gate_proj", ...
};

struct Decoder {
  CommonSizes sizes;
  int64_t intermediate = 0;
  double norm_epsilon = 1e-6;
  double norm_add = 0;  // Gemma keeps norms' weights minus 1
  std::string activation = "silu";
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  bool head_norms = false;  // q_norm and k_norm, of each head
  bool fused = false;       // qkv_proj and gate_up_proj
  bool post_norms = false;  // Gemma 2: norms behind attention and MLP too
  double embedding_scale = 1;
  double attention_scale = 0;                       // 0: 1 / sqrt(head_dim)
  double attention_softcap = 0, logit_softcap = 0;  // 0: none
  bool tied = false;
  std::vector<Rope> ropes;
  std::vector<DecoderLayer> layers;
  DecoderExperts experts;
};

// What a family has where its file lacks the field.
struct DecoderDefaults {
  int64_t max_positions = 0;
  bool tied = false;
  double theta = 10000;
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;  // 0: hidden / heads
  double norm_epsilon = 1e-6;
  bool rope_by_layers = false;     // see RopeDefaults::layers; what is read is of full attention
  int64_t original_positions = 0;  // see RopeDefaults
};

// Sizes, rms_norm_eps, hidden_act, rope and tie_word_embeddings, as LLaMA's files have them, and
// layers of one kind.
Decoder ReadDecoder(ConfigReader& config, const DecoderDefaults& defaults);

// "sliding_window"; null is none.
int64_t ReadWindow(ConfigReader& config, int64_t otherwise);

// "layer_types", if it is there: layers of type "sliding_attention" get `window`, the others see
// everything; where it is missing, `is_sliding` says which.
void ReadWindows(ConfigReader& config, int64_t window, const std::vector<bool>& is_sliding,
                 Decoder* decoder);

LanguageModel ToModel(Decoder decoder);

}  // namespace espalier
