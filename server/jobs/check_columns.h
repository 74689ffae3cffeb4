// Checks that a dataset can feed a graph.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "ops/graph/graph.h"
#include "storage/dataset.h"

namespace espalier {

// Checks that each input's column exists, has its shape and converts to its type, and that the
// values are usable: finite, and classes and rows that exist. `columns` maps inputs to columns.
// Errors name the input.
absl::Status CheckColumns(const OpRegistry& registry, const Graph& graph,
                          const std::map<std::string, std::string>& columns,
                          const Dataset& dataset);

// Checks that an example of `column` has the shape of `wanted`, and that each value converts to its
// type, as workers do it. Errors name the column, and the example.
absl::Status CheckExamples(const Dataset& dataset, const Column& column, const TensorType& wanted);

}  // namespace espalier
