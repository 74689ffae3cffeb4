// FlexFlow's Markov chain Monte Carlo search (Jia, Zaharia, Aiken, "Beyond data and model
// parallelism for deep neural networks", MLSys 2019) over the configurations of all operators.
//
// One step draws a new configuration for one operator, for all operators alike (repeated layers),
// or spreads one along edges, and accepts it if the simulated step gets faster, else with
// probability exp(-alpha * milliseconds slower) relative to the current placement. Every
// clamp(budget / 100, 1, 1000) steps it goes back to the best placement. Repeatable: the result
// depends on the arguments alone.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "planner/search/space.h"
#include "planner/simulator/simulator.h"

namespace espalier {

struct McmcOptions {
  int64_t budget = 0;
  double alpha = 1.0;
  uint64_t seed = 0;
  std::function<void(double fraction)> progress;  // optional
};

struct McmcResult {
  Placement best;
  Picoseconds cost = 0;  // penalty for memory included
  int64_t proposals = 0;
  int64_t accepted = 0;
};

// `simulator` must hold the starting placement; it is left at the best one.
absl::StatusOr<McmcResult> RunMcmc(const SearchSpace& space, ConfigTable& table,
                                   Simulator* simulator, const McmcOptions& options);

}  // namespace espalier
