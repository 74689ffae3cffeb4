// Markov chain Monte Carlo over the configurations of all operators.
//
// With alpha, FlexFlow's search (Jia, Zaharia, Aiken, "Beyond data and model parallelism for deep
// neural networks", MLSys 2019): one step changes the placement (moves.h), and is accepted if the
// simulated step gets faster, else with probability exp(-alpha * milliseconds slower) relative to
// the current placement. Every clamp(budget / 100, 1, 1000) steps it goes back to the best
// placement.
//
// Without alpha, simulated annealing (Kirkpatrick, Gelatt, Vecchi, 1983): slower steps are measured
// against the current one's time, so that graphs of microseconds and of minutes are searched alike,
// and are accepted ever less.
//
// Repeatable: the result depends on the arguments alone.
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
  // Optional: asked now and then; once it is true the best placement so far is returned.
  std::function<bool()> stop;
  TopPlacements* top_placements = nullptr;  // optional: is offered every placement that is accepted
};

struct McmcResult {
  Placement best;
  Picoseconds cost = 0;  // penalty for memory included
  int64_t proposals = 0;
  int64_t accepted = 0;
};

// `simulator` must hold the starting placement; it is left at the best one.
absl::StatusOr<McmcResult> RunMcmc(Moves& moves, Simulator* simulator, const McmcOptions& options);

// Proposes what leads from the simulator's placement to `placement`, and accepts it.
absl::Status GoTo(const Placement& placement, Simulator* simulator);

}  // namespace espalier
