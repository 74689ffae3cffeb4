// Logits computed without any cached K and V.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "serving/runner/model_runner.h"

namespace espalier {

// Returns the logits after `tokens`, computed from scratch in slots 0, 1, ... Errors are the
// runner's.
absl::StatusOr<std::vector<float>> UncachedLogits(ModelRunner& runner,
                                                  const std::vector<int>& tokens);

}  // namespace espalier
