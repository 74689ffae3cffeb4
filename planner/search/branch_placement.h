// Branches at the same time on devices of their own: the split of Unity's dynamic programming that
// is no sequence (Unger et al., OSDI 2022), for the placement of elimination.h, which runs one
// operator after the other.
#pragma once

#include "absl/status/status.h"
#include "planner/search/search_space.h"
#include "planner/simulator/simulator.h"

namespace espalier {

// Wherever parts of the graph serve different operands of one operator and nothing else, tries them
// in two groups, on the first i devices and on the others, for each i;
// what a group does on so many devices is what elimination finds for as many. Keeps what is
// simulated to be faster. `simulator` holds the starting placement, and is left at the best one.
// `other` as for EliminationPlacement. Does nothing on more than 8 devices.
absl::Status SplitBranches(const SearchSpace& space, ConfigTable& table, CostTables& costs,
                           const Placement& other, Simulator* simulator);

}  // namespace espalier
