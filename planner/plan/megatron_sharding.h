// Megatron-LM's tensor parallelism, derived from the graph's structure: of two consecutive linear
// layers the first is column-parallel and the second row-parallel, attention is split by heads, and
// what lies between such pairs is split along the sequence (Shoeybi et al., "Megatron-LM", 2019;
// Korthikanti et al., "Reducing activation recomputation in large transformer models", MLSys 2023).
// It needs little memory, so it may fit where the fastest plan of a group does not.
#pragma once

#include <vector>

#include "planner/pcg/structure.h"

namespace espalier {

// Returns a configuration for each forward node on devices 0 to `tensor` - 1. An operator that
// cannot be cut into that many parts runs on the first device alone. Dead nodes get an empty
// configuration.
std::vector<NodeConfig> MegatronSharding(const PcgStructure& structure, int tensor);

}  // namespace espalier
