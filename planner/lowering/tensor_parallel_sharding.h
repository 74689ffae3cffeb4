// How the operators of a serving graph are shared out to devices: stages of consecutive layers, and
// within a stage the cuts that users of Megatron-LM make by hand (Shoeybi et al., "Megatron-LM",
// 2019), found from the graph's shape alone. Rows are never cut: their number changes from step to
// step.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/lowering/replicate_kv_heads.h"
#include "planner/pcg/structure.h"
#include "planner/planner.h"

namespace espalier {

// A serving graph, with its named outputs as results of nodes of their own, with biases added by
// nodes of their own where they would be in the way, and with key and value heads replicated where
// they are fewer than the devices of a stage, shared out to devices.
struct ShardedServing {
  PcgStructure structure;
  std::vector<NodeConfig> configs;  // by forward node, empty for dead ones
  ReplicatedParameters replicated;      // in the structure's graph, not in the one that was given
};

// All of what follows; `graph` is bound. Errors as LowerServing.
absl::StatusOr<ShardedServing> ShardServingGraph(const OpRegistry& registry, const Graph& graph,
                                       const ServingDegrees& degrees);

// `structure` is BuildServingStructure of a graph whose named outputs are results of "identity"
// nodes that nothing else reads; they run on the last stage's first device. By forward node, empty
// for dead ones. Errors as LowerServing.
absl::StatusOr<std::vector<NodeConfig>> ShardServing(const PcgStructure& structure,
                                                     const ServingDegrees& degrees);

// Nodes that add a bias, and because of it alone cannot be cut along the operand that `configs`
// have cut: to be split into a product and a sum.
std::vector<NodeId> BiasesBlockingSplits(const PcgStructure& structure,
                                   const std::vector<NodeConfig>& configs);

}  // namespace espalier
