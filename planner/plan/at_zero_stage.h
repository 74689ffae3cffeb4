// Planning with fewer choices: for a fixed graph, or for a fixed graph and ZeRO stage.
#pragma once

#include "absl/status/statusor.h"
#include "planner/planner.h"

namespace espalier {

// Like MakePlan, but never rewrites the graph: ignores the options on rewrites.
absl::StatusOr<v1::Plan> MakePlanOfGraph(const PlanProblem& problem,
                                         const v1::SearchOptions& options);

// Like MakePlanOfGraph, but uses `zero_stage` whatever the options say. Sets `memory_is_short`,
// unless null, to whether memory limited the plan, in which case other stages may be better. Where
// plans are device meshes, MakePlan compares the stages in one search instead.
absl::StatusOr<v1::Plan> MakePlanAtZeroStage(const PlanProblem& problem,
                                             const v1::SearchOptions& options, int zero_stage,
                                             bool* memory_is_short = nullptr);

}  // namespace espalier
