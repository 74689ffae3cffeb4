// What a step of a model takes by its rows: what a tuner of speculation has to know.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "serving/runner/model_runner.h"
#include "tests/benchmarks/report.h"

namespace espalier {

// Adds a table: medians of runs of the same size, and of runs with other sizes between them, for
// each runner by its name. Writes the runners' KV slots. Errors of the runners.
absl::Status ReportStepTimes(const std::vector<std::pair<std::string, ModelRunner*>>& runners,
                             Report* report);

}  // namespace espalier
