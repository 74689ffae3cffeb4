// Who sends to whom in each algorithm of collectives.h, step by step; what links make of it is up
// to CollectiveModel.
#pragma once

#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "planner/machine/collectives.h"
#include "planner/machine/topology.h"

namespace espalier {

// Comes `rounds` times; each flow of a round carries one rank's input / divisor.
struct CollectiveStep {
  double rounds = 0;
  double divisor = 1;
  std::vector<std::pair<int, int>> flows;  // from device, to device

  // All pairs of ranks at once are too many to be listed. Of such a step: what crosses an edge,
  // instead of the flows, and the longest way.
  struct Edge {
    int edge = 0;
    double flows = 0;    // that cross it at one time
    double of_rank = 0;  // of the rounds of one rank, the share that crosses it: at most 1
  };
  std::vector<Edge> edges;
  double latency = 0;
};

// By algorithm, in the order of the enum; nothing where the ranks do not allow it. One rank has no
// steps.
using CollectiveSteps =
    std::array<std::optional<std::vector<CollectiveStep>>, kNumCollectiveAlgorithms>;

// REQUIRES: what CollectiveModel::Create checks.
CollectiveSteps FindCollectiveSteps(const Topology& topology, CollectiveModel::Kind kind,
                                    const std::vector<int>& ranks);

}  // namespace espalier
