// Sampling: from logits to the next token, or to the most probable tokens, which is all that a
// beam-search draft needs.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "serving/sampling/distribution.h"
#include "serving/sampling/truncation.h"

namespace espalier {

// Returns the next token, at `position`: the largest logit's if greedy, else a sample, by the
// coupled noise of the request (gumbel_coupling.h) or by an independent random number. A pure
// function of its arguments. Errors as SamplingDistribution.
absl::StatusOr<int> SampleToken(absl::Span<const float> logits, const SamplingParameters& sampling,
                                bool coupled, int64_t position);

// Returns the `count` most probable tokens, best first, equals by rising id. Returns Internal for
// NaN logits.
absl::StatusOr<std::vector<TokenProbability>> TopTokens(absl::Span<const float> logits, int count);

// For coupled sampling: returns the first `count` arrivals of the exponential race at `position`
// (gumbel_coupling.h), with their probabilities given the arrival times. Errors as
// SamplingDistribution.
absl::StatusOr<std::vector<TokenProbability>> CoupledTopTokens(absl::Span<const float> logits,
                                                               int count,
                                                               const SamplingParameters& sampling,
                                                               int64_t position);

}  // namespace espalier
