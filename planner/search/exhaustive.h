// The best of all placements of a search space, by trying each of them: for small graphs, and to
// measure the search.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "planner/search/space.h"
#include "planner/simulator/simulator.h"

namespace espalier {

struct Optimum {
  Placement placement;
  Picoseconds cost = 0;  // penalty for memory included
  int64_t placements = 0;
};

// As a double: it overflows integers soon.
double CountPlacements(const SearchSpace& space);

// `simulator` may hold any placement, and holds any afterwards.
absl::StatusOr<Optimum> FindOptimum(const PcgStructure& structure, const SearchSpace& space,
                                    ConfigTable& table, Simulator* simulator);

}  // namespace espalier
