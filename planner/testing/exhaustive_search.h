// The best of all placements of a search space, by trying each of them: for small graphs, and to
// measure the search.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "planner/search/search_space.h"
#include "planner/simulator/simulator.h"

namespace espalier {

struct ExhaustivePlacement {
  Placement placement;
  Picoseconds cost = 0;  // penalty for memory included
  int64_t placements = 0;
};

// As a double: it overflows integers soon.
double CountPlacements(const SearchSpace& space);

// Has `simulator` hold every placement of the space in turn, and calls `visit` with each: those of
// the first operators in the graph change least often. Ends with its first error.
absl::Status ForEachPlacement(const PcgStructure& structure, const SearchSpace& space,
                              ConfigTable& table, Simulator* simulator,
                              const std::function<absl::Status()>& visit);

// `simulator` may hold any placement, and holds any afterwards.
absl::StatusOr<ExhaustivePlacement> PlaceExhaustively(const PcgStructure& structure, const SearchSpace& space,
                                    ConfigTable& table, Simulator* simulator);

}  // namespace espalier
