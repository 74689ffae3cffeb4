// Rotary embeddings as config.json describes them: the rate at which each pair of a head turns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/config_reader.h"

namespace espalier {

struct Rope {
  int64_t head_dim = 0;
  double theta = 10000.0;
  // Radians per position of the first pairs of a head; those that have none stay. Empty: all pairs
  // of a head turn, by theta.
  std::vector<double> frequencies;
  // longrope's frequencies for contexts beyond `short_positions`. Hugging Face's transformers
  // choose by each sequence's length, and compute what they had kept of it again when it grows past
  // the limit. Here the longest sequence that is served decides for all, as in vLLM: K that have
  // turned stay as they are, in a cache that requests share. Served for no more than
  // `short_positions`, a model gives transformers' logits for all that is short; else for all that
  // is long.
  std::vector<double> long_frequencies;
  // dynamic's factor: beyond `short_positions` the base grows with the longest sequence, likewise
  // for all sequences alike. 0: it does not.
  double dynamic_factor = 0;
  int64_t short_positions = 0;
  double magnitude = 1;  // sines and cosines are multiplied by it
  // Positions that the model has by this scaling: linear, dynamic and yarn stretch its context.
  int64_t max_positions = 0;

  // Whether sequences beyond `short_positions` turn otherwise.
  bool by_length() const { return !long_frequencies.empty() || dynamic_factor > 0; }
};

// Those that count where sequences have up to `longest` positions.
std::vector<double> FrequenciesFor(const Rope& rope, int64_t longest);

struct RopeDefaults {
  double theta = 10000.0;
  int64_t max_positions = 0;
  // Share of a head that turns: the family reads "partial_rotary_factor" itself, of config.json.
  double partial = 1;
  std::string theta_field = "rope_theta";
  // For families whose layers do not all turn alike: "full_attention" or "sliding_attention", of
  // which "rope_parameters" may have an object each. What it has outside of them is for the former.
  std::string layers;
  // longrope's "original_max_position_embeddings" where the file lacks it; 0: max_positions.
  int64_t original_positions = 0;
};

// "rope_theta" with "rope_scaling" or "rope_parameters" (newer files): types default, linear,
// dynamic, llama3 (Llama 3.1), yarn (Peng et al. 2023), longrope (Ding et al. 2024; "su" before).
// dynamic changes nothing up to max_positions, for which it is served unless more is asked for; it
// and linear reach up to max_positions * factor, yarn up to original_max_position_embeddings *
// factor, as in vLLM, and none less than max_positions. Unimplemented for other types, and for what
// nobody here knows in "rope_parameters".
Rope ReadRope(ConfigReader& config, int64_t head_dim, const RopeDefaults& defaults);

}  // namespace espalier
