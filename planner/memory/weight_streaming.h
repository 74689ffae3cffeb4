// Parameters of a forward program that do not all fit the device: some stay there, the others lie
// on the host and come through a double buffer, each ahead of its use, in every step (FlexFlow's
// offloading; FlexGen: Sheng et al., "FlexGen: High-throughput generative inference of large
// language models with a single GPU", 2023). The plan never decides what is computed.
//
// A pure function of its arguments. Steps are the operators of the program, in order.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace espalier {

struct StreamableWeight {
  int64_t bytes = 0;
  int first_use = 0, last_use = 0;  // steps
  bool must_stay = false;  // copying it whole would be waste: a table of which rows are read
};

// Where one parameter lies.
struct WeightLocation {
  bool streams = false;
  int64_t offset = 0;   // in the double buffer
  int copy_before = 0;  // the step in front of which its copy begins; at most its use
};

struct WeightStreamingPlan {
  std::vector<WeightLocation> places;  // by parameter
  int64_t buffer_bytes = 0;
  int64_t resident_bytes = 0;  // with the double buffer: what parameters take of the device
  int64_t streamed_bytes = 0;  // copied in every step
};

// Parameters that one step uses stream together. The double buffer has room for any two such groups
// that follow each other: while a step computes, the next one's group comes in. Which ones stay is
// spread evenly over the steps, so that copies never wait for computation for long; parameters of
// several steps stay, and so do the smallest, which together are a hundredth of the whole.
// ResourceExhausted, with the least budget that would do, if there is no such plan.
absl::StatusOr<WeightStreamingPlan> PlanWeightStreaming(const std::vector<StreamableWeight>& parameters,
                                      int64_t budget);

// The least budget for which there is one.
int64_t MinWeightBudget(const std::vector<StreamableWeight>& parameters);

}  // namespace espalier
