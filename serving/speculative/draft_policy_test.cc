#include "serving/speculative/draft_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <set>
#include <utility>

namespace espalier {
namespace {

StepLatencyModel CostOf(const std::function<double(int)>& seconds) {
  StepLatencyModel cost;
  for (int i = 0; i < 5; ++i) {
    for (int rows = 1; rows <= 300; ++rows) cost.Observe({.rows = rows}, seconds(rows));
  }
  return cost;
}

TEST(StepLatencyModel, KnowsTheCurveBetweenAndBeyondWhatItSaw) {
  StepLatencyModel cost;
  EXPECT_EQ(cost.Seconds(5), 0);
  for (const int rows : {1, 2, 4, 8, 16, 32, 64}) cost.Observe({.rows = rows}, 1 + 0.1 * rows);
  for (const int rows : {1, 3, 8, 20, 50, 64, 100, 200}) {
    EXPECT_NEAR(cost.Seconds(rows), 1 + 0.1 * rows, 0.01) << rows;
  }
}

TEST(StepLatencyModel, InterruptedStepsChangeNothingAndASlowerMachineIsNoticed) {
  std::mt19937 random(1);
  StepLatencyModel cost;
  for (int i = 0; i < 200; ++i) {
    const double noise = 1 + 0.02 * static_cast<double>(random() % 3);
    cost.Observe({.rows = 4}, (i % 5 == 0 ? 50 : 1) * noise);
    cost.Observe({.rows = 12}, 2 * noise);
  }
  EXPECT_NEAR(cost.Seconds(4), 1, 0.06);
  EXPECT_NEAR(cost.Seconds(12), 2, 0.1);
  for (int i = 0; i < 10; ++i) cost.Observe({.rows = 12}, 5);
  EXPECT_NEAR(cost.Seconds(12), 5, 0.01);
}

TEST(StepLatencyModel, MoreRowsNeverCostLess) {
  std::mt19937 random(2);
  StepLatencyModel cost;
  for (int i = 0; i < 500; ++i) {
    const int rows = 1 + static_cast<int>(random() % 250);
    cost.Observe({.rows = rows}, 1 + 0.01 * rows + 0.001 * static_cast<double>(random() % 1000));
  }
  for (int rows = 1; rows < 400; ++rows) {
    EXPECT_LE(cost.Seconds(rows), cost.Seconds(rows + 1) + 1e-12) << rows;
  }
}

TEST(StepLatencyModel, PositionsThatRowsSeeAreTakenOut) {
  StepLatencyModel cost;
  cost.set_rates({.visible = 0.001, .context = 0.002});
  for (int i = 0; i < 20; ++i) {
    cost.Observe({.rows = 4, .visible = 1000.0 * i, .context = 250.0 * i}, 3 + 1.5 * i);
  }
  EXPECT_NEAR(cost.Seconds(4), 3, 1e-9);
  EXPECT_NEAR(cost.Seconds({.rows = 4, .visible = 500, .context = 100}), 3.7, 1e-9);
}

TEST(StepLatencyModel, WhatWasCalibratedInABadMomentIsNotBelievedForLong) {
  StepLatencyModel cost;
  const auto seconds = [](int rows) { return 1 + 0.05 * rows; };
  for (const int rows : {1, 2, 4, 8, 16, 32, 64, 256}) {
    for (int i = 0; i < 3; ++i) cost.Observe({.rows = rows}, 100 * seconds(rows));
  }
  for (int i = 0; i < 1200; ++i) cost.Observe({.rows = 16}, seconds(16));
  EXPECT_NEAR(cost.Seconds(16), seconds(16), 0.1);
  EXPECT_LE(cost.Seconds(4), seconds(16) + 0.1);
  // At most what several of the size that is known would take.
  EXPECT_LE(cost.Seconds(64), 4 * seconds(16) + 0.1);
  EXPECT_LE(cost.Seconds(256), 16 * seconds(16) + 0.1);
  EXPECT_GE(cost.Seconds(256), seconds(16));
}

// Drafting, a server never runs what plain decoding would run; decoding plainly, no tree.
TEST(StepLatencyModel, SizesThatWereNotRunForLongAreNotTakenForTheirNeighbours) {
  const auto seconds = [](int rows) { return 0.5 + 0.1 * rows; };
  for (const int still : {2, 4}) {
    StepLatencyModel cost;
    for (int i = 0; i < 20; ++i) {
      for (const int rows : {1, 2, 4, 6, 8}) cost.Observe({.rows = rows}, seconds(rows));
    }
    for (int i = 0; i < 3000; ++i) cost.Observe({.rows = still}, seconds(still));
    for (const int rows : {1, 4, 6, 8}) {
      EXPECT_NEAR(cost.Seconds(rows), seconds(rows), 1e-6) << rows << ", only " << still;
    }
  }
}

// Neighbours come and go: what is run while they are there is not dearer for it than what is not.
TEST(StepLatencyModel, ASlowSpellMakesNoSizeDearerThanOthers) {
  const auto seconds = [](int rows) { return rows <= 16 ? 1.0 : 1.6; };
  for (const int spell : {5, 8, 40, 400}) {
    for (const int runs : {16, 24}) {
      StepLatencyModel cost;
      for (int i = 0; i < 60; ++i) {
        for (const int rows : {16, 24}) cost.Observe({.rows = rows}, seconds(rows));
      }
      for (int i = 0; i < spell; ++i) cost.Observe({.rows = runs}, 1.4 * seconds(runs));
      EXPECT_NEAR(cost.Seconds(24) / cost.Seconds(16), 1.6, 0.02) << spell << " of " << runs;
      EXPECT_NEAR(cost.Seconds(runs), 1.4 * seconds(runs), 0.02);
      for (int i = 0; i < 8; ++i) cost.Observe({.rows = 16}, seconds(16));
      EXPECT_NEAR(cost.Seconds(24), seconds(24), 0.02);
    }
  }
}

// All that is known is the calibration, when a neighbour comes and what is run changes.
TEST(StepLatencyModel, ASpellRightAfterTheCalibrationMakesNoSizeDearerThanOthers) {
  const auto seconds = [](int rows) { return 0.35 + 0.05 * rows; };
  for (const double pace : {0.7, 1.4}) {
    StepLatencyModel cost;
    for (int i = 0; i < 3; ++i) {
      for (const int rows : {1, 2, 3, 4, 8}) cost.Observe({.rows = rows}, seconds(rows));
    }
    for (int i = 0; i < 400; ++i) {
      cost.Observe({.rows = 3}, (i >= 5 && i < 395 ? pace : 1) * seconds(3));
      if (i < 20 || i > 380) continue;
      EXPECT_NEAR(cost.Seconds(1), pace * seconds(1), 0.01);
    }
    for (int i = 0; i < 400; ++i) cost.Observe({.rows = 1}, seconds(1));
    EXPECT_NEAR(cost.Seconds(3), seconds(3), 0.01);
    EXPECT_NEAR(cost.Seconds(8), seconds(8), 0.02);
  }
}

TEST(StepLatencyModel, WhatIsNotRunGetsSlowerWithTheMachine) {
  StepLatencyModel cost;
  for (int i = 0; i < 40; ++i) {
    for (const int rows : {1, 2}) cost.Observe({.rows = rows}, 1.0 * rows);
  }
  cost.Slow(1.5);
  EXPECT_NEAR(cost.Seconds(2), 3, 1e-9);
  for (int i = 0; i < 20; ++i) cost.Observe({.rows = 1}, 1.5);
  EXPECT_NEAR(cost.Seconds(1), 1.5, 1e-9);
  EXPECT_NEAR(cost.Seconds(2), 3, 1e-9);
}

// What a size costs against the others may change for good, or have been misjudged.
TEST(StepLatencyModel, ASizeThatAloneHasBecomeDearerIsFoundOut) {
  for (const double times : {1.2, 2.5}) {
    StepLatencyModel cost;
    for (int i = 0; i < 60; ++i) {
      for (const int rows : {8, 16, 24}) cost.Observe({.rows = rows}, 0.1 * rows);
    }
    for (int i = 0; i < 250; ++i) {
      for (const int rows : {8, 16, 24}) {
        cost.Observe({.rows = rows}, 0.1 * rows * (rows == 24 ? times : 1));
      }
    }
    EXPECT_NEAR(cost.Seconds(24), 2.4 * times, 0.01);
    EXPECT_NEAR(cost.Seconds(16), 1.6, 0.01);
    EXPECT_NEAR(cost.Seconds(8), 0.8, 0.01);
  }
}

// Steps of one size for hours, on a machine whose times wander: what the others cost against it
// stays known.
TEST(StepLatencyModel, WhatIsNotRunDoesNotDriftAway) {
  std::mt19937 random(6);
  std::normal_distribution<double> normal;
  StepLatencyModel cost;
  double wander = 0;
  const auto observe = [&](int rows) {
    wander = 0.98 * wander + 0.03 * normal(random);
    // Skewed, as times are: rarely much longer.
    const double noise = 0.05 * std::abs(normal(random)) + (random() % 20 == 0 ? 0.5 : 0);
    cost.Observe({.rows = rows}, 0.1 * rows * std::exp(wander + noise));
  };
  for (int i = 0; i < 60; ++i) {
    for (const int rows : {10, 11, 12, 13}) observe(rows);
  }
  for (int i = 0; i < 10000; ++i) {
    observe(10);
    EXPECT_NEAR(cost.Seconds(12) / cost.Seconds(10), 1.2, 0.1) << i;
  }
}

RunnerLimits LargeLimits(int rows, int sequences) {
  return {.vocabulary = 2,
          .kv_slots = 16384,
          .max_rows = rows,
          .max_sequences = sequences,
          .max_context_slots = 16384,
          .max_positions = 1024};
}

// A runner whose steps take what a formula says.
class TimedRunner : public ModelRunner {
 public:
  TimedRunner(RunnerLimits limits, std::function<double(const RunnerBatch&)> seconds)
      : limits_(limits), of_(std::move(seconds)) {}

