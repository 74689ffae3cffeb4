// Compares plans for devices with too little memory with the optimum: all placements at all ZeRO
// stages, each with swaps and recomputation. The benchmark search_optimality runs more of them
// (--memory).
#include <cstdio>

#include "gtest/gtest.h"
#include "planner/testing/exhaustive_planner.h"
#include "planner/testing/graphs.h"

namespace espalier {
namespace {

constexpr int kProblems = 40;
constexpr double kMostPlacements = 400;

TEST(MemoryOptimalityTest, PlansAreWithinAPercentOfTheFastestThatFits) {
  int compared = 0, close = 0, made_to_fit = 0, sharded = 0;
  for (int seed = 0; seed < kProblems; ++seed) {
    absl::StatusOr<LowMemoryProblem> tight = MakeLowMemoryProblem(seed, kMostPlacements);
    ASSERT_TRUE(tight.ok()) << tight.status();
    if (!tight->is_low) continue;
    const PlanProblem problem = tight->small.Problem();
    const absl::StatusOr<v1::Plan> plan = MakePlan(problem, tight->options);
    ASSERT_TRUE(plan.ok()) << seed << ": " << plan.status();
    for (int64_t bytes : plan->prediction().peak_bytes()) {
      EXPECT_LE(bytes, problem.machine.devices[0].memory_bytes()) << seed;
    }
    const double ratio = plan->prediction().step_seconds() / tight->optimum.seconds;
    EXPECT_GE(ratio, 1 - 1e-9) << seed;
    ++compared;
    close += ratio <= 1.01;
    made_to_fit += tight->optimum.made_to_fit;
    sharded += tight->optimum.zero_stage > 0;
  }
  std::printf("%d of %d within 1 %%; of the optima %d swap or recompute, %d share out state\n",
              close, compared, made_to_fit, sharded);
  // Problems where memory limits the plan.
  EXPECT_GE(compared, kProblems / 2);
  EXPECT_GE(made_to_fit, kProblems / 8);
  EXPECT_GE(close, compared * 95 / 100);
}

}  // namespace
}  // namespace espalier
