// Sharding of a serving graph: pipeline stages of consecutive layers, and within a stage the
// tensor-parallel splits of Megatron-LM (Shoeybi et al., "Megatron-LM", 2019), derived from the
// graph's shape alone. Rows are never split: their number changes from step to step.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/lowering/replicate_kv_heads.h"
#include "planner/pcg/structure.h"
#include "planner/planner.h"

namespace espalier {

// A serving graph with its operators assigned to devices. Its named outputs are results of nodes of
// their own, biases that would block a split are added by nodes of their own, and key and value
// heads are replicated if they are fewer than a stage's devices.
struct ShardedServing {
  PcgStructure structure;
  std::vector<NodeConfig> configs;  // by forward node, empty for dead ones
  ReplicatedParameters replicated;  // in the structure's graph, not the given one
};

// Performs all steps below. Errors as LowerServing. REQUIRES: `graph` is bound.
absl::StatusOr<ShardedServing> ShardServingGraph(const OpRegistry& registry, const Graph& graph,
                                                 const ServingDegrees& degrees);

// Returns configurations by forward node, empty for dead ones. `structure` is BuildServingStructure
// of a graph whose named outputs are results of "identity" nodes that nothing else reads; these run
// on the last stage's first device. Errors as LowerServing.
absl::StatusOr<std::vector<NodeConfig>> ShardServing(const PcgStructure& structure,
                                                     const ServingDegrees& degrees);

// Returns the nodes whose bias alone prevents a split along the operand that `configs` have split;
// the caller splits them into a product and a sum.
std::vector<NodeId> BiasesBlockingSplits(const PcgStructure& structure,
                                         const std::vector<NodeConfig>& configs);

}  // namespace espalier
