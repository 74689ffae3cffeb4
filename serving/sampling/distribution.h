// From logits to tokens: greedy choice, the distribution that sampling options define, and a draw
// from it by one given uniform number. Pure functions; chance comes in as an argument (noise.h).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace espalier {

// Probabilities by token id; they sum to one up to rounding.
using Distribution = std::vector<double>;

struct SamplingParameters {
  double temperature = 0;  // 0: greedy
  double top_p = 1;        // (0, 1]; 1: off
  int top_k = 0;           // 0: off
  uint64_t seed = 0;
  double min_p = 0;  // [0, 1]: least probability, as a share of the most probable token's; 0: off
  double typical_p = 1;  // (0, 1]; 1: off

  bool greedy() const { return temperature == 0; }
  // Whether every token that is possible may be chosen.
  bool keeps_all() const { return top_p >= 1 && top_k <= 0 && min_p <= 0 && typical_p >= 1; }
  bool operator==(const SamplingParameters& other) const = default;
};

// InvalidArgument naming the field, its value and the values that are accepted.
absl::Status ValidateSampling(const SamplingParameters& parameters);

// The highest logit; among equals the lowest token id, so that the answer is one. Internal if a
// logit is NaN or +infinity.
absl::StatusOr<int> Argmax(const float* logits, int vocabulary);

// softmax(logits / temperature), cut one after the other, renormalised each time, to: the top_k
// most probable tokens; the smallest set of most probable tokens whose mass reaches top_p; tokens
// of at least min_p times the highest probability; the smallest set of tokens whose information is
// nearest to the entropy and whose mass reaches typical_p (locally typical sampling,
// arXiv:2202.00666). Ties are cut in favour of the lower id. For temperature 0, all mass on Argmax.
// Errors as Argmax.
absl::StatusOr<Distribution> SamplingDistribution(const float* logits, int vocabulary,
                                                  const SamplingParameters& parameters);

// Inverse of the cumulative distribution at `uniform` in [0, 1). Never a token of probability zero.
int SampleFrom(const Distribution& distribution, double uniform);

}  // namespace espalier
