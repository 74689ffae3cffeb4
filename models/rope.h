// Rotary position embeddings (RoPE) from config.json: the frequency of each pair of a head.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config_reader.h"

namespace espalier {

struct Rope {
  int64_t head_dim = 0;
  double theta = 10000.0;
  // Radians per position of the first pairs of a head; pairs without an entry are not rotated.
  // Empty: all pairs rotate by theta.
  std::vector<double> frequencies;
  // longrope's frequencies for contexts beyond `short_positions`. Hugging Face's transformers
  // choose by the length of each sequence and recompute the cache when a sequence grows past the
  // limit. Here, as in vLLM, the longest sequence to be served decides for all, because requests
  // share rotated K in the cache. Served for at most `short_positions` the model matches
  // transformers on short sequences, otherwise on long ones.
  std::vector<double> long_frequencies;
  // The factor of dynamic scaling: beyond `short_positions` the base grows with the longest
  // sequence to be served, for all sequences alike. 0: no dynamic scaling.
  double dynamic_factor = 0;
  int64_t short_positions = 0;
  double magnitude = 1;  // factor of sines and cosines
  // Positions of the model under this scaling: linear, dynamic and yarn extend its context.
  int64_t max_positions = 0;

  // Whether sequences beyond `short_positions` use other frequencies.
  bool by_length() const { return !long_frequencies.empty() || dynamic_factor > 0; }
};

// Returns the frequencies for sequences of up to `longest` positions.
std::vector<double> FrequenciesFor(const Rope& rope, int64_t longest);

struct RopeDefaults {
  double theta = 10000.0;
  int64_t max_positions = 0;
  // Fraction of a head that is rotated. The family reads "partial_rotary_factor" of config.json
  // itself.
  double partial = 1;
  std::string theta_field = "rope_theta";
  // For families with different ropes per layer type: "full_attention" or "sliding_attention".
  // "rope_parameters" may have an object for each; fields outside of them are for full attention.
  std::string layers;
  // longrope's "original_max_position_embeddings" if the file lacks it; 0: max_positions.
  int64_t original_positions = 0;
};

// Reads "rope_theta" with "rope_scaling" or "rope_parameters" (newer files). Types: default,
// linear, dynamic, llama3 (Llama 3.1), yarn (Peng et al. 2023), longrope (Ding et al. 2024;
// formerly "su"). dynamic changes nothing up to max_positions, its default length. linear and
// dynamic reach up to max_positions * factor and yarn up to original_max_position_embeddings *
// factor, as in vLLM, but none less than max_positions. Unimplemented for other types and for
// unknown fields of "rope_parameters".
Rope ReadRope(ConfigReader& config, int64_t head_dim, const RopeDefaults& defaults);

}  // namespace espalier
