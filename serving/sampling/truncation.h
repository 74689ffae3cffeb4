// The tokens that top_k, top_p, min_p and typical_p keep: few of a vocabulary of 10^5, found
// without computing the probabilities of all.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "serving/sampling/distribution.h"

namespace espalier {

struct TokenProbability {
  int token = 0;
  double probability = 0;
};

// Returns the tokens of SamplingDistribution with positive probability, by rising id. If nothing is
// cut, all tokens with positive probability. Errors as Argmax.
absl::StatusOr<std::vector<TokenProbability>> PossibleTokens(const float* logits, int vocabulary,
                                                             const SamplingParameters& parameters);

}  // namespace espalier
