// Estimates the time that swaps and recomputation add to make a step fit a limit. The search uses
// it to trade memory for time, thousands of times a second.
//
// Makes the decisions of planner/memory/offload_recompute.h, tensor by tensor for the fullest step,
// but estimates each one's cost instead of simulating it (a copy's time less the time that it can
// overlap, copies one after another; the producer's time). Both copy streams are simulated once, at
// the end. A pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "planner/memory/offload_recompute.h"

namespace espalier {

// A tensor between two uses of it.
struct IdleTensor {
  int64_t bytes = 0;
  int after = 0, before = 0;  // consecutive steps that use it
  bool can_swap = true;
  double recompute_seconds = -1;  // of recomputing it before `before`; negative: impossible
  // Idle tensors (indices) that must be resident if it is recomputed.
  absl::InlinedVector<int, 2> from;
};

struct OffloadEstimateProblem {
  std::vector<double> seconds;  // by step
  std::vector<int64_t> live;    // by step: live bytes without evictions
  int64_t limit = 0;
  std::vector<IdleTensor> idle;
};

struct OffloadEstimate {
  double seconds = 0;      // added by swaps and recomputation
  int64_t bytes_left = 0;  // still over the limit
};

// Callers apply the settings' distances between uses through `can_swap`.
OffloadEstimate EstimateOffload(const OffloadEstimateProblem& problem,
                                const OffloadSettings& settings);

}  // namespace espalier
