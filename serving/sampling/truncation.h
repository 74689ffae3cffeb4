// What top_k, top_p, min_p and typical_p leave of a vocabulary: few tokens of 10^5, found without
// writing down the probabilities of all.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "serving/sampling/distribution.h"

namespace espalier {

struct TokenProbability {
  int token = 0;
  double probability = 0;
};

// The tokens of SamplingDistribution that are not zero, by rising id. Of a way that keeps all, all
// that are possible. Errors as Argmax.
absl::StatusOr<std::vector<TokenProbability>> PossibleTokens(const float* logits, int vocabulary,
                                                        const SamplingParameters& parameters);

}  // namespace espalier
