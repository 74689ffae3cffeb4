// What a model says without anything that was computed before.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "serving/runner/model_runner.h"

namespace espalier {

// Logits after `tokens` on a cache that holds nothing of them: slots from 0 on. Errors are the
// runner's.
absl::StatusOr<std::vector<float>> UncachedLogits(ModelRunner& runner, const std::vector<int>& tokens);

}  // namespace espalier
