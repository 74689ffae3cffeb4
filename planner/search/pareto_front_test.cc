#include "planner/search/pareto_front.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "planner/search/search_space.h"

namespace espalier {
namespace {

struct Sums {
  std::vector<int> choices;
  std::vector<Factor> times;
  std::vector<std::vector<double>> memory;

  std::pair<double, double> Of(const std::vector<int>& at) const {
    std::pair<double, double> sum = {0, 0};
    for (const Factor& f : times) {
      int64_t index = 0;
      for (int v : f.variables) index = index * choices[v] + at[v];
      sum.first += f.cost[index];
    }
    for (size_t v = 0; v < at.size(); ++v) sum.second += memory[v][at[v]];
    return sum;
  }
};

// Integers, so that sums are exact in any order.
Sums RandomSums(uint64_t seed) {
  Random random(seed);
  Sums sums;
  const int variables = 3 + static_cast<int>(random.Below(4));
  for (int v = 0; v < variables; ++v) {
    sums.choices.push_back(1 + static_cast<int>(random.Below(4)));
    std::vector<double>& bytes = sums.memory.emplace_back();
    for (int c = 0; c < sums.choices[v]; ++c) bytes.push_back(random.Below(50));
  }
  const auto add = [&](std::vector<int> of) {
    int64_t size = 1;
    for (int v : of) size *= sums.choices[v];
    Factor factor{std::move(of), {}};
    for (int64_t i = 0; i < size; ++i) factor.cost.push_back(random.Below(100));
    sums.times.push_back(std::move(factor));
  };
  for (int v = 0; v < variables; ++v) {
    add({v});
    // A sequence with skip connections, as graphs have.
    if (v > 0) add({v - 1, v});
    if (v > 2 && random.Below(2) == 0) add({v - 3, v});
  }
  return sums;
}

// Enumerates all combinations.
std::set<std::pair<double, double>> TriedFront(const Sums& sums) {
  std::vector<std::pair<double, double>> all;
  std::vector<int> at(sums.choices.size(), 0);
  for (bool more = true; more;) {
    all.push_back(sums.Of(at));
    more = false;
    for (size_t v = 0; v < at.size() && !more; ++v) {
      at[v] = at[v] + 1 < sums.choices[v] ? at[v] + 1 : 0;
      more = at[v] > 0;
    }
  }
  std::sort(all.begin(), all.end());
  std::set<std::pair<double, double>> front;
  double least = 1e300;
  for (const auto& pair : all) {
    if (pair.second >= least) continue;
    least = pair.second;
    front.insert(pair);
  }
  return front;
}

TEST(ParetoFrontTest, IsTheFrontOfAllCombinations) {
  size_t largest = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Sums sums = RandomSums(seed);
    const std::vector<int> given(sums.choices.size(), 0);
    std::set<std::pair<double, double>> found;
    for (const ParetoPoint& point :
         ParetoFront(sums.choices, given, sums.times, sums.memory, 1000)) {
      EXPECT_EQ(sums.Of(point.choices), std::pair(point.time, point.memory)) << "seed " << seed;
      found.insert({point.time, point.memory});
    }
    EXPECT_EQ(found, TriedFront(sums)) << "seed " << seed;
    largest = std::max(largest, found.size());
  }
  EXPECT_GT(largest, 8u);
}

TEST(ParetoFrontTest, LimitedFrontIsAchievableAndKeepsBothEnds) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Sums sums = RandomSums(seed);
    const std::vector<int> given(sums.choices.size(), 0);
    const std::set<std::pair<double, double>> whole = TriedFront(sums);
    const std::vector<ParetoPoint> few =
        ParetoFront(sums.choices, given, sums.times, sums.memory, 4);
    ASSERT_FALSE(few.empty());
    EXPECT_LE(few.size(), 4u);
    EXPECT_EQ(few.front().time, whole.begin()->first);
    EXPECT_EQ(few.back().memory, whole.rbegin()->second);
    for (const ParetoPoint& point : few) {
      EXPECT_EQ(sums.Of(point.choices), std::pair(point.time, point.memory));
    }
  }
}

}  // namespace
}  // namespace espalier
