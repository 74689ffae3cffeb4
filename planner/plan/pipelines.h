// Pipelines among the plans of a problem.
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

// The fastest plan, by simulation, of `options.pipeline_stages` stages (search/pipeline_partition.h), each with
// its samples split over its devices; with `options.micro_batches`, or, where that is absent, 1, 2,
// 4 or 8 times as many as there are stages, as long as all programs together have no more than
// `most_instructions` (DropTooLongPrograms). InvalidArgument if there are more stages than devices or
// operators, or the batch cannot be cut (SplitIntoMicroBatches); Cancelled if it was stopped before there was
// any.
absl::StatusOr<Pipeline> PlanPipeline(const PlanProblem& problem, int num_devices,
                                      const v1::SearchOptions& options, int zero_stage,
                                      double most_instructions = kMaxInstructions);

}  // namespace espalier
