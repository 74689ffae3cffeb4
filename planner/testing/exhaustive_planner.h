// For tests: the fastest plan under the devices' memory, by lowering all placements at all ZeRO
// stages with swaps and recomputation. For problems small enough to try them all.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/planner.h"
#include "planner/testing/small_problems.h"

namespace espalier {

struct ExhaustivePlan {
  bool found = false;  // something fits
  double seconds = 0;  // of a step
  int zero_stage = 0;
  bool made_to_fit = false;  // with swaps or recomputation
  int64_t placements = 0;    // over all stages
  int64_t lowered = 0;  // number of these that were lowered: those that would be faster if they fit
  int64_t peak_bytes = 0;  // on the device that needs most
};

// Searches the options' search space and memory options at ZeRO `stages`. Errors as MakePlan.
absl::StatusOr<ExhaustivePlan> PlanExhaustively(const PlanProblem& problem,
                                                const v1::SearchOptions& options,
                                                const std::vector<int>& stages);

// A random problem whose devices have less memory than its fastest plan needs.
struct LowMemoryProblem {
  SmallProblem small;
  // Position of the limit between the least memory in which data parallelism or one device fits, at
  // any ZeRO stage, and the need of the fastest plan.
  double part = 0;
  bool is_low = false;        // there is such a range; otherwise the rest is not set
  v1::SearchOptions options;  // search options with the memory limit
  double ample_seconds = 0;   // of the fastest plan
  ExhaustivePlan optimum;
};

// Problem number `seed`: ActivationHeavyProblem(seed) without attribute splits, or for one seed in
// four RandomProblem on 2 or 3 devices, with as many operators as keep the placements of one stage
// below `most_placements`. Memory is 0 to 80 % of the way above the least, hosts are slow to fast,
// batches are not cut. Errors as MakePlan.
absl::StatusOr<LowMemoryProblem> MakeLowMemoryProblem(uint64_t seed, double most_placements);

}  // namespace espalier
