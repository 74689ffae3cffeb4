// From logits to tokens: greedy choice, the distribution that sampling parameters define, and a
// sample from it for a given uniform number. Pure functions; randomness is an argument
// (counter_rng.h).
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
  double min_p = 0;      // [0, 1]: least probability, relative to the most probable token's; 0: off
  double typical_p = 1;  // (0, 1]; 1: off

  bool greedy() const { return temperature == 0; }
  // True if no token with positive probability is cut.
  bool keeps_all() const { return top_p >= 1 && top_k <= 0 && min_p <= 0 && typical_p >= 1; }
  bool operator==(const SamplingParameters& other) const = default;
};

// Returns InvalidArgument naming the field, its value and the accepted values.
absl::Status ValidateSampling(const SamplingParameters& parameters);

// Returns the token with the highest logit, the lowest id among equals. Returns Internal if a logit
// is NaN or +infinity.
absl::StatusOr<int> Argmax(const float* logits, int vocabulary);

// Returns softmax(logits / temperature), cut and renormalized in this order to: the top_k most
// probable tokens; the smallest set of most probable tokens whose mass reaches top_p; tokens of at
// least min_p times the highest probability; the smallest set of tokens whose information is
// nearest to the entropy and whose mass reaches typical_p (locally typical sampling,
// arXiv:2202.00666). Ties keep the lower id. For temperature 0, all mass is on Argmax. Errors as
// Argmax.
absl::StatusOr<Distribution> SamplingDistribution(const float* logits, int vocabulary,
                                                  const SamplingParameters& parameters);

// Returns the inverse of the cumulative distribution at `uniform` in [0, 1). Never returns a token
// of probability zero.
int SampleFrom(const Distribution& distribution, double uniform);

}  // namespace espalier
