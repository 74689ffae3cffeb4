// The way down to a placement that no small change improves: what random steps leave behind at the
// end of a search.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "planner/search/moves.h"
#include "planner/search/top_placements.h"

namespace espalier {

struct LocalSearchResult {
  int64_t proposals = 0;
  int64_t accepted = 0;
  bool finished = false;  // within the budget
};

// Tries every configuration of each node, of all nodes alike, of a node with those neighbours that
// can hold the tensors between them as it does, and of each two neighbours, nearest first; begins
// again after every improvement. `simulator` is left at what it came to.
// `top_placements`, if there are any, are offered every placement that is accepted.
absl::StatusOr<LocalSearchResult> RunLocalSearch(Moves& moves, Simulator* simulator, int64_t budget,
                                      TopPlacements* top_placements = nullptr);

}  // namespace espalier
