// Inter-operator parallelism: places branches on disjoint devices so that they run concurrently.
// This is the non-sequence split of Unity's dynamic programming (Unger et al., OSDI 2022). It
// complements elimination.h, which assumes that operators run one after another.
#pragma once

#include "absl/status/status.h"
#include "planner/search/search_space.h"
#include "planner/simulator/simulator.h"

namespace espalier {

// Where parts of the graph feed different operands of one operator and nothing else, tries them in
// two groups, on the first i devices and on the rest, for each i. Each group uses the placement
// that elimination finds for that many devices. Keeps a split if it simulates faster. `simulator`
// holds the starting placement and is left at the best one. `other` as for EliminationPlacement.
// Does nothing on more than 8 devices.
absl::Status SplitBranches(const SearchSpace& space, ConfigTable& table, CostTables& costs,
                           const Placement& other, Simulator* simulator);

}  // namespace espalier
