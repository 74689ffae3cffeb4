// Weight streaming: when a forward program's parameters do not all fit the device, some stay
// resident and the others stream from the host through a double buffer in every step, each copied
// ahead of its use (FlexFlow's offloading; FlexGen: Sheng et al., "FlexGen: High-throughput
// generative inference of large language models with a single GPU", 2023). Results do not depend on
// the plan.
//
// A pure function. Steps are the operators of the program, in order.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace espalier {

struct StreamableWeight {
  int64_t bytes = 0;
  int first_use = 0, last_use = 0;  // steps
  bool must_stay = false;  // copying it whole would be wasteful, such as an embedding table
};

// Where one parameter lies.
struct WeightLocation {
  bool streams = false;
  int64_t offset = 0;   // in the double buffer
  int copy_before = 0;  // the step before which its copy begins; at most its use
};

struct WeightStreamingPlan {
  std::vector<WeightLocation> places;  // by parameter
  int64_t buffer_bytes = 0;
  int64_t resident_bytes = 0;  // including the double buffer: device memory for parameters
  int64_t streamed_bytes = 0;  // copied per step
};

// Parameters that one step uses stream together. The double buffer holds any two consecutive such
// groups, so the next group is copied while a step computes. Resident parameters are spread evenly
// over the steps, so that computation hides the copies. Parameters used by several steps stay
// resident, and so do the smallest, up to a hundredth of all bytes. Returns ResourceExhausted, with
// the least sufficient budget, if there is no plan.
absl::StatusOr<WeightStreamingPlan> PlanWeightStreaming(
    const std::vector<StreamableWeight>& parameters, int64_t budget);

// Returns the least budget for which PlanWeightStreaming succeeds.
int64_t MinWeightBudget(const std::vector<StreamableWeight>& parameters);

}  // namespace espalier