  RunnerLimits limits() const override { return limits_; }
  absl::Status Step(const RunnerBatch& batch, RunnerOutput* logits) override {
    EXPECT_LE(batch.rows(), limits_.max_rows);
    EXPECT_LE(batch.sequence_start.size(), limits_.max_sequences + 1u);
    EXPECT_LE(batch.sequence_slots.size(), limits_.max_context_slots + 0u);
    EXPECT_THAT(batch.sequence_slots, testing::Each(testing::Lt(limits_.kv_slots)));
    EXPECT_THAT(batch.positions, testing::Each(testing::Lt(limits_.max_positions)));
    for (const int slot : batch.slots) written_.insert(slot);
    for (const int slot : batch.sequence_slots) read_unwritten_ += written_.count(slot) == 0;
    now_ += of_(batch);
    logits->vocabulary = limits_.vocabulary;
    logits->values.assign(batch.logit_rows.size() * limits_.vocabulary, 0);
    return absl::OkStatus();
  }
  std::function<double()> clock() {
    return [this] { return now_; };
  }
  int read_unwritten() const { return read_unwritten_; }

 private:
  RunnerLimits limits_;
  std::function<double(const RunnerBatch&)> of_;
  std::set<int> written_;
  int read_unwritten_ = 0;
  double now_ = 0;
};

TEST(Calibrate, FindsTheCurveAndTellsWhatRowsShareFromWhatTheyPayEach) {
  constexpr double kVisible = 2e-7, kContext = 9e-7;
  const auto curve = [](int rows) { return 0.5e-3 + 0.07e-3 * rows; };
  const auto seconds = [&](const RunnerBatch& batch) {
    double visible = 0;
    for (const int prefix : batch.row_prefix) visible += prefix;
    return curve(batch.rows()) + kVisible * visible +
           kContext * static_cast<double>(batch.sequence_slots.size());
  };
  const RunnerLimits roomy = LargeLimits(512, 128);
  RunnerLimits tight = roomy;
  tight.kv_slots = tight.max_context_slots = 200;
  tight.max_sequences = 3;
  tight.max_rows = 20;
  tight.max_positions = 64;
  for (const RunnerLimits& limits : {roomy, tight}) {
    TimedRunner runner(limits, seconds);
    StepLatencyModel cost;
    ASSERT_TRUE(Calibrate(runner, 400, 2, runner.clock(), &cost).ok());
    EXPECT_EQ(runner.read_unwritten(), 0);
    EXPECT_NEAR(cost.rates().visible, kVisible, 0.05 * kVisible);
    EXPECT_NEAR(cost.rates().context, kContext, 0.05 * kContext);
    for (const int rows : {1, 7, 20, limits.max_rows}) {
      EXPECT_NEAR(cost.Seconds(rows), curve(rows), 0.05 * curve(rows)) << rows;
    }
  }
}

// A neighbour comes, or goes, at any moment of it.
TEST(Calibrate, ASpellMakesNoSizeDearerThanOthers) {
  const auto curve = [](int rows) { return 0.5e-3 + 0.07e-3 * rows; };
  const RunnerLimits limits = LargeLimits(256, 256);
  for (int change = 0; change < 200; change += 7) {
    for (const bool comes : {true, false}) {
      int step = 0;
      TimedRunner runner(limits, [&](const RunnerBatch& batch) {
        return curve(batch.rows()) * ((step++ < change) == comes ? 1 : 1.5);
      });
      StepLatencyModel cost;
      ASSERT_TRUE(Calibrate(runner, 256, 2, runner.clock(), &cost).ok());
      for (const int rows : {1, 2, 4, 7, 16, 32, 64, 256}) {
        EXPECT_NEAR(cost.Seconds(rows) / cost.Seconds(8), curve(rows) / curve(8),
                    0.05 * curve(rows) / curve(8))
            << rows << ", " << change << ", " << comes;
      }
    }
  }
}

TEST(Calibrate, WhatALargeBatchLeavesInTheCachesMakesNoSizeDearer) {
  const auto curve = [](int rows) { return 0.2e-3 + 0.05e-3 * rows; };
  int last = 0, since = 0;
  TimedRunner runner(LargeLimits(256, 256), [&](const RunnerBatch& batch) {
    since = batch.rows() < last / 2 ? 0 : since + 1;
    last = batch.rows();
    return curve(batch.rows()) * (since == 0 ? 1.4 : since == 1 ? 1.1 : 1);
  });
  StepLatencyModel cost;
  ASSERT_TRUE(Calibrate(runner, 256, 2, runner.clock(), &cost).ok());
  for (const int rows : {1, 2, 3, 8, 64}) {
    EXPECT_NEAR(cost.Seconds(rows), curve(rows), 0.05 * curve(rows)) << rows;
  }
}

TEST(Calibrate, LargeStepsOfAModelWithFewPositionsAreSeveralPrompts) {
  const auto curve = [](int rows) { return (rows > 100 ? 4e-3 : 0.2e-3) + 0.05e-3 * rows; };
  RunnerLimits limits = LargeLimits(256, 16);
  limits.max_positions = 64;
  TimedRunner runner(limits, [&](const RunnerBatch& batch) { return curve(batch.rows()); });
  StepLatencyModel cost;
  ASSERT_TRUE(Calibrate(runner, 256, 2, runner.clock(), &cost).ok());
  for (const int rows : {16, 64, 130, 256}) {
    EXPECT_NEAR(cost.Seconds(rows), curve(rows), 0.05 * curve(rows)) << rows;
  }
}

TEST(Calibrate, ASlowModelIsMeasuredForAboutAsLongAsWasAsked) {
  TimedRunner runner(LargeLimits(512, 128),
                     [](const RunnerBatch& batch) { return 0.4 + 0.05 * batch.rows(); });
  StepLatencyModel cost;
  ASSERT_TRUE(Calibrate(runner, 512, 2, runner.clock(), &cost).ok());
  EXPECT_LT(runner.clock()(), 6);
  EXPECT_GT(cost.Seconds(1), 0.4);
}

TEST(AcceptanceEstimator, LearnsChancesByProbabilityAndByRank) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> uniform;
  AcceptanceEstimator acceptance;
  // An overconfident drafter: right half as often as it says; rank 1 gets a tenth.
  for (int i = 0; i < 20000; ++i) {
    const double q = uniform(random);
    acceptance.Observe({1 + i % 3, 0, q, uniform(random) < q / 2});
    acceptance.Observe({1 + i % 3, 1, 0.001, uniform(random) < 0.1});
  }
  EXPECT_NEAR(acceptance.OfProbability(0.5, 1, 0), 0.25, 0.08);
  EXPECT_NEAR(acceptance.OfProbability(0.9, 1, 0), 0.45, 0.1);
  EXPECT_NEAR(acceptance.OfProbability(0.001, 1, 1), 0.1, 0.04);
  EXPECT_NEAR(acceptance.OfRank(2, 0), 0.25, 0.06);
  EXPECT_NEAR(acceptance.OfRank(2, 1), 0.1, 0.04);
  EXPECT_EQ(acceptance.OfRank(2, AcceptanceEstimator::kRanks), 0);
}

TEST(AcceptanceEstimator, DepthsThatWereNotTriedAreLikeTheOnesAbove) {
  AcceptanceEstimator acceptance;
  for (int i = 0; i < 300; ++i) acceptance.Observe({1, 0, 0.3, i % 10 != 0});
  EXPECT_GT(acceptance.OfRank(1, 0), 0.87);
  EXPECT_GT(acceptance.OfRank(6, 0), 0.8);
  EXPECT_LT(acceptance.OfRank(6, 1), 0.2);
}

// Nothing deep is drafted any more, and so nothing is learned of it.
// Agreement so far makes further agreement more likely than the drafter's probabilities say.
TEST(AcceptanceEstimator, ChancesByProbabilityDependOnDepth) {
  std::mt19937 random(9);
  std::uniform_real_distribution<double> uniform;
  AcceptanceEstimator acceptance;
  const auto truth = [](int depth) { return depth == 1 ? 0.6 : 0.9; };
  for (int i = 0; i < 3000; ++i) {
    for (int depth = 1; depth <= 4; ++depth) {
      const bool accepted = uniform(random) < truth(depth);
      acceptance.Observe({.depth = depth, .probability = 0.8, .accepted = accepted});
      if (!accepted) break;
    }
  }
  for (int depth = 1; depth <= 4; ++depth) {
    EXPECT_NEAR(acceptance.OfProbability(0.8, depth, 0), truth(depth), 0.06) << depth;
    EXPECT_LE(acceptance.Least(depth, 0), acceptance.OfProbability(0.8, depth, 0)) << depth;
  }
}

TEST(AcceptanceEstimator, AFewUnluckyTrialsAreNotTheLastOnes) {
  AcceptanceEstimator acceptance;
  for (int i = 0; i < 200; ++i)
    acceptance.Observe({.depth = 1, .probability = 0.9, .accepted = true});
  for (int i = 0; i < 12; ++i) acceptance.Observe({.depth = 2, .probability = 0.9});
  const double unlucky = acceptance.OfRank(2, 0), first = acceptance.OfRank(1, 0);
  EXPECT_LT(unlucky, 0.4);
  for (int step = 0; step < 100; ++step) acceptance.Fade();
  EXPECT_LT(acceptance.OfRank(2, 0), 0.4);
  for (int step = 0; step < 5000; ++step) acceptance.Fade();
  EXPECT_GT(acceptance.OfRank(2, 0), 0.7);
  EXPECT_EQ(acceptance.OfRank(1, 0), first);
}

TEST(AcceptanceEstimator, BestNodesAreTheBestPathsOfAll) {
  AcceptanceEstimator acceptance;
  const double by_rank[] = {0.6, 0.2, 0.1, 0.02, 0.01, 0.01, 0.01, 0.01};
  std::mt19937_64 random(4);
  std::uniform_real_distribution<double> uniform;
  for (int i = 0; i < 4000; ++i) {
    for (int depth = 1; depth <= 4; ++depth) {
      for (int rank = 0; rank < 8; ++rank) {
        acceptance.Observe({depth, rank, 0.5, uniform(random) < by_rank[rank] / depth});
      }
    }
  }
  // All paths of ranks, by recursion.
  std::vector<double> all;
  const std::function<void(double, int)> visit = [&](double value, int depth) {
    for (int rank = 0; depth <= 4 && rank < AcceptanceEstimator::kRanks; ++rank) {
      all.push_back(value * acceptance.OfRank(depth, rank));
      visit(all.back(), depth + 1);
    }
  };
  visit(1, 1);
  std::sort(all.rbegin(), all.rend());
  const std::vector<AcceptanceEstimator::Node> nodes = acceptance.BestNodes(4, 20);
  ASSERT_EQ(nodes.size(), 20u);
  double sum = 0, best = 0;
  for (int i = 0; i < 20; ++i) {
    sum += nodes[i].value;
    best += all[i];
    EXPECT_LT(nodes[i].parent, i);
    EXPECT_EQ(nodes[i].depth, nodes[i].parent < 0 ? 1 : nodes[nodes[i].parent].depth + 1);
  }
  EXPECT_NEAR(sum, best, 0.02);
}

TEST(RequestAcceptance, LeavesOneSlowlyAndComesBack) {
  RequestAcceptance factor;
  EXPECT_EQ(factor.value(), 1);
  factor.Observe(0.6, false);
  EXPECT_GT(factor.value(), 0.85);  // one trial decides nothing
  for (int i = 0; i < 200; ++i) factor.Observe(0.6, false);
  EXPECT_LT(factor.value(), 0.2);
  for (int i = 0; i < 3000; ++i) factor.Fade();
  EXPECT_GT(factor.value(), 0.95);
}

// Most candidates of a text that repeats itself are near certain and come: that says little of the
// few that are not, and a few that did not come say much.
TEST(RequestAcceptance, OddsOfFailingAreThoseOfTheRequest) {
  for (const double times : {0.5, 1.0, 3.0}) {
    std::mt19937 random(3);
    std::uniform_real_distribution<double> uniform;
    RequestAcceptance factor;
    EXPECT_EQ(factor.failing(), 1);
    double sum = 0;
    for (int i = 0; i < 4000; ++i) {
      const double average = i % 8 == 0 ? 0.7 : 0.98;
      const double odds = (1 - average) / average * times;
      factor.Observe(average, uniform(random) * (1 + odds) > odds);
      if (i >= 400) sum += factor.failing() / 3600;
    }
    // Shrunk towards 1.
    EXPECT_NEAR(std::log(sum), 0.4 * std::log(times), 0.2) << times;
  }
}

TEST(ChooseNodes, IsTheBestOfAllCounts) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> uniform;
  for (int run = 0; run < 200; ++run) {
    const double fixed = uniform(random) * 5, row = uniform(random) * 0.5, block = uniform(random);
    const StepLatencyModel llm =
        CostOf([&](int rows) { return fixed + row * rows + block * ((rows + 7) / 8); });
    std::vector<double> chances;
    for (int i = 0; i < 60; ++i) chances.push_back(uniform(random));
    std::sort(chances.rbegin(), chances.rend());
    StepLoad load{.decoding = 1 + static_cast<int>(random() % 16),
                  .other_rows = run % 2 ? 0 : static_cast<int>(random() % 100),
                  .drafting = uniform(random)};
    const int chosen = ChooseNodes(load, llm, chances, 50);
    const auto rate = [&](int n) {
      double gain = load.decoding;
      for (int i = 0; i < n; ++i) gain += chances[i];
      return gain / StepSeconds(load, llm, n);
    };
    for (int n = 0; n <= 50; ++n) EXPECT_GE(rate(chosen), rate(n) - 1e-9);
  }
}

