// What it would add to a step to make it fit a limit, roughly: the price at which a search trades
// memory for time, asked for thousands of times a second.
//
// The decisions are those of planner/memory/offload_recompute.h, taken tensor by tensor for the fullest step;
// but what each of them adds is guessed (a copy's time less the room that it has, copies one behind
// the other; the producer's time) instead of simulated, and both copy streams are played once, at the
// end. A pure function of its arguments.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "planner/memory/offload_recompute.h"

namespace espalier {

// A tensor between two uses of it.
struct IdleTensor {
  int64_t bytes = 0;
  int after = 0, before = 0;  // steps that use it; none between them does
  bool can_swap = true;
  double recompute_seconds = -1;  // of computing it again in front of `before`; negative: impossible
  // Idle tensors (indices) that must not be away if it is computed again.
  absl::InlinedVector<int, 2> from;
};

struct OffloadEstimateProblem {
  std::vector<double> seconds;  // by step
  std::vector<int64_t> live;    // by step: bytes that are there if nothing leaves
  int64_t limit = 0;
  std::vector<IdleTensor> idle;
};

struct OffloadEstimate {
  double seconds = 0;      // that swaps and recomputation add
  int64_t bytes_left = 0;  // over the limit even so
};

// The settings' distances between uses are for callers to look at, by `can_swap`.
OffloadEstimate EstimateOffload(const OffloadEstimateProblem& problem, const OffloadSettings& settings);

}  // namespace espalier
