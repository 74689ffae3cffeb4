// Evaluates nodes of a graph on the coordinator.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/graph/graph.h"

namespace espalier {

// Evaluates `nodes` of a bound graph, operands first, and adds their results to `values`, which
// has the elements of all other inputs but constants. `training`: as in a step of training.
absl::Status EvaluateNodes(const Graph& graph, const std::vector<NodeId>& nodes, bool training,
                           std::map<ValueId, std::string>* values);

}  // namespace espalier