// Good and bad steps alternate; what is verified of each is to maximise the tokens of all over the
// time of all.
TEST(DraftValue, ChargingTimeAtTheLongRunRateMaximizesIt) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> uniform;
  for (int run = 0; run < 50; ++run) {
    const double fixed = uniform(random), row = 0.02 + 0.1 * uniform(random);
    const StepLatencyModel llm = CostOf([&](int rows) { return fixed + row * rows; });
    const StepLoad load{.decoding = 1};
    std::vector<std::vector<double>> steps(2);
    for (size_t i = 0; i < 2; ++i) {
      for (int n = 0; n < 8; ++n) steps[i].push_back(uniform(random) * (i == 0 ? 1 : 0.5));
      std::sort(steps[i].rbegin(), steps[i].rend());
    }
    const auto rate = [&](int a, int b) {
      double tokens = 2;
      for (int n = 0; n < a; ++n) tokens += steps[0][n];
      for (int n = 0; n < b; ++n) tokens += steps[1][n];
      return tokens / (StepSeconds(load, llm, a) + StepSeconds(load, llm, b));
    };
    double best = 0;
    for (int a = 0; a <= 8; ++a) {
      for (int b = 0; b <= 8; ++b) best = std::max(best, rate(a, b));
    }
    DraftValue value(load, llm, best);
    EXPECT_NEAR(rate(value.Of(steps[0]).nodes, value.Of(steps[1]).nodes), best, 1e-9);
  }
}

