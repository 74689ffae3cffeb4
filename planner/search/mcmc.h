// Markov chain Monte Carlo over the configurations of all operators.
//
// With alpha: FlexFlow's search (Jia, Zaharia, Aiken, "Beyond data and model parallelism for deep
// neural networks", MLSys 2019). A step proposes a change (moves.h) and accepts it if the simulated
// step gets faster, else with probability exp(-alpha * milliseconds slower). Every clamp(budget /
// 100, 1, 1000) steps the chain returns to the best placement.
//
// Without alpha: simulated annealing (Kirkpatrick, Gelatt, Vecchi, 1983). Slowdown is relative to
// the current time, so that graphs of microseconds and of minutes are searched alike, and is
// accepted less and less often.
//
// Deterministic: the result depends on the arguments alone.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "absl/status/statusor.h"
#include "planner/search/moves.h"
#include "planner/search/top_placements.h"

namespace espalier {

struct McmcOptions {
  int64_t budget = 0;
  std::optional<double> alpha;
  uint64_t seed = 0;
  std::function<void(double fraction)> progress;  // optional
  // Optional: polled regularly. Once true, the search returns the best placement so far.
  std::function<bool()> stop;
  TopPlacements* top_placements = nullptr;  // optional: gets every accepted placement
};

struct McmcResult {
  Placement best;
  Picoseconds cost = 0;  // including the memory penalty
  int64_t proposals = 0;
  int64_t accepted = 0;
};

// REQUIRES: `simulator` holds the starting placement. Leaves it at the best one.
absl::StatusOr<McmcResult> RunMcmc(Moves& moves, Simulator* simulator, const McmcOptions& options);

// Moves the simulator from its placement to `placement`.
absl::Status GoTo(const Placement& placement, Simulator* simulator);

}  // namespace espalier
