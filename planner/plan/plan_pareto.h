// The Pareto front of step time and peak memory. Replaces FlexFlow's memory search, which bisects a
// weight between the two.
#pragma once

#include "absl/status/statusor.h"
#include "planner/planner.h"

namespace espalier {

// Like MakePlanOfGraph, and fills the plan's `pareto_front`. Combines placements (ParetoPlacements;
// device meshes on many devices), ZeRO stages, micro-batches and, on few devices, swaps with
// recomputation, and keeps those that no other beats in both simulated time and memory. Returns the
// fastest point that fits the devices, or the searched plan if that is faster.
absl::StatusOr<v1::Plan> MakeParetoPlan(const PlanProblem& problem,
                                        const v1::SearchOptions& options);

}  // namespace espalier
