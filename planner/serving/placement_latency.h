// What a model needs on the devices of one place, and what its steps take there.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "planner/serving/place_serving.h"

namespace espalier {

// Of a model's largest step, by rank.
struct MemoryNeeds {
  std::vector<int64_t> bytes;     // that a rank keeps and works in
  std::vector<int64_t> streamed;  // that are copied from the host
};

// InvalidArgument where the model cannot be cut so; ResourceExhausted where its weights cannot
// stream through what they may take.
absl::StatusOr<MemoryNeeds> MemoryNeedsOf(const ServingProblem& problem, const PlacedModel& model,
                                  const ServingDegrees& degrees);

// Sets `seconds` and `concurrent` of the placed, whose degrees and devices are given. InvalidArgument for
// devices that are not there.
absl::Status SetLatency(const ServingProblem& problem, const PlacedModel& model,
                      const std::vector<int64_t>& streamed, PredictedPlacement* placed);

// A round of the models that have these placements, the LLM's first; the others have none yet.
struct RoundLatency {
  int concurrent_steps = 1;                      // of the LLM
  double seconds = 0;                         // until every request has had its step
  double llm_seconds = 0, draft_seconds = 0;  // of one of the steps at once
};
RoundLatency RoundLatencyOf(const ServingProblem& problem, absl::Span<const PredictedPlacement> placements);

// No round of more models is shorter.
double MinRoundLatency(const ServingProblem& problem, absl::Span<const PredictedPlacement> placements);

}  // namespace espalier
