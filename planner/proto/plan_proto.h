// Between the configurations of nodes and the message Plan.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "espalier/v1/plan.pb.h"
#include "planner/pcg/structure.h"
#include "planner/planner.h"

namespace espalier {

// By forward node; empty for dead ones. InvalidArgument names the operator of the plan that is
// unknown, missing, given twice or configured illegally, with what would be legal. An operator that
// only results need which are kept (kResultsMetadata) may be missing: it runs beside its input.
absl::StatusOr<std::vector<NodeConfig>> ConfigsFromPlan(const PcgStructure& structure,
                                                        const v1::Plan& plan);

// Appends one OperatorPlan per live node.
void ConfigsToPlan(const PcgStructure& structure, const std::vector<NodeConfig>& configs,
                   v1::Plan* plan);

// Parts into which `plan` cuts the batch, one or more where it is right.
inline int MicroBatchesOf(const v1::Plan& plan) {
  return plan.micro_batches() == 0 ? 1 : plan.micro_batches();
}

// InvalidArgument, with both fingerprints and the first operator that does not match, if `plan` was
// made for another graph or batch size; with the field, if it is of another format.
absl::Status CheckPlanIsFor(const Graph& graph, const v1::Plan& plan);

}  // namespace espalier
