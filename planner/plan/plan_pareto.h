// The Pareto front of time and memory: FlexFlow's memory search, without a weight to bisect.
#pragma once

#include "absl/status/statusor.h"
#include "planner/planner.h"

namespace espalier {

// As MakePlanOfGraph, and the plan's `front`: of placements (ParetoPlacements; grids on many
// devices), ZeRO stages, micro-batches and, on few devices, swaps with recomputation, those that no
// other beats in simulated time and memory. The plan is the fastest of them that fits the devices,
// the searched one among them.
absl::StatusOr<v1::Plan> MakeParetoPlan(const PlanProblem& problem,
                                        const v1::SearchOptions& options);

}  // namespace espalier
