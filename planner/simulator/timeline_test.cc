// The timeline matches the simulated step, with and without a topology.
#include <algorithm>
#include <map>
#include <memory>

#include "gtest/gtest.h"
#include "planner/cost/analytic_cost.h"
#include "planner/machine/presets.h"
#include "planner/search/search_space.h"
#include "planner/simulator/simulator.h"
#include "planner/testing/graphs.h"

namespace espalier {
namespace {

struct Bench {
  Bench(Graph g, const Machine& machine, int zero_stage = 0)
      : graph(std::move(g)),
        structure(*BuildStructure(TestRegistry(), graph, false, zero_stage)),
        table(structure),
        costs(structure, table, machine, analytic, TestOptimizer()),
        space(structure, {.num_devices = static_cast<int>(machine.devices.size())}),
        simulator(structure, table, costs) {}

  Placement Draw(Random* random) {
    Placement placement(structure.nodes.size(), nullptr);
    for (NodeId n : structure.LiveNodes()) placement[n] = table.Get(n, space.Draw(n, random));
    return placement;
  }

  Graph graph;
  PcgStructure structure;
  ConfigTable table;
  AnalyticCost analytic;
  CostTables costs;
  SearchSpace space;
  Simulator simulator;
};

Machine WithTopology(Machine machine, const Topology& topology) {
  machine.topology = std::make_shared<const Topology>(topology);
  return machine;
}

Machine Preset(const char* name, int devices) {
  absl::StatusOr<MachineModel> model = PresetMachine(name, devices);
  EXPECT_TRUE(model.ok()) << model.status();
  Machine machine;
  machine.devices = model->devices;
  return WithTopology(std::move(machine), model->topology);
}

TEST(TimelineTest, IsTheSimulatedStep) {
  for (const bool topology : {false, true}) {
    const Machine machine = topology ? Preset("h200-cluster", 16) : TestMachine(4);
    const int devices = static_cast<int>(machine.devices.size());
    Random random(3);
    for (int round = 0; round < 20 + 3 * 4; ++round) {
      const int stage = round < 20 ? 0 : 1 + round % 3;
      Bench bench(Llama(stage > 0 ? LargerLlama(1, true) : SmallLlama(2), 16), machine, stage);
      ASSERT_EQ(bench.simulator.Reset(bench.Draw(&random)), absl::OkStatus());
      const std::vector<int64_t> limits(devices, 12345);
      const Timeline timeline = bench.simulator.MakeTimeline(limits);
      EXPECT_DOUBLE_EQ(timeline.seconds, ToSeconds(bench.simulator.time()));
      // No device does two things at once.
      std::map<int, double> free;
      double last = 0;
      for (const TimelineTask& task : timeline.tasks) {
        EXPECT_GE(task.begin, last);
        last = task.begin;
        EXPECT_GE(task.begin, free[task.device] - 1e-15);
        EXPECT_GT(task.end, task.begin);
        EXPECT_LE(task.end, timeline.seconds + 1e-15);
        EXPECT_FALSE(task.node.empty());
        free[task.device] = task.end;
      }
      const std::vector<int64_t> peaks = bench.simulator.EstimateMemory();
      ASSERT_EQ(timeline.memory.size(), peaks.size());
      for (int d = 0; d < devices; ++d) {
        EXPECT_EQ(timeline.memory[d].limit, 12345);
        const std::vector<int64_t>& bytes = timeline.memory[d].bytes;
        EXPECT_EQ(*std::max_element(bytes.begin(), bytes.end()), peaks[d]) << d;
        EXPECT_TRUE(
            std::is_sorted(timeline.memory[d].seconds.begin(), timeline.memory[d].seconds.end()));
      }
      // Bytes that cross devices cross links.
      const double moved = bench.simulator.Predict().bytes_moved();
      double sent = 0;
      for (const LinkTraffic& link : timeline.links) sent += link.bytes;
      EXPECT_EQ(sent > 0, moved > 0);
      if (!topology) {
        EXPECT_NEAR(sent, moved, 0.5 * moved);  // buckets are padded
      }
    }
  }
}

// A switch with the link's rates simulates like the link, except for collectives with a better
// algorithm than the ring.
TEST(TimelineTest, UniformTopologyMatchesTheLink) {
  const Machine plain = TestMachine(3);
  absl::StatusOr<Topology> uniform = Topology::Uniform(3, plain.link);
  ASSERT_TRUE(uniform.ok()) << uniform.status();
  Bench by_link(Cnn(), plain), by_topology(Cnn(), WithTopology(plain, *uniform));
  Random a(5), b(5);
  for (int round = 0; round < 30; ++round) {
    ASSERT_EQ(by_link.simulator.Reset(by_link.Draw(&a)), absl::OkStatus());
    ASSERT_EQ(by_topology.simulator.Reset(by_topology.Draw(&b)), absl::OkStatus());
    EXPECT_LE(by_topology.simulator.time(), by_link.simulator.time());
    EXPECT_GE(by_topology.simulator.time(), by_link.simulator.time() / 2);
  }
}

// The same split takes longer across hosts than within one.
TEST(TimelineTest, DevicePlacementMatters) {
  Bench bench(Llama(SmallLlama(2), 16), Preset("a100-cluster", 16));
  const auto placed = [&](const std::vector<int>& devices) {
    Placement placement(bench.structure.nodes.size(), nullptr);
    for (NodeId n : bench.structure.LiveNodes()) {
      NodeConfig config = DataParallel(bench.structure.nodes[n].rule, 2);
      for (size_t i = 0; i < config.devices.size(); ++i) config.devices[i] = devices[i];
      placement[n] = bench.table.Get(n, config);
    }
    EXPECT_EQ(bench.simulator.Reset(placement), absl::OkStatus());
    return bench.simulator.time();
  };
  EXPECT_LT(placed({0, 1}), placed({0, 8}));
  EXPECT_EQ(placed({0, 1}), placed({8, 9}));
}

TEST(TimelineTest, RendersPlansForOtherMachines) {
  const Graph graph = Llama(SmallLlama(2), 16);
  PlanProblem problem = TestProblem(graph, 16, 1);
  problem.machine = Preset("h200-cluster", 16);
  v1::SearchOptions options = WithStrategy(v1::SearchOptions::DATA_PARALLEL);
  absl::StatusOr<v1::Plan> plan = MakePlan(problem, options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  absl::StatusOr<std::shared_ptr<const Timeline>> timeline = SimulatePlan(problem, *plan);
  ASSERT_TRUE(timeline.ok()) << timeline.status();
  const std::string page = RenderPlanPage(*plan, graph, **timeline);
  EXPECT_NE(page.find("<svg"), std::string::npos);
  EXPECT_NE(page.find("NVIDIA H200"), std::string::npos);
  EXPECT_NE(page.find("host"), std::string::npos);  // a link
  EXPECT_EQ(page.find("<script"), std::string::npos);
  PlanProblem small = problem;  // a topology of fewer devices than there are
  small.machine.topology = Preset("h200-cluster", 8).topology;
  EXPECT_EQ(MakePlan(small, options).status().code(), absl::StatusCode::kInvalidArgument);
  problem.machine.devices.resize(8);
  EXPECT_EQ(SimulatePlan(problem, *plan).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier
