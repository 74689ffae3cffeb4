// Checks a batch before a step: every index is in range, every array has its length. Returns
// InvalidArgument naming the field, the index and what would be accepted.
#pragma once

#include "absl/status/status.h"
#include "serving/runner/model_runner.h"

namespace espalier {

// InvalidArgument names the field, the index and what would be accepted.
absl::Status CheckBatch(const RunnerBatch& batch, const RunnerLimits& limits, int max_output_rows);

}  // namespace espalier
