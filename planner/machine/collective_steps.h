// The communication pattern of each algorithm in collectives.h: who sends to whom, step by step.
// CollectiveModel turns it into times.
#pragma once

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "planner/machine/collectives.h"
#include "planner/machine/topology.h"

namespace espalier {

// Repeats `rounds` times; each flow of a round carries one rank's input / divisor.
struct CollectiveStep {
  double rounds = 0;
  double divisor = 1;
  std::vector<std::pair<int, int>> flows;  // from device, to device

  // For a step in which all pairs of ranks send at once, which are too many to list: the load of
  // each edge instead of `flows`, and the longest path's latency.
  struct Edge {
    int edge = 0;
    double flows = 0;    // that cross it at one time
    double of_rank = 0;  // share of one rank's rounds that crosses it: at most 1
  };
  std::vector<Edge> edges;
  double latency = 0;
};

// By algorithm, in the order of the enum; nothing if the algorithm does not support the ranks. One
// rank has no steps.
using CollectiveSteps =
    std::array<std::optional<std::vector<CollectiveStep>>, kNumCollectiveAlgorithms>;

// REQUIRES: what CollectiveModel::Create checks.
CollectiveSteps FindCollectiveSteps(const Topology& topology, CollectiveModel::Kind kind,
                                    const std::vector<int>& ranks);

}  // namespace espalier
