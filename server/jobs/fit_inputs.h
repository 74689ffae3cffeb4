// Feeds columns of a dataset to graph inputs whose shapes differ by dimensions of size 1.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "ops/graph/graph.h"
#include "storage/dataset.h"

namespace espalier {

// Gives each input the shape of its column where both differ only by dimensions of size 1 behind
// the first (labels [N, 1] for an input [N]), and adds operators that restore the input's shape for
// its readers. `columns` maps inputs to columns; other differences are left for the caller to
// report. REQUIRES: `graph` is bound.
absl::Status FitInputs(const OpRegistry& registry,
                       const std::map<std::string, std::string>& columns, const Dataset& dataset,
                       Graph* graph);

}  // namespace espalier
