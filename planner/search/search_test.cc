#include "planner/search/search.h"

#include "gtest/gtest.h"
#include "ops/graph/builder.h"
#include "planner/cost/analytic_cost.h"
#include "planner/search/branch_placement.h"
#include "planner/search/elimination.h"
#include "planner/search/mcmc.h"
#include "planner/search/moves.h"
#include "planner/testing/graphs.h"

namespace espalier {
namespace {

struct Bench {
  Bench(Graph g, int devices)
      : graph(std::move(g)),
        structure(*BuildStructure(TestRegistry(), graph, false)),
        table(structure),
        costs(structure, table, TestMachine(devices), analytic, TestOptimizer()),
        space(structure, {.num_devices = devices}) {}

  Placement DataParallelOver(int devices) {
    Placement placement(structure.nodes.size(), nullptr);
    for (NodeId n : structure.LiveNodes()) {
      placement[n] = table.Get(n, DataParallel(structure.nodes[n].rule, devices));
    }
    return placement;
  }

  // The best of all placements, by enumeration.
  Picoseconds BruteForce() {
    Simulator simulator(structure, table, costs);
    const std::vector<NodeId> nodes = structure.LiveNodes();
    std::vector<std::vector<const ConfigEntry*>> choices;
    for (NodeId n : nodes) {
      choices.emplace_back();
      for (const NodeConfig& config : space.All(n)) {
        choices.back().push_back(table.Get(n, config));
      }
    }
    Placement placement(structure.nodes.size(), nullptr);
    for (size_t i = 0; i < nodes.size(); ++i) placement[nodes[i]] = choices[i][0];
    EXPECT_EQ(simulator.Reset(placement), absl::OkStatus());
    Picoseconds best = simulator.cost();
    std::vector<size_t> at(nodes.size(), 0);
    while (true) {
      size_t i = 0;
      std::vector<Simulator::Change> changes;
      for (; i < nodes.size(); ++i) {
        at[i] = at[i] + 1 < choices[i].size() ? at[i] + 1 : 0;
        changes.emplace_back(nodes[i], choices[i][at[i]]);
        if (at[i] > 0) break;
      }
      if (i == nodes.size()) return best;
      absl::StatusOr<Picoseconds> cost = simulator.Propose(changes);
      EXPECT_TRUE(cost.ok());
      best = std::min(best, *cost);
    }
  }