TEST(ChooseDraft, DraftsWhereRowsAreCheapOnly) {
  const AcceptanceEstimator acceptance = {};  // its prior: six in ten
  const StepLatencyModel ssm = CostOf([](int) { return 0.1; });
  const std::vector<DraftCandidate> offers(4);
  const StepLoad load{.decoding = 4};
  const StepLatencyModel flat = CostOf([](int) { return 10.0; });
  const DraftChoice free = ChooseDraft(load, flat, ssm, acceptance, offers, {}, 0.01);
  EXPECT_EQ(free.requests, 4);
  EXPECT_GT(free.nodes, 8);
  EXPECT_GT(free.rate, 1.4 * StepGoodput(load, flat));
  const StepLatencyModel steep = CostOf([](int rows) { return 2.5 * rows; });
  const DraftChoice dear = ChooseDraft(load, steep, ssm, acceptance, offers, {}, 0.01);
  EXPECT_EQ(dear.requests, 0);
  EXPECT_DOUBLE_EQ(dear.rate, StepGoodput(load, steep));
  // A slow SSM is not worth it either, and room for two rows is used and no more.
  const StepLatencyModel slow = CostOf([](int) { return 20.0; });
  EXPECT_EQ(ChooseDraft(load, flat, slow, acceptance, offers, {}, 0.01).requests, 0);
  const DraftChoice tight = ChooseDraft(load, flat, ssm, acceptance, offers, {.rows = 6}, 0.01);
  EXPECT_LE(tight.requests * tight.nodes, 2);
  EXPECT_GT(tight.requests, 0);
}

