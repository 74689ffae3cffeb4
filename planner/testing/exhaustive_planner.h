// The fastest of all placements at all ZeRO stages under the devices' memory, each lowered and made
// to fit as a plan is: for problems so small that they can all be tried.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/planner.h"
#include "planner/testing/small_problems.h"

namespace espalier {

struct ExhaustivePlan {
  bool found = false;  // anything fits
  double seconds = 0;  // of a step
  int zero_stage = 0;
  bool made_to_fit = false;  // by swaps or recomputation
  int64_t placements = 0;    // of all stages together
  int64_t lowered = 0;       // of them: those that would be faster if they fitted
  int64_t peak_bytes = 0;    // of the device that needs most
};

// Of the options' search space and memory; `stages` of ZeRO. Errors as MakePlan.
absl::StatusOr<ExhaustivePlan> PlanExhaustively(const PlanProblem& problem,
                                                  const v1::SearchOptions& options,
                                                  const std::vector<int>& stages);

// A random problem whose devices have less memory than its fastest plan needs.
struct LowMemoryProblem {
  SmallProblem small;
  // Of the way from the least memory in which data parallelism or one device fits, at any ZeRO
  // stage, to that need.
  double part = 0;
  bool is_low = false;         // there is such a way; else the rest is not set
  v1::SearchOptions options;  // a search for what `optimum` is of
  double ample_seconds = 0;      // of that plan
  ExhaustivePlan optimum;
};

// Number `seed`: the largest beginning of ActivationHeavyProblem(seed), whose attributes are not split, and
// for one seed in four of RandomProblem on 2 or 3 devices, with at most `most_placements` at one
// stage. Memory is 0 to 80 % of the way above the least, hosts are slow to fast, batches not cut.
// Errors as MakePlan.
absl::StatusOr<LowMemoryProblem> MakeLowMemoryProblem(uint64_t seed, double most_placements);

}  // namespace espalier
