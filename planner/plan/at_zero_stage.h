// Planning with less left to choose: the graph given, or the ZeRO stage, too.
#pragma once

#include "absl/status/statusor.h"
#include "planner/planner.h"

namespace espalier {

// As MakePlan, but the graph stays as it is: whatever the options say of rewrites, and of a plan
// without any.
absl::StatusOr<v1::Plan> MakePlanOfGraph(const PlanProblem& problem,
                                            const v1::SearchOptions& options);

// As MakePlanOfGraph, but with `zero_stage`, whatever the options say of it. `memory_is_short`, if
// it is not null, says whether memory had a say in the plan: then other stages may be better. Those
// of machines whose plans are grids are weighed at once, if that is asked for.
absl::StatusOr<v1::Plan> MakePlanAtZeroStage(const PlanProblem& problem,
                                            const v1::SearchOptions& options, int zero_stage,
                                            bool* memory_is_short = nullptr);

}  // namespace espalier
