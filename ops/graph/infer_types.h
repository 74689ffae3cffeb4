// Types of all values of a graph, also while the batch size is not known.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "ops/graph/graph.h"

namespace espalier {

// Returns the types of graph.values(), in their order. With a `batch` of 0 inputs keep a dimension
// 0 of -1, and a dimension of -k means k times the batch size. InvalidArgument names the node, its
// operator and what is wrong; for an open batch size also the value of which a dimension is no
// multiple of it.
absl::StatusOr<std::vector<TensorType>> InferTypes(const OpRegistry& registry, const Graph& graph,
                                                   int64_t batch);

}  // namespace espalier
