// Memory needs and predicted latency of one model at one placement.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "planner/serving/place_serving.h"

namespace espalier {

// Memory of a model's largest step, by rank.
struct MemoryNeeds {
  std::vector<int64_t> bytes;     // resident parameters and working memory
  std::vector<int64_t> streamed;  // copied from the host
};

// Returns InvalidArgument if the model cannot be split this way; ResourceExhausted if its weights
// cannot stream through their budget.
absl::StatusOr<MemoryNeeds> MemoryNeedsOf(const ServingProblem& problem, const PlacedModel& model,
                                          const ServingDegrees& degrees);

// Sets `seconds` and `concurrent` of `placed`, whose degrees and devices are given. Returns
// InvalidArgument for devices that do not exist.
absl::Status SetLatency(const ServingProblem& problem, const PlacedModel& model,
                        const std::vector<int64_t>& streamed, PredictedPlacement* placed);

// The latency of a round of the first models, the LLM first; the others are not yet placed.
struct RoundLatency {
  int concurrent_steps = 1;                   // of the LLM
  double seconds = 0;                         // until every request has had its step
  double llm_seconds = 0, draft_seconds = 0;  // of one of the concurrent steps
};
RoundLatency RoundLatencyOf(const ServingProblem& problem,
                            absl::Span<const PredictedPlacement> placements);

// Lower bound for the rounds of any placement that adds models.
double MinRoundLatency(const ServingProblem& problem,
                       absl::Span<const PredictedPlacement> placements);

}  // namespace espalier
