// Whether a step may be run: every index of the batch within its range, every array of its length.
#pragma once

#include "absl/status/status.h"
#include "serving/runner/model_runner.h"

namespace espalier {

// InvalidArgument names the field, the index and what would be accepted.
absl::Status CheckBatch(const RunnerBatch& batch, const RunnerLimits& limits, int max_output_rows);

}  // namespace espalier
