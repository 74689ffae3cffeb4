// Makes the outputs of a session's graph results that are computed and kept.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/graph/graph.h"

namespace espalier {

// Adds the tensors `names` to the named outputs, marks the graph (kResultsMetadata), and drops the
// notes that outputs are not computed. InvalidArgument names a tensor that no node computes, or one
// whose name is another output's.
absl::Status KeepResults(const std::vector<std::string>& names, Graph* graph,
                         std::vector<std::string>* notes);

}  // namespace espalier
