#include "planner/cost/probe.h"

#include <set>

#include "gtest/gtest.h"
#include "planner/cost/analytic.h"
#include "planner/cost/measured.h"
#include "planner/testing/graphs.h"
#include "planner/testing/program_check.h"

namespace espalier {
namespace {

TEST(ListProbesTest, CoversEveryShapeThatTheSearchAsksFor) {
  const Graph graph = Llama(SmallLlama(2));
  absl::StatusOr<std::vector<Probe>> probes = ListProbes(TestRegistry(), graph, 2);
  ASSERT_TRUE(probes.ok()) << probes.status();
  AnalyticCost analytic;
  int missed = 0;
  MeasuredCost cost(&analytic, [&](const OpDef& def, const NodeTypes&, const proto::Device&) {
    ++missed;
    return std::optional<CostModel::Times>();
  });
  PlanProblem problem = TestProblem(graph, 8, 2);
  for (const Probe& probe : *probes) {
    cost.Record(*probe.def, probe.shard, problem.machine.devices[0], {1e-5, 2e-5});
  }
  EXPECT_EQ(cost.size(), probes->size()) << "a shape is listed twice";
  problem.cost = &cost;
  proto::SearchOptions options;
  options.set_budget(2000);
  ASSERT_TRUE(MakePlan(problem, options).ok());
  EXPECT_EQ(missed, 0);
}

TEST(ListProbesTest, ProgramsAreWellFormed) {
  const Graph graph = Cnn();
  absl::StatusOr<std::vector<Probe>> probes = ListProbes(TestRegistry(), graph, 2);
  ASSERT_TRUE(probes.ok()) << probes.status();
  for (const Probe& probe : *probes) {
    EXPECT_EQ(CheckPrograms({probe.forward}), absl::OkStatus());
    EXPECT_EQ(probe.forward.instructions_size(), 1);
    EXPECT_EQ(probe.backward.instructions_size(), probe.def->gradient.has_value() ? 1 : 0);
    if (probe.backward.instructions_size() > 0) {
      EXPECT_EQ(CheckPrograms({probe.backward}), absl::OkStatus());
    }
  }
}

}  // namespace
}  // namespace espalier
