// Planning with the ZeRO stage given.
#pragma once

#include "absl/status/statusor.h"
#include "planner/planner.h"

namespace espalier {

// As MakePlan, but with `zero_stage`, whatever the options say of it.
absl::StatusOr<proto::Plan> MakePlanAtStage(const PlanProblem& problem,
                                            const proto::SearchOptions& options, int zero_stage);

}  // namespace espalier