  Graph graph;
  PcgStructure structure;
  ConfigTable table;
  AnalyticCost analytic;
  CostTables costs;
  SearchSpace space;
};

// Sizes from where one device is best to where all are.
TEST(McmcTest, FindsTheOptimumOfSmallGraphs) {
  for (int64_t batch : {8, 512, 8192}) {
    for (int64_t hidden : {32, 1024}) {
      Bench bench(Mlp(batch, hidden, 64, 16), 2);
      const Picoseconds optimum = bench.BruteForce();
      Simulator simulator(bench.structure, bench.table, bench.costs);
      Moves moves(bench.space, bench.table);
      ASSERT_EQ(simulator.Reset(bench.DataParallelOver(2)), absl::OkStatus());
      absl::StatusOr<McmcResult> result =
          RunMcmc(moves, &simulator, {.budget = 4000, .alpha = 1.0, .seed = 1});
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->cost, optimum) << "batch " << batch << " hidden " << hidden;
      EXPECT_EQ(simulator.cost(), result->cost);
    }
  }
}

TEST(McmcTest, SameSeedSamePlacement) {
  auto run = [](uint64_t seed) {
    Bench bench(Cnn(64), 4);
    Simulator simulator(bench.structure, bench.table, bench.costs);
    Moves moves(bench.space, bench.table);
    EXPECT_EQ(simulator.Reset(bench.DataParallelOver(4)), absl::OkStatus());
    absl::StatusOr<McmcResult> result =
        RunMcmc(moves, &simulator, {.budget = 600, .alpha = 1.0, .seed = seed});
    EXPECT_TRUE(result.ok());
    std::vector<NodeConfig> configs;
    for (const ConfigEntry* entry : result->best) {
      configs.push_back(entry == nullptr ? NodeConfig() : entry->config);
    }
    return std::make_tuple(configs, result->cost, result->accepted);
  };
  EXPECT_EQ(run(5), run(5));
  EXPECT_NE(std::get<2>(run(5)), std::get<2>(run(6)));
}

TEST(McmcTest, ZeroAlphaAcceptsEverythingAndStillReturnsTheBest) {
  Bench bench(Mlp(64), 2);
  Simulator simulator(bench.structure, bench.table, bench.costs);
  Moves moves(bench.space, bench.table);
  ASSERT_EQ(simulator.Reset(bench.DataParallelOver(2)), absl::OkStatus());
  const Picoseconds start = simulator.cost();
  absl::StatusOr<McmcResult> result =
      RunMcmc(moves, &simulator, {.budget = 300, .alpha = 0, .seed = 2});
  ASSERT_TRUE(result.ok());
  EXPECT_GT(result->accepted, 150);
  EXPECT_LE(result->cost, start);
}

// Early stopping and lazy memory accounting change no decision. Memory is too small for most
// placements, so that penalties decide. Two branches whose sizes cannot be divided: in parallel
// they take half of their serial time.
TEST(BranchesTest, UnsplittableBranchesRunConcurrently) {
  GraphBuilder b(TestRegistry(), "two_branches");
  const ValueId x = b.Input("x", DType::kF32, {-1, 509});
  std::vector<ValueId> ends;
  for (const char* name : {"left", "right"}) {
    ValueId h = x;
    for (int i = 0; i < 3; ++i) {
      const std::string layer = name + std::to_string(i);
      const ValueId w = b.Parameter(layer + ".weight", DType::kF32, {509, 509}, {});
      h = b.Op("linear", {h, w}, {}, layer);
    }
    ends.push_back(h);
  }
  const ValueId sum = b.Op("add", ends, {}, "sum");
  b.Output("loss", b.Op("mean_squared_error", {sum, b.Input("labels", DType::kF32, {-1, 509})}, {},
                        "loss"));
  absl::StatusOr<Graph> graph = b.Build();
  ASSERT_TRUE(graph.ok()) << graph.status();
  ASSERT_EQ(BindAndInfer(TestRegistry(), 127, &*graph), absl::OkStatus());
  Bench bench(*graph, 2);
  Simulator simulator(bench.structure, bench.table, bench.costs);
  const Placement one = bench.DataParallelOver(1);
  const absl::StatusOr<Placement> serial =
      EliminationPlacement(bench.space, bench.table, bench.costs, one);
  ASSERT_TRUE(serial.ok()) << serial.status();
  ASSERT_EQ(simulator.Reset(*serial), absl::OkStatus());
  const double before = ToSeconds(simulator.cost());
  ASSERT_EQ(SplitBranches(bench.space, bench.table, bench.costs, one, &simulator),
            absl::OkStatus());
  EXPECT_LT(ToSeconds(simulator.cost()), 0.65 * before);
}

TEST(McmcTest, StopsWithTheBestSoFar) {
  Bench bench(Mlp(512, 64), 4);
  Simulator simulator(bench.structure, bench.table, bench.costs);
  bool searches = false;  // initial placements are done
  McmcOptions options{.budget = 100'000};
  options.progress = [&](double) { searches = true; };
  options.stop = [&] { return searches; };
  const absl::StatusOr<McmcResult> result = FindPlacement(
      bench.space, bench.table, bench.costs, {bench.DataParallelOver(1)}, options, &simulator);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->proposals, 0);
  EXPECT_LT(result->proposals, 2000);
  EXPECT_EQ(simulator.cost(), result->cost);
  ASSERT_EQ(simulator.Reset(bench.DataParallelOver(1)), absl::OkStatus());
  EXPECT_LE(result->cost, simulator.cost());
}

TEST(McmcTest, StopsWhileItLooksForAStart) {
  Bench bench(Mlp(512, 64), 4);
  Simulator simulator(bench.structure, bench.table, bench.costs);
  McmcOptions options{.budget = 100'000};
  options.stop = [] { return true; };
  const Placement one = bench.DataParallelOver(1);
  const absl::StatusOr<McmcResult> result =
      FindPlacement(bench.space, bench.table, bench.costs, {one}, options, &simulator);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->proposals, 0);
  EXPECT_EQ(result->best, one);
}

TEST(McmcTest, FullAndDeltaSimulationGiveTheSameChain) {
  for (const std::optional<double> alpha : {std::optional<double>(), std::optional<double>(1.0)}) {
    auto run = [&alpha](bool full_only) {
      const Graph graph = Llama(SmallLlama(2));
      const PcgStructure structure = *BuildStructure(TestRegistry(), graph, false);
      ConfigTable table(structure);
      AnalyticCost analytic;
      CostTables costs(structure, table, TestMachine(4, 120'000), analytic, TestOptimizer());
      const SearchSpace space(structure, {.num_devices = 4});
      Simulator simulator(structure, table, costs, full_only);
      Moves moves(space, table);
      Placement placement(structure.nodes.size(), nullptr);
      for (NodeId n : structure.LiveNodes()) {
        placement[n] = table.Get(n, DataParallel(structure.nodes[n].rule, 4));
      }
      EXPECT_EQ(simulator.Reset(placement), absl::OkStatus());
      absl::StatusOr<McmcResult> result =
          RunMcmc(moves, &simulator, {.budget = 3000, .alpha = alpha, .seed = 4});
      EXPECT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(simulator.cost(), result->cost);
      std::vector<NodeConfig> configs;
      for (const ConfigEntry* entry : result->best) {
        configs.push_back(entry == nullptr ? NodeConfig() : entry->config);
      }
      return std::make_tuple(configs, result->cost, result->accepted, result->proposals);
    };
    const auto delta = run(false);
    EXPECT_EQ(delta, run(true));
    EXPECT_GT(std::get<2>(delta), 20);
    EXPECT_LT(std::get<2>(delta), 2900);
  }
}

TEST(SearchSpaceTest, OptionsDisableAxes) {
  const Graph graph = Llama(SmallLlama());
  absl::StatusOr<PcgStructure> structure = BuildStructure(TestRegistry(), graph, false);
  ASSERT_TRUE(structure.ok());
  const SearchSpace space(
      *structure, {.num_devices = 4, .parameter_parallel = false, .attribute_parallel = false});
  Random random(1);
  for (NodeId n : space.nodes()) {
    for (const NodeConfig& config : space.All(n)) {
      ASSERT_EQ(CheckConfig(structure->nodes[n].rule, config, 4), absl::OkStatus());
      for (size_t a = 0; a < config.degrees.size(); ++a) {
        if (config.degrees[a] > 1) {
          EXPECT_EQ(structure->nodes[n].rule.axes[a].kind, AxisKind::kSample);
        }
      }
    }
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(CheckConfig(structure->nodes[n].rule, space.Draw(n, &random), 4), absl::OkStatus());
    }
  }
}

TEST(SearchSpaceTest, PropagationKeepsTheTensorInPlace) {
  const Graph graph = Llama(SmallLlama());
  absl::StatusOr<PcgStructure> structure = BuildStructure(TestRegistry(), graph, false);
  ASSERT_TRUE(structure.ok());
  const SearchSpace space(*structure, {.num_devices = 2});
  ConfigTable table(*structure);
  Moves moves(space, table);
  Random random(3);
  int spread = 0;
  for (int round = 0; round < 500; ++round) {
    const NodeId node = space.nodes()[random.Below(static_cast<int64_t>(space.nodes().size()))];
    const NodeConfig config = DataParallel(structure->nodes[node].rule, 2);
    Moves::Changes changes = {{node, table.Get(node, config)}};
    moves.Propagate(&random, &changes);
    for (const auto& [changed, follows] : changes) {
      EXPECT_EQ(CheckConfig(structure->nodes[changed].rule, follows->config, 2), absl::OkStatus());
      EXPECT_EQ(follows->config.devices, config.devices);
    }
    spread += static_cast<int>(changes.size()) - 1;
  }
  EXPECT_GT(spread, 200);
}

TEST(SearchSpaceTest, LayersAreAlike) {
  const Graph graph = Llama(SmallLlama(4));
  absl::StatusOr<PcgStructure> structure = BuildStructure(TestRegistry(), graph, false);
  ASSERT_TRUE(structure.ok());
  const SearchSpace space(*structure, {.num_devices = 2});
  for (NodeId n : space.nodes()) {
    if (graph.node(n).name == "layers.1.mlp.down_proj") {
      EXPECT_EQ(space.EqualNodes(n).size(), 4u);
    }
  }
}

}  // namespace
}  // namespace espalier
