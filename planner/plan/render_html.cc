// SimulatePlan and its renderings (planner.h).
#include "planner/plan/planning.h"
#include "planner/planner.h"
#include "planner/proto/plan_proto.h"
#include "planner/report/dot.h"
#include "planner/report/html.h"
#include "planner/search/apply_rewrites.h"

namespace espalier {

absl::StatusOr<Graph> GraphOf(const OpRegistry& registry, const Graph& graph,
                              const v1::Plan& plan) {
  return RewrittenGraph(registry, graph, plan);
}

absl::StatusOr<std::shared_ptr<const Timeline>> SimulatePlan(const PlanProblem& given,
                                                             const v1::Plan& plan) {
  if (absl::Status status = CheckPlanIsFor(*given.graph, plan); !status.ok()) return status;
  absl::StatusOr<Graph> graph = RewrittenGraph(*given.registry, *given.graph, plan);
  if (!graph.ok()) return graph.status();
  PlanProblem problem = given;
  problem.graph = &*graph;
  absl::StatusOr<std::unique_ptr<Planning>> planning =
      Planning::Make(problem, plan.devices_size(), plan.memory(),
                     {.zero_stage = plan.zero_stage(), .micro_batches = MicroBatchesOf(plan)});
  if (!planning.ok()) return planning.status();
  absl::StatusOr<std::vector<NodeConfig>> configs = ConfigsFromPlan((*planning)->structure(), plan);
  if (!configs.ok()) return configs.status();
  Simulator simulator((*planning)->structure(), (*planning)->table(), (*planning)->costs());
  absl::Status status = simulator.Reset((*planning)->FromConfigs(*configs));
  if (!status.ok()) return status;
  std::vector<int64_t> limits;
  for (const v1::Device& device : plan.devices()) limits.push_back(device.memory_bytes());
  return std::make_shared<const Timeline>(simulator.MakeTimeline(limits));
}

std::string RenderPlanPage(const v1::Plan& plan, const Graph& graph, const Timeline& timeline) {
  return RenderPlanHtml(plan, graph, timeline);
}

std::string RenderTaskGraph(const Timeline& timeline) { return TaskGraphDot(timeline); }

std::string RenderComputationGraph(const v1::Plan& plan, const Graph& graph, bool costs) {
  return ComputationGraphDot(plan, graph, costs);
}

}  // namespace espalier
