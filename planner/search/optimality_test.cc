// Compares the search with the optimum over all placements, and checks guarantees of its parts. The
// benchmark search_optimality runs more problems.
#include <algorithm>
#include <cstdio>
#include <string>

#include "gtest/gtest.h"
#include "planner/cost/analytic_cost.h"
#include "planner/search/elimination.h"
#include "planner/search/local_search.h"
#include "planner/testing/exhaustive_search.h"
#include "planner/testing/small_problems.h"

namespace espalier {
namespace {

// A problem with its search state.
struct Bench {
  explicit Bench(SmallProblem p)
      : small(std::move(p)),
        problem(small.Problem()),
        structure(*BuildStructure(*problem.registry, small.graph, false)),
        table(structure),
        costs(structure, table, problem.machine, analytic, problem.optimizer),
        devices(static_cast<int>(problem.machine.devices.size())),
        space(structure, {.num_devices = devices}),
        simulator(structure, table, costs) {}

  Placement Everywhere(NodeConfig (*choose)(const SplitRule&, int), int argument) {
    Placement placement(structure.nodes.size(), nullptr);
    for (NodeId n : structure.LiveNodes()) {
      placement[n] = table.Get(n, choose(structure.nodes[n].rule, argument));
    }
    return placement;
  }
  Placement Random(uint64_t seed) {
    espalier::Random random(seed);
    Placement placement(structure.nodes.size(), nullptr);
    for (NodeId n : structure.LiveNodes()) {
      placement[n] = table.Get(n, space.Draw(n, &random));
    }
    return placement;
  }
  Picoseconds CostOf(const Placement& placement) {
    EXPECT_EQ(simulator.Reset(placement), absl::OkStatus());
    return simulator.cost();
  }

  SmallProblem small;
  PlanProblem problem;
  PcgStructure structure;
  ConfigTable table;
  AnalyticCost analytic;
  CostTables costs;
  int devices;
  SearchSpace space;
  Simulator simulator;
};

constexpr int kProblems = 40;
constexpr double kMostPlacements = 20'000;

// Problem `seed` with as many operators as keep the number of placements small.
std::unique_ptr<Bench> SmallBench(uint64_t seed) {
  for (int operators = 8;; --operators) {
    auto bench =
        std::make_unique<Bench>(RandomProblem(seed, 2 + static_cast<int>(seed % 3), operators));
    if (operators == 1 || CountPlacements(bench->space) <= kMostPlacements) return bench;
  }
}

TEST(OptimalityTest, PlansAreWithinAPercentOfTheOptimum) {
  int close = 0;
  for (uint64_t seed = 0; seed < kProblems; ++seed) {
    auto bench = SmallBench(seed);
    absl::StatusOr<ExhaustivePlacement> optimum =
        PlaceExhaustively(bench->structure, bench->space, bench->table, &bench->simulator);
    ASSERT_TRUE(optimum.ok()) << optimum.status();
    EXPECT_EQ(static_cast<double>(optimum->placements), CountPlacements(bench->space));
    EXPECT_EQ(bench->CostOf(optimum->placement), optimum->cost);
    v1::SearchOptions options;
    options.set_micro_batches(1);  // the enumeration has no micro-batches
    absl::StatusOr<v1::Plan> plan = MakePlan(bench->problem, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const double ratio = plan->prediction().step_seconds() / ToSeconds(optimum->cost);
    EXPECT_GE(ratio, 1 - 1e-9) << bench->small.name;
    EXPECT_LE(ratio, 1.1) << bench->small.name;
    close += ratio <= 1.01 ? 1 : 0;
  }
  std::printf("%d of %d within 1 %%\n", close, kProblems);
  EXPECT_GE(close, kProblems * 95 / 100);
}

TEST(LocalSearchTest, ResultIsALocalOptimum) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    auto bench = SmallBench(seed);
    const Picoseconds before = bench->CostOf(bench->Random(seed));
    Moves moves(bench->space, bench->table);
    absl::StatusOr<LocalSearchResult> result = RunLocalSearch(moves, &bench->simulator, 1'000'000);
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_TRUE(result->finished);
    const Placement found = bench->simulator.placement();
    const Picoseconds cost = bench->simulator.cost();
    EXPECT_LE(cost, before);
    Simulator fresh(bench->structure, bench->table, bench->costs, /*full_only=*/true);
    for (NodeId n : bench->structure.LiveNodes()) {
      for (const ConfigEntry* entry : moves.All(n)) {
        Placement other = found;
        other[n] = entry;
        ASSERT_EQ(fresh.Reset(other), absl::OkStatus());
        EXPECT_GE(fresh.cost(), cost) << bench->small.name;
      }
    }
  }
}

TEST(LocalSearchTest, KeepsToItsBudget) {
  Bench bench(RandomProblem(3, 4, 8));
  bench.CostOf(bench.Random(1));
  Moves moves(bench.space, bench.table);
  absl::StatusOr<LocalSearchResult> result = RunLocalSearch(moves, &bench.simulator, 25);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->proposals, 25);
  EXPECT_FALSE(result->finished);
}

// A chain on one device is a serial step, and the sum equals the simulated time to the picosecond;
// dynamic programming is then exact if it has all choices. With two equal devices and every
// operator on the first or on both, it is exact except for overlap.
TEST(EliminationTest, IsNearSerialOptimum) {
  int better = 0, worse = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    Bench bench(RandomProblem(seed, 2 + static_cast<int>(seed % 3), 12));
    const Placement data = bench.Everywhere(DataParallel, bench.devices);
    const Picoseconds fixed =
        std::min(bench.CostOf(data), bench.CostOf(bench.Everywhere(OnDevice, 0)));
    absl::StatusOr<Placement> found =
        EliminationPlacement(bench.space, bench.table, bench.costs, data);
    ASSERT_TRUE(found.ok()) << found.status();
    const Picoseconds cost = bench.CostOf(*found);
    better += cost < fixed ? 1 : 0;
    worse += cost > fixed + fixed / 100 ? 1 : 0;
  }
  std::printf("better %d, worse %d of 60\n", better, worse);
  EXPECT_GE(better, 40);
  EXPECT_LE(worse, 3);
}

}  // namespace
}  // namespace espalier
