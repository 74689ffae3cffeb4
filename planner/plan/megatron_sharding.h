// The sharing of operators that users of Megatron-LM make by hand, found from the graph's shape
// alone: of two linear layers that follow each other the first is cut into columns and the second
// into rows, attention into heads, and what lies between such pairs is cut along the sequence
// (Shoeybi et al., "Megatron-LM", 2019; Korthikanti et al., "Reducing activation recomputation in
// large transformer models", MLSys 2023). It needs little memory, so that it may fit where what is
// fastest for one group of devices does not.
#pragma once

#include <vector>

#include "planner/pcg/structure.h"

namespace espalier {

// By forward node, on devices 0 to `tensor` - 1; on the first alone what cannot be cut into so many
// parts. Empty configurations for dead nodes.
std::vector<NodeConfig> MegatronSharding(const PcgStructure& structure, int tensor);

}  // namespace espalier