TEST(ChooseDraft, OmitsRequestsWithLowAcceptance) {
  const AcceptanceEstimator acceptance = {};
  const StepLatencyModel ssm = CostOf([](int) { return 0.05; });
  const StepLatencyModel llm = CostOf([](int rows) { return 4.0 + 0.5 * rows; });
  std::vector<DraftCandidate> offers(8, {.factor = 0.02});
  for (int i = 0; i < 4; ++i) offers[i].factor = 1.2;
  const DraftChoice choice = ChooseDraft({.decoding = 8}, llm, ssm, acceptance, offers, {}, 0.01);
  EXPECT_EQ(choice.requests, 4);
}

// A request that is left out for a step costs prefill in the next one.
TEST(ChooseDraft, TakesAllRequestsWithSimilarAcceptance) {
  const AcceptanceEstimator acceptance = {};
  // Half of them would fill the block.
  const StepLatencyModel ssm = CostOf([](int rows) { return 0.2 * ((rows + 3) / 4); });
  const StepLatencyModel llm = CostOf([](int rows) { return 4.0 + 2 * ((rows + 11) / 12); });
  std::vector<DraftCandidate> offers(8);
  for (int i = 0; i < 8; ++i) offers[i].factor = 1.1 - 0.03 * i;
  const DraftChoice choice = ChooseDraft({.decoding = 8}, llm, ssm, acceptance, offers, {}, 0.01);
  EXPECT_EQ(choice.requests, 8);
}

TEST(ChooseDraft, PrefillCostsCount) {
  const AcceptanceEstimator acceptance = {};
  const StepLatencyModel ssm = CostOf([](int rows) { return 0.05 * rows; });
  const StepLatencyModel llm = CostOf([](int) { return 1.0; });
  const auto choose = [&](int behind, double horizon) {
    const std::vector<DraftCandidate> offers = {{.prefill_tokens = behind}};
    return ChooseDraft({.decoding = 1}, llm, ssm, acceptance, offers, {.horizon = horizon}, 0.01);
  };
  EXPECT_EQ(choose(0, 64).requests, 1);
  EXPECT_EQ(choose(4000, 4).requests, 0);
  EXPECT_LT(choose(300, 64).rate, choose(0, 64).rate);
}

}  // namespace
}  // namespace espalier
