// What to measure for a graph: programs of single operators, one for each shape that the search can
// meet. The coordinator has workers run them and records the times in a MeasuredCost.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "planner/planner.h"

namespace espalier {

struct Probe {
  const OpDef* def = nullptr;  // of the registry
  NodeTypes shard;
  // Inputs are HOST_INPUT buffers; zeros are good values. `backward` has no instructions if the
  // operator has no gradient.
  proto::Program forward;
  proto::Program backward;
};

// All shards of all operators of a bound graph on up to `num_devices` devices, each shape once,
// those that appear most often first. Errors as MakePlan.
absl::StatusOr<std::vector<Probe>> ListProbes(const OpRegistry& registry, const Graph& graph,
                                              int num_devices);

}  // namespace espalier
