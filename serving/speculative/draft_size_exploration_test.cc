#include "serving/speculative/draft_size_exploration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace espalier {
namespace {

constexpr int kFar = 4, kNear = 5;  // turns

// As calibrated in a moment in which sizes of more than `least` rows took `dearer` times as long.
StepLatencyModel Calibrated(int least, double dearer) {
  StepLatencyModel cost;
  for (int turn = 0; turn < 3; ++turn) {
    for (int rows = 1; rows <= 32; ++rows) {
      cost.Observe({.rows = rows}, (2 + 0.09 * rows) * (rows > least ? dearer : 1));
    }
  }
  return cost;
}

// Steps of `rows` in turns with some of four rows, as long as they take in truth.
void Compare(StepLatencyModel* cost, int rows, int times) {
  for (int i = 0; i < times; ++i) {
    for (const int size : {4, rows}) cost->Observe({.rows = size}, 2 + 0.09 * size);
  }
}

const std::vector<double> kChances(28, 0.9);

TEST(NodesToExplore, AFarExplorationTakesAnUnprovenSize) {
  ASSERT_TRUE(IsFarExploration(kFar));
  StepLatencyModel cost = Calibrated(8, 1.7);
  const StepLoad load = {.decoding = 4};
  // 8 rows are the best as far as is known.
  ASSERT_EQ(ChooseNodes(load, cost, {kChances.data(), 8}, 8), 4);
  std::vector<int> tried;
  for (int nodes = 0; (nodes = NodesToExplore(load, cost, kChances, 4, kFar)) != 4;) {
    ASSERT_LT(tried.size(), 8) << "for ever";
    EXPECT_GT(nodes, 4);
    EXPECT_FALSE(cost.Proven(4 + nodes)) << nodes;
    tried.push_back(nodes);
    Compare(&cost, 4 + nodes, 12);
    EXPECT_NEAR(cost.Seconds(4 + nodes), 2 + 0.09 * (4 + nodes), 0.3) << nodes;
  }
  EXPECT_FALSE(tried.empty());
  // By then it is known that more pays.
  EXPECT_GT(ChooseNodes(load, cost, kChances, 28), 20);
}

TEST(NodesToExplore, NearExplorationsVaryNearlyOptimalSizes) {
  ASSERT_FALSE(IsFarExploration(kNear));
  const StepLatencyModel cost = Calibrated(32, 1);
  const StepLoad load = {.decoding = 4};
  const std::vector<double> chances(28, 0.3);
  double rate = 0;
  std::vector<double> rates;
  for (int nodes = 0; nodes <= 28; ++nodes) {
    rates.push_back((4 + 0.3 * nodes) / cost.Seconds(4 + nodes));
    rate = std::max(rate, rates.back());
  }
  std::vector<bool> tried(29);
  for (int turn = 0; turn < 40; ++turn) {
    if (IsFarExploration(turn)) continue;
    const int nodes = NodesToExplore(load, cost, chances, 28, turn);
    EXPECT_GE(rates[nodes], 0.8 * rate) << nodes;
    tried[nodes] = true;
  }
  EXPECT_GE(std::count(tried.begin(), tried.end(), true), 2);  // of 16 and 24 rows
}

TEST(NodesToExplore, WithoutAnythingToExploreTheBestIsReturned) {
  const StepLatencyModel cost = Calibrated(32, 1);
  for (const int turn : {kFar, kNear}) {
    EXPECT_EQ(NodesToExplore({.decoding = 4}, cost, {}, 0, turn), 0);
  }
}

// Of 8 and 24 rows it is known what they take: what the calibration said of those between is less
// likely than what lies between.
TEST(StepLatencyModel, AnUnprovenSizeIsBoundedByItsProvenNeighbors) {
  StepLatencyModel cost = Calibrated(8, 2.5);
  EXPECT_GT(cost.Seconds(16), 8);
  Compare(&cost, 8, 40);
  Compare(&cost, 24, 40);
  ASSERT_TRUE(cost.Proven(8) && cost.Proven(24));
  ASSERT_FALSE(cost.Proven(16));
  for (const int rows : {12, 16, 20}) EXPECT_NEAR(cost.Seconds(rows), 2 + 0.09 * rows, 0.15);
  // Once it is proven that it takes what it takes, that counts.
  for (int i = 0; i < 40; ++i) {
    cost.Observe({.rows = 8}, 2.72);
    cost.Observe({.rows = 16}, 4.1);
  }
  EXPECT_NEAR(cost.Seconds(16), 4.1, 0.1);
}

}  // namespace
}  // namespace espalier
