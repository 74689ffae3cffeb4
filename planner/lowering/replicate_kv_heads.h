// KV-head replication for models with fewer key and value heads than devices (GQA, MQA): each head
// lies on several devices, and a device holds the head that its queries read. The graph contains
// each head that many times, so that splitting works as usual; the devices' parts of its parameters
// are then mapped back to the model's own parameters.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ops/graph/graph.h"
#include "planner/lowering/rank_program.h"

namespace espalier {

// Along `dim` a parameter consists of ranges of length `head`, one per head, each repeated `times`
// times.
struct ReplicatedParameter {
  size_t dim = 0;
  int64_t head = 0;
  int64_t times = 1;
};
using ReplicatedParameters = std::map<std::string, ReplicatedParameter>;

// Returns InvalidArgument, by name, if attention cannot be split into `parts`: they must divide the
// query heads, and be a divisor or a multiple of the key and value heads.
absl::Status CheckHeadsDivide(const Graph& graph, int parts);

// Replicates the key and value heads of the bound serving graph `graph` to `parts` heads if `parts`
// is a larger multiple of them. Types of computed values must be inferred afterwards. Returns
// InvalidArgument also for heads that come from an operator that cannot be replicated.
absl::StatusOr<ReplicatedParameters> ReplicateKvHeads(int parts, Graph* graph);

// Maps the parts of replicated parameters to ranges of the model's own. Returns Internal if a part
// is not within one head.
absl::Status PlaceReplicatedParameters(const ReplicatedParameters& parameters, RankProgram* rank);

}  // namespace espalier
