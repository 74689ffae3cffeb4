// Planning with less left to choose: the graph given, or the ZeRO stage, too.
#pragma once

#include "absl/status/statusor.h"
#include "planner/planner.h"

namespace espalier {

// As MakePlan, but the graph stays as it is: whatever the options say of rewrites, and of a plan
// without any.
absl::StatusOr<proto::Plan> MakePlanOfGraph(const PlanProblem& problem,
                                            const proto::SearchOptions& options);

// As MakePlanOfGraph, but with `zero_stage`, whatever the options say of it.
absl::StatusOr<proto::Plan> MakePlanAtStage(const PlanProblem& problem,
                                            const proto::SearchOptions& options, int zero_stage);

}  // namespace espalier
