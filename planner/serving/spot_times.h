// What a model needs on the devices of one place, and what its steps take there.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "planner/serving/place_serving.h"

namespace espalier {

// Of a model's largest step, by rank.
struct SpotNeeds {
  std::vector<int64_t> bytes;     // that a rank keeps and works in
  std::vector<int64_t> streamed;  // that are copied from the host
};

// InvalidArgument where the model cannot be cut so; ResourceExhausted where its weights cannot
// stream through what they may take.
absl::StatusOr<SpotNeeds> NeedsOf(const ServingProblem& problem, const PlacedModel& model,
                                  const ServingDegrees& degrees);

// Sets `seconds` and `dealt` of the spot, whose degrees and devices are given. InvalidArgument for
// devices that are not there.
absl::Status SetTimes(const ServingProblem& problem, const PlacedModel& model,
                      const std::vector<int64_t>& streamed, ServingSpot* spot);

// A round of the models that have these spots, the LLM's first; the others have none yet.
struct RoundTimes {
  int concurrent_steps = 1;                      // of the LLM
  double seconds = 0;                         // until every request has had its step
  double llm_seconds = 0, draft_seconds = 0;  // of one of the steps at once
};
RoundTimes RoundOf(const ServingProblem& problem, absl::Span<const ServingSpot> spots);

// No round of more models is shorter.
double LeastRound(const ServingProblem& problem, absl::Span<const ServingSpot> spots);

}  // namespace espalier
