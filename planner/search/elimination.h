// A starting point by dynamic programming, as if operators ran one after the other.
//
// Then a step is a sum: of each operator under its configuration, and of each tensor's way from the
// layout in which it is made to those in which it is needed, which two configurations decide. Such
// a sum over a graph is minimised exactly by eliminating one operator at a time, keeping its best
// configuration for each of its neighbours' (Jia, Lin, Qi, Aiken, "Exploring hidden dimensions in
// parallelizing convolutional neural networks", ICML 2018; Bertele and Brioschi, "Nonserial dynamic
// programming", 1972); along a chain, and at operators through which everything passes, this is the
// dynamic programming of Unity over sequences.
//
// What the sum does not know: branches that run at the same time on different devices, memory, and
// what waits for what. The search goes on from here.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/pcg/placement.h"
#include "planner/search/search_space.h"
#include "planner/simulator/cost_tables.h"

namespace espalier {

// Every operator on the first so many devices, all degrees tried. `other` stands in where that
// would be too much: for operators that too many others depend on. `stop`, optional: once it is
// true, the answer is `other`.
absl::StatusOr<Placement> EliminationPlacement(const SearchSpace& space, ConfigTable& table,
                                               CostTables& costs, const Placement& other,
                                               const std::function<bool()>& stop = nullptr);

// Placements of which none is beaten in time and memory by another, fastest first; `most` at most.
// The sum of time is the one above, that of memory what the device that holds most has of each
// operator: more than the peak, but in the order of it. None once `stop` is true.
struct ParetoPlacement {
  Placement placement;
  double time = 0;  // picoseconds
  double bytes = 0;
};
absl::StatusOr<std::vector<ParetoPlacement>> ParetoPlacements(
    const SearchSpace& space, ConfigTable& table, CostTables& costs, const Placement& other,
    int most, const std::function<bool()>& stop = nullptr);

// What of a graph stands for what lies around a piece of it: it costs nothing of its own.
struct SegmentBoundaries {
  // Nodes that hold values as one, each with as many configurations.
  struct Boundary {
    std::vector<NodeId> nodes;
    std::vector<std::vector<const ConfigEntry*>> choices;  // by node
  };
  std::vector<Boundary> boundaries;
  std::vector<NodeId> nodes;  // others
  int most_configs = 64;      // of each operator
};

// The least sum, in picoseconds, for each choice of each boundary, the first outermost; sums of
// gradients that lie at a boundary count. `other` as above.
absl::StatusOr<std::vector<double>> EliminationCosts(const SearchSpace& space, ConfigTable& table,
                                                     CostTables& costs, const Placement& other,
                                                     const SegmentBoundaries& around);

}  // namespace espalier
