// The decoder that LLaMA and related families share: RMS norms, rotary embeddings, grouped-query
// attention, gated MLPs or mixtures of them. Differences between families are data; weights have
// LLaMA's names.
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

// Mixture of experts: each row goes through the MLPs of its `chosen` experts.
struct DecoderExperts {
  int64_t count = 0, chosen = 0;
  int64_t intermediate = 0;
  bool normalized = false;  // the weights of the chosen experts are normalized to sum 1
  // Names of the weights after "model.layers.N.".
  std::string router, experts, gate, up, down;  // "mlp.gate", "mlp.experts", "gate_proj", ...
};

struct Decoder {
  CommonSizes sizes;
  int64_t intermediate = 0;
  double norm_epsilon = 1e-6;
  double norm_add = 0;  // added to norm weights: Gemma stores them minus 1
  std::string activation = "silu";
  bool qkv_bias = false, output_bias = false, mlp_bias = false;
  bool head_norms = false;  // q_norm and k_norm, per head
  bool fused = false;       // qkv_proj and gate_up_proj
  bool post_norms = false;  // Gemma 2: norms also after attention and MLP
  double embedding_scale = 1;
  double attention_scale = 0;                       // 0: 1 / sqrt(head_dim)
  double attention_softcap = 0, logit_softcap = 0;  // 0: none
  bool tied = false;
  std::vector<Rope> ropes;
  std::vector<DecoderLayer> layers;
  DecoderExperts experts;
};

// Values for fields that a family's file lacks.
struct DecoderDefaults {
  int64_t max_positions = 0;
  bool tied = false;
  double theta = 10000;
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;  // 0: hidden / heads
  double norm_epsilon = 1e-6;
  bool rope_by_layers = false;     // see RopeDefaults::layers; reads those of full attention
  int64_t original_positions = 0;  // see RopeDefaults
};

// Reads sizes, rms_norm_eps, hidden_act, rope and tie_word_embeddings under LLaMA's names, with
// equal layers.
Decoder ReadDecoder(ConfigReader& config, const DecoderDefaults& defaults);

// Reads the number of experts, whose field transformers 5 renamed, and how many each row chooses.
void ReadExpertCounts(ConfigReader& config, int64_t count, int64_t chosen, Decoder* decoder);

// Reads "sliding_window"; null is none.
int64_t ReadWindow(ConfigReader& config, int64_t otherwise);

// Reads "layer_types": layers of type "sliding_attention" get `window`, the others full attention.
// If it is absent, `is_sliding` decides.
void ReadWindows(ConfigReader& config, int64_t window, const std::vector<bool>& is_sliding,
                 Decoder* decoder);

LanguageModel ToModel(Decoder decoder);

}  // namespace espalier
