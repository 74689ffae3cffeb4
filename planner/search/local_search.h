// Local search: improves a placement until no small change helps. Runs after MCMC.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "planner/search/moves.h"
#include "planner/search/top_placements.h"

namespace espalier {

struct LocalSearchResult {
  int64_t proposals = 0;
  int64_t accepted = 0;
  bool finished = false;  // reached a local optimum within the budget
};

// Tries every configuration of each node, of all equal nodes together, of a node with the neighbors
// that can keep the shared tensors in place, and of each pair of neighbors, nearest first; restarts
// after every improvement. Leaves `simulator` at the result. Offers every accepted placement to
// `top_placements`, unless null.
absl::StatusOr<LocalSearchResult> RunLocalSearch(Moves& moves, Simulator* simulator, int64_t budget,
                                                 TopPlacements* top_placements = nullptr);

}  // namespace espalier
