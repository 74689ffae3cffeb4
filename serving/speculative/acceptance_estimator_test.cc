#include "serving/speculative/acceptance_estimator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

namespace espalier {
namespace {

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
  for (int i = 0; i < 60; ++i) acceptance.Observe({.depth = 2, .probability = 0.9});
  const double unlucky = acceptance.OfRank(2, 0), first = acceptance.OfRank(1, 0);
  EXPECT_LT(unlucky, 0.4);
  for (int step = 0; step < 50; ++step) acceptance.Fade();
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

}  // namespace
}  // namespace espalier
