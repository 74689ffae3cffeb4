// Learning from a run: what operators took in the steps of a plan, next to what was predicted.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/cost/measured_cost.h"
#include "planner/planner.h"
#include "espalier/v1/plan.pb.h"

namespace espalier {

// Seconds of one run of what an operator of the plan does on a device: "linear" forward,
// "linear_grad" backward.
struct OperatorTime {
  std::string node;
  std::string op;
  double seconds = 0;
};

// One operator of a plan, forward and backward, on the device where it took longest; or what it
// sends (calibrate_communication.h).
struct PredictionError {
  std::string node;
  double predicted_seconds = 0;
  double measured_seconds = 0;
};

// Those first that took most seconds more or less than predicted.
void SortByError(std::vector<PredictionError>* drifts);

// Gives `cost` the times of a step (MeasuredCost::Observe), each shape's mean over the operators
// and devices that have it, and returns all operators that the plan predicts and the run tells,
// those first that took most seconds more or less than predicted. `graph` is bound and what `plan`
// is for; `times` are by device of the plan; times of what is no operator of the plan, and those
// that are not finite or negative, are left out. Nothing is learnt, and nothing returned, of
// devices that share cores (their times are longer than the operator's own, and the simulator knows
// by how much), nor of plans that cut batches into slices, whose shapes are not the plan's. Errors
// as MakePlan for an imported plan.
absl::StatusOr<std::vector<PredictionError>> CalibrateOperators(
    const OpRegistry& registry, const Graph& graph, const v1::Plan& plan,
    const std::vector<std::vector<OperatorTime>>& times, MeasuredCost* cost);

}  // namespace espalier
