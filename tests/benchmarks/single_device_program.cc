#include "tests/benchmarks/single_device_program.h"

#include "planner/cost/analytic_cost.h"
#include "planner/planner.h"

namespace espalier {

absl::StatusOr<v1::Program> SingleDeviceProgram(const OpRegistry& registry, const Workload& work,
                                                const v1::Device& device) {
  AnalyticCost cost;
  PlanProblem problem;
  problem.registry = &registry;
  problem.graph = &work.graph;
  problem.batch_size = work.batch;
  problem.machine.devices.push_back(device);
  problem.optimizer = work.optimizer;
  problem.cost = &cost;
  v1::SearchOptions options;
  options.set_strategy(v1::SearchOptions::SINGLE_DEVICE);
  absl::StatusOr<v1::Plan> plan = MakePlan(problem, options);
  if (!plan.ok()) return plan.status();
  LoweringOptions lowering;
  lowering.optimizer = work.optimizer;
  lowering.seed = 7;
  lowering.columns = work.columns;
  absl::StatusOr<LoweredPlan> lowered = LowerPlan(registry, work.graph, *plan, lowering);
  if (!lowered.ok()) return lowered.status();
  return lowered->training[0];
}

}  // namespace espalier
