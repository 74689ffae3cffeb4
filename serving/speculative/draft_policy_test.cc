#include "serving/speculative/draft_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

namespace espalier {
namespace {

StepLatency LatencyOf(const std::function<double(int)>& seconds) {
  StepLatency latency;
  for (int rows = 1; rows <= 300; ++rows) latency.Observe(rows, seconds(rows));
  return latency;
}

TEST(ChooseNodes, IsTheBestOfAllCounts) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> uniform;
  for (int run = 0; run < 200; ++run) {
    const double fixed = uniform(random) * 5, row = uniform(random) * 0.5, block = uniform(random);
    const StepLatency llm =
        LatencyOf([&](int rows) { return fixed + row * rows + block * ((rows + 7) / 8); });
    std::vector<double> chances;
    for (int i = 0; i < 50; ++i) chances.push_back(uniform(random));
    std::sort(chances.rbegin(), chances.rend());
    StepLoad load{.decoding = 1 + static_cast<int>(random() % 16),
                  .other_rows = run % 2 ? 0 : static_cast<int>(random() % 100),
                  .drafting = uniform(random)};
    const int chosen = ChooseNodes(load, llm, chances);
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
TEST(ChooseNodes, ChargingTimeAtTheLongRunRateMaximizesIt) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> uniform;
  for (int run = 0; run < 50; ++run) {
    const double fixed = uniform(random), row = 0.02 + 0.1 * uniform(random);
    const StepLatency llm = LatencyOf([&](int rows) { return fixed + row * rows; });
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
    EXPECT_NEAR(
        rate(ChooseNodes(load, llm, steps[0], best), ChooseNodes(load, llm, steps[1], best)), best,
        1e-9);
  }
}

DraftTier Choose(const StepLoad& load, const StepLatency& llm, const StepLatency& ssm,
                 std::vector<DraftGroup> groups, int max_rows = 256) {
  const AcceptanceEstimator acceptance = {};  // its prior: six in ten
  return ChooseDraftTier(load, {.llm = llm, .ssm = ssm, .max_rows = max_rows},
                         DraftShapes(acceptance, 8, 32, AcceptanceEstimator::kRanks), groups, 1.01);
}

TEST(ChooseDraftTier, DraftsWhereRowsAreCheapOnly) {
  const StepLatency ssm = LatencyOf([](int) { return 0.1; });
  const StepLoad load{.decoding = 4};
  const std::vector<DraftGroup> groups = {{.requests = 4, .acceptance = 4}};
  const StepLatency flat = LatencyOf([](int) { return 10.0; });
  const DraftTier free = Choose(load, flat, ssm, groups);
  EXPECT_EQ(free.requests, 4);
  EXPECT_GT(free.nodes, 8);
  EXPECT_GT(free.rate, 1.4 * Goodput(load, flat));
  const StepLatency steep = LatencyOf([](int rows) { return 2.5 * rows; });
  const DraftTier dear = Choose(load, steep, ssm, groups);
  EXPECT_EQ(dear.requests, 0);
  EXPECT_DOUBLE_EQ(dear.rate, Goodput(load, steep));
  const StepLatency slow = LatencyOf([](int) { return 20.0; });
  EXPECT_EQ(Choose(load, flat, slow, groups).requests, 0);
  const DraftTier tight = Choose(load, flat, ssm, groups, /*max_rows=*/8);
  EXPECT_EQ(tight.requests * tight.nodes, 4);
}

TEST(ChooseDraftTier, LeavesOutRequestsWithLowAcceptance) {
  const StepLatency ssm = LatencyOf([](int) { return 0.05; });
  const StepLatency llm = LatencyOf([](int rows) { return 4.0 + 0.5 * rows; });
  const DraftGroup good = {.requests = 4, .acceptance = 4.8};
  EXPECT_EQ(Choose({.decoding = 8}, llm, ssm, {good, {.requests = 8, .acceptance = 4.9}}).requests,
            4);
  EXPECT_EQ(Choose({.decoding = 8}, llm, ssm, {good, {.requests = 8, .acceptance = 9}}).requests,
            8);
}

TEST(ChooseDraftTier, PrefillCounts) {
  const StepLatency ssm = LatencyOf([](int rows) { return 0.05 * rows; });
  const StepLatency llm = LatencyOf([](int) { return 1.0; });
  const auto choose = [&](double prefill_rows) {
    return Choose({.decoding = 1}, llm, ssm,
                  {{.requests = 1, .acceptance = 1, .prefill_rows = prefill_rows}});
  };
  EXPECT_EQ(choose(0).requests, 1);
  EXPECT_EQ(choose(1000).requests, 0);
  EXPECT_LT(choose(5).rate, choose(0).rate);
}

// By enumeration: no shape is better than the chosen one.
TEST(ChooseDraftTier, IsTheBestShape) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> uniform;
  const AcceptanceEstimator acceptance = {};
  const DraftShapes shapes(acceptance, 8, 32, AcceptanceEstimator::kRanks);
  for (int run = 0; run < 100; ++run) {
    const double fixed = uniform(random), row = 0.2 * uniform(random), level = uniform(random);
    const StepLatency llm = LatencyOf([&](int rows) { return fixed + row * rows; });
    const StepLatency ssm = LatencyOf([&](int rows) { return level * (0.1 + 0.01 * rows); });
    const StepLoad load{.decoding = 2};
    const DraftTier chosen = ChooseDraftTier(load, {.llm = llm, .ssm = ssm, .max_rows = 256},
                                             shapes, {{{.requests = 2, .acceptance = 2}}}, 1);
    double best = Goodput(load, llm);
    for (const DraftShapes::Shape& shape : shapes.shapes()) {
      StepLoad with = load;
      with.nodes = 2 * shape.nodes;
      with.gain = 2 * shape.gain;
      for (const int rows : shape.rows) with.drafting += ssm.Seconds(2 * rows);
      best = std::max(best, Goodput(with, llm));
    }
    EXPECT_NEAR(chosen.rate, best, 1e-9 * best);
  }
}

}  // namespace
}  // namespace espalier
