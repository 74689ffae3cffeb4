// Pipeline-parallel plans.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "planner/lowering/lower_training.h"
#include "planner/plan/planning.h"

namespace espalier {

struct Pipeline {
  std::unique_ptr<Planning> planning;  // for its number of micro-batches
  Candidate candidate;
};

// Returns the fastest simulated plan with `options.pipeline_stages` stages
// (search/pipeline_partition.h), each data-parallel over its devices. Uses `options.micro_batches`
// or, if absent, tries 1, 2, 4 and 8 times the number of stages while all programs together have at
// most `most_instructions` instructions (DropTooLongPrograms). Returns InvalidArgument if there are
// more stages than devices or operators, or the batch cannot be cut (SplitIntoMicroBatches);
// Cancelled if it was stopped before it had a plan.
absl::StatusOr<Pipeline> PlanPipeline(const PlanProblem& problem, int num_devices,
                                      const v1::SearchOptions& options, int zero_stage,
                                      double most_instructions = kMaxInstructions);

}  // namespace espalier
