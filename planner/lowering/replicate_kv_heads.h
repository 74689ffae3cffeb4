// Models that have fewer key and value heads than devices share them: each head is on as many
// devices as there are for it, and a device has the one that its queries read. In the graph every
// head stands that often, so that all that belongs to it is cut as always; the devices' parts of
// its parameters are put back to where they lie in the model's own.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "planner/lowering/rank_program.h"

namespace espalier {

// Along `dim` a parameter has stretches of `head`, one for each head, of which each stands `times`
// times.
struct ReplicatedParameter {
  size_t dim = 0;
  int64_t head = 0;
  int64_t times = 1;
};
using ReplicatedParameters = std::map<std::string, ReplicatedParameter>;

// InvalidArgument, by name, where attention cannot be shared out in `parts`: they must divide the
// heads of the queries, and be a divisor or a multiple of the key and value heads.
absl::Status CheckHeadsDivide(const Graph& graph, int parts);

// Changes the bound serving graph `graph` where `parts` is a larger multiple of the key and value
// heads: then there are as many. Types of what is computed stay to be inferred. Also
// InvalidArgument for heads that come from what cannot be replicated.
absl::StatusOr<ReplicatedParameters> ReplicateKvHeads(int parts, Graph* graph);

// Sees the parts of replicated parameters as those of the model's own. Internal for one that is not
// within one head.
absl::Status PlaceReplicatedParameters(const ReplicatedParameters& parameters, RankProgram* rank);

}  // namespace espalier
