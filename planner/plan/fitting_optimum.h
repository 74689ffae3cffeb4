// The fastest of all placements at all ZeRO stages under the devices' memory, each lowered and made
// to fit as a plan is: for problems so small that they can all be tried.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/planner.h"
#include "planner/search/small_problems.h"

namespace espalier {

struct FittingOptimum {
  bool found = false;  // anything fits
  double seconds = 0;  // of a step
  int zero_stage = 0;
  bool made_to_fit = false;  // by swaps or recomputation
  int64_t placements = 0;    // of all stages together
  int64_t lowered = 0;       // of them: those that would be faster if they fitted
  int64_t peak_bytes = 0;    // of the device that needs most
};

// `stages`: of ZeRO. Errors as MakePlan.
absl::StatusOr<FittingOptimum> FindFittingOptimum(const PlanProblem& problem,
                                                  const proto::MemoryOptions& memory,
                                                  const std::vector<int>& stages);

// A random problem whose devices have less memory than its fastest plan needs.
struct TightProblem {
  SmallProblem small;
  double part = 0;               // of that need
  proto::SearchOptions options;  // a search for what `optimum` is of
  double ample_seconds = 0;      // of that plan
  FittingOptimum optimum;
};

// Number `seed`: the largest beginning of RandomProblem(seed) with at most `most_placements` at one
// stage, on 2 or 3 devices that have 90 to 35 % of what its fastest placement needs, with hosts
// from slow to fast. Batches are not cut. Errors as MakePlan.
absl::StatusOr<TightProblem> MakeTightProblem(uint64_t seed, double most_placements);

}  // namespace espalier
