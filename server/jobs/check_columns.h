// Checks that a dataset can feed a graph.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "ops/graph/graph.h"
#include "storage/dataset.h"

namespace espalier {

// Checks that each input's column exists, has its shape and converts to its type, and that the
// values are usable. `columns` maps inputs to columns. Errors name the input.
absl::Status CheckColumns(const Graph& graph, const std::map<std::string, std::string>& columns,
                          const Dataset& dataset);

}  // namespace espalier
