// The integers that a graph accepts in its inputs: labels of its classes, ids of its tables' rows.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/graph/graph.h"
#include "storage/dataset.h"

namespace espalier {

struct InputRange {
  IntegerRange range;
  std::string reader;  // the node, for errors
};

// Returns the ranges of each integer input that nodes read whole, by the input's name. Inputs that
// reach them by computation, or in part, are left to the kernels.
std::map<std::string, std::vector<InputRange>> IndexRanges(const OpRegistry& registry,
                                                           const Graph& graph);

// InvalidArgument naming column, example and node if a value is outside one of the ranges.
absl::Status CheckRanges(const Dataset& dataset, const Column& column,
                         const std::vector<InputRange>& ranges);

}  // namespace espalier
