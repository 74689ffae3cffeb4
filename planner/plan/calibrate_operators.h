// Calibrates the operator cost model by the times of a real run of a plan.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "espalier/v1/plan.pb.h"
#include "planner/cost/measured_cost.h"
#include "planner/planner.h"

namespace espalier {

// Seconds of one run of a plan's operator on a device: "linear" forward, "linear_grad" backward.
struct OperatorTime {
  std::string node;
  std::string op;
  double seconds = 0;
};

// Predicted and measured time of one operator of a plan, forward and backward, on its slowest
// device; or of its communication (calibrate_communication.h).
struct PredictionError {
  std::string node;
  double predicted_seconds = 0;
  double measured_seconds = 0;
};

// Sorts by absolute error in seconds, largest first.
void SortByError(std::vector<PredictionError>* drifts);

// Feeds the times of a step to `cost` (MeasuredCost::Observe), averaged for each shape over the
// operators and devices that have it. Returns the prediction error of every operator that is both
// predicted and measured, largest first. `graph` is the bound graph that `plan` is for; `times` are
// by device of the plan. Ignores times of operators that the plan does not have, and times that are
// negative or not finite. Returns nothing and leaves `cost` unchanged for devices that share cores
// (their times include contention, which the simulator models separately) and for plans with batch
// tiles, whose shapes differ from the plan's. Errors as MakePlan for an imported plan.
absl::StatusOr<std::vector<PredictionError>> CalibrateOperators(
    const OpRegistry& registry, const Graph& graph, const v1::Plan& plan,
    const std::vector<std::vector<OperatorTime>>& times, MeasuredCost* cost);

}  // namespace espalier
