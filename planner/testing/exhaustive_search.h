// For tests: the best placement of a search space, by enumeration.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "planner/search/search_space.h"
#include "planner/simulator/simulator.h"

namespace espalier {

struct ExhaustivePlacement {
  Placement placement;
  Picoseconds cost = 0;  // including the memory penalty
  int64_t placements = 0;
};

// As a double, because it soon overflows integers.
double CountPlacements(const SearchSpace& space);

// Moves `simulator` through every placement of the space and calls `visit` at each. The first
// operators in the graph change least often. Stops at the first error.
absl::Status ForEachPlacement(const PcgStructure& structure, const SearchSpace& space,
                              ConfigTable& table, Simulator* simulator,
                              const std::function<absl::Status()>& visit);

// `simulator` may hold any placement and is left at any.
absl::StatusOr<ExhaustivePlacement> PlaceExhaustively(const PcgStructure& structure,
                                                      const SearchSpace& space, ConfigTable& table,
                                                      Simulator* simulator);

}  // namespace espalier
