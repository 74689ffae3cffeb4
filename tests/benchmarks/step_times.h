// Step times by number of rows, the input of speculation tuning.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "serving/runner/model_runner.h"
#include "tests/benchmarks/report.h"

namespace espalier {

// Adds a table with, per named runner, median step times of runs of one size, and of runs
// alternating with other sizes. Overwrites the runners' KV slots. Returns errors of the runners.
absl::Status ReportStepTimes(const std::vector<std::pair<std::string, ModelRunner*>>& runners,
                             Report* report);

}  // namespace espalier
