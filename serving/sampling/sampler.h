// What comes of logits where not all of them matter: the token that an answer takes, or the best
// next tokens, which is all that a draft of chosen (not drawn) tokens needs.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "serving/sampling/distribution.h"
#include "serving/sampling/truncation.h"

namespace espalier {

// The token that a sampled or greedy answer has at `position`: the largest logit's if greedy; else
// drawn, by the noise that drafts share (coupled.h) or by a draw of the request's own. A pure
// function of its arguments. Errors as SamplingDistribution.
absl::StatusOr<int> SampleToken(absl::Span<const float> logits, const SamplingParameters& sampling,
                                bool coupled, int64_t position);

// The `count` most probable tokens, best first, equals by rising id. Internal if the logits are no
// numbers.
absl::StatusOr<std::vector<TokenProbability>> TopTokens(absl::Span<const float> logits, int count);

// For a sampled request whose noise is shared (sampling/coupled.h): the first tokens of the
// race at `position`, with the chances that the clocks give them among the first few. Errors as
// SamplingDistribution.
absl::StatusOr<std::vector<TokenProbability>> CoupledTopTokens(absl::Span<const float> logits, int count,
                                                       const SamplingParameters& sampling,
                                                       int64_t position);

}  // namespace espalier
