// The best next tokens by an SSM's logits, which is all that a draft of chosen (not drawn) tokens
// needs of them.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "serving/sampling/distribution.h"

namespace espalier {

struct Choice {
  int token = 0;
  double probability = 0;
};

// The `count` most probable tokens, best first, equals by rising id. Internal if the logits are no
// numbers.
absl::StatusOr<std::vector<Choice>> TopChoices(absl::Span<const float> logits, int count);

// For a sampled request whose noise is shared (sampling/shared_noise.h): the first tokens of the
// race at `position`, with the chances that the clocks give them, as far as the most probable 64
// tokens take part. Errors as TopChoices.
absl::StatusOr<std::vector<Choice>> SharedChoices(absl::Span<const float> logits, int count,
                                                  const SamplingParameters& sampling,
                                                  int64_t position);

}  // namespace espalier
