// A starting point by dynamic programming, under the assumption that operators run one after
// another.
//
// The time of a step is then a sum: the cost of each operator under its configuration, plus the
// cost of converting each tensor from its producer's layout to its consumers', which depends on two
// configurations. Eliminating one operator at a time, while keeping its best configuration for each
// combination of its neighbors' configurations, minimizes such a sum exactly (Jia, Lin, Qi, Aiken,
// "Exploring hidden dimensions in parallelizing convolutional neural networks", ICML 2018; Bertele
// and Brioschi, "Nonserial dynamic programming", 1972). Along a chain, and at post-dominators, this
// equals Unity's dynamic programming over sequences.
//
// The sum ignores concurrent branches, memory and waiting; the search continues from this
// placement.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/pcg/placement.h"
#include "planner/search/search_space.h"
#include "planner/simulator/cost_tables.h"

namespace espalier {

// Uses the first n devices for each operator and tries all degrees. Falls back to `other` for
// operators whose elimination would be too expensive because too many others depend on them.
// Returns `other` once the optional `stop` is true.
absl::StatusOr<Placement> EliminationPlacement(const SearchSpace& space, ConfigTable& table,
                                               CostTables& costs, const Placement& other,
                                               const std::function<bool()>& stop = nullptr);

// Returns at most `most` placements of which none is beaten in both time and memory, fastest first.
// Time is the sum above; memory sums over operators what the most loaded device holds, which
// exceeds the peak but orders placements like it. Returns none once `stop` is true.
struct ParetoPlacement {
  Placement placement;
  double time = 0;  // picoseconds
  double bytes = 0;
};
absl::StatusOr<std::vector<ParetoPlacement>> ParetoPlacements(
    const SearchSpace& space, ConfigTable& table, CostTables& costs, const Placement& other,
    int most, const std::function<bool()>& stop = nullptr);

// The nodes that stand for what surrounds a segment. They cost nothing themselves.
struct SegmentBoundaries {
  // Nodes that share one layout choice; each has the same number of configurations.
  struct Boundary {
    std::vector<NodeId> nodes;
    std::vector<std::vector<const ConfigEntry*>> choices;  // by node
  };
  std::vector<Boundary> boundaries;
  std::vector<NodeId> nodes;  // further nodes without a choice
  int most_configs = 64;      // per operator
};

// Returns the least sum, in picoseconds, for each combination of boundary choices, the first
// boundary outermost. Includes gradient sums at boundaries. `other` as for EliminationPlacement.
absl::StatusOr<std::vector<double>> EliminationCosts(const SearchSpace& space, ConfigTable& table,
                                                     CostTables& costs, const Placement& other,
                                                     const SegmentBoundaries& around);

}  // namespace espalier
