#include "serving/sampling/truncation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "serving/sampling/vocab_simd.h"

namespace espalier {
namespace {

// As distribution.h defines it, over the whole vocabulary, one cut at a time.
Distribution ByDefinition(const std::vector<float>& logits, const SamplingParameters& how) {
  const size_t n = logits.size();
  Distribution p(n);
  const double highest = *std::max_element(logits.begin(), logits.end());
  for (size_t i = 0; i < n; ++i) p[i] = std::exp((logits[i] - highest) / how.temperature);
  const auto keep = [&](const std::vector<size_t>& order, size_t count) {
    double mass = 0;
    for (size_t i = 0; i < n; ++i) {
      if (i >= count) p[order[i]] = 0;
      mass += p[order[i]];
    }
    for (double& value : p) value /= mass;
  };
  const auto sorted = [&](auto key) {
    std::vector<size_t> order(n);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return key(a) < key(b); });
    return order;
  };
  const auto reach = [&](const std::vector<size_t>& order, double share) {
    double sum = 0;
    size_t count = 0;
    while (count < n && (count == 0 || sum < share)) sum += p[order[count++]];
    return count;
  };
  const auto by_probability = [&](size_t i) { return -p[i]; };
  keep(sorted(by_probability), n);
  if (how.top_k > 0) keep(sorted(by_probability), std::min<size_t>(n, how.top_k));
  if (how.top_p < 1) {
    const auto order = sorted(by_probability);
    keep(order, reach(order, how.top_p));
  }
  if (how.min_p > 0) {
    const double least = how.min_p * *std::max_element(p.begin(), p.end());
    const auto order = sorted(by_probability);
    keep(order, static_cast<size_t>(std::count_if(p.begin(), p.end(),
                                                  [&](double value) { return value >= least; })));
  }
  if (how.typical_p < 1) {
    double entropy = 0;
    for (const double value : p) entropy -= value > 0 ? value * std::log(value) : 0;
    const auto order = sorted([&](size_t i) {
      return p[i] > 0 ? std::abs(-std::log(p[i]) - entropy) : std::numeric_limits<double>::max();
    });
    keep(order, reach(order, how.typical_p));
  }
  return p;
}

TEST(PossibleTokens, AreThoseOfTheDefinition) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<double> uniform;
  for (int trial = 0; trial < 600; ++trial) {
    std::vector<float> logits(1 + random() % (trial % 10 == 0 ? 6000 : 60));
    const float spread = std::vector<float>{0.1f, 1, 5}[random() % 3];
    const bool equals = random() % 4 == 0, rules = random() % 4 == 0;
    for (float& logit : logits) {
      logit = spread * normal(random);
      if (equals) logit = std::round(logit);
      if (rules && random() % 3 == 0) logit = -INFINITY;
    }
    if (*std::max_element(logits.begin(), logits.end()) == -INFINITY) logits[0] = 2;
    SamplingParameters how = {.temperature = std::vector<double>{1, 0.3, 2.5}[random() % 3]};
    if (random() % 2) how.top_p = 0.02 + 0.97 * uniform(random);
    if (random() % 2) how.top_k = 1 + static_cast<int>(random() % (logits.size() + 10));
    if (random() % 3 == 0) how.min_p = uniform(random);
    if (random() % 3 == 0) how.typical_p = 0.02 + 0.97 * uniform(random);

    const Distribution expected = ByDefinition(logits, how);
    const int vocabulary = static_cast<int>(logits.size());
    const auto possible = PossibleTokens(logits.data(), vocabulary, how);
    ASSERT_TRUE(possible.ok()) << possible.status();
    EXPECT_EQ(static_cast<int64_t>(possible->size()),
              std::count_if(expected.begin(), expected.end(), [](double p) { return p > 0; }))
        << "trial " << trial;
    int last = -1;
    for (const TokenProbability& choice : *possible) {
      EXPECT_GT(choice.token, last);
      last = choice.token;
      EXPECT_NEAR(choice.probability, expected[static_cast<size_t>(last)], 1e-9) << trial;
    }
  }
}

TEST(PossibleTokens, RefuseNan) {
  const float logits[] = {0, NAN, 1};
  EXPECT_FALSE(PossibleTokens(logits, 3, {.temperature = 1, .top_p = 0.5}).ok());
}

TEST(TokensAtLeast, AreAllThatAreHighEnough) {
  std::mt19937 random(3);
  for (const int n : {1, 7, 8, 9, 1000, 1029}) {
    std::vector<float> logits(static_cast<size_t>(n));
    for (float& logit : logits) logit = static_cast<float>(random() % 50);
    logits[random() % logits.size()] = -INFINITY;
    for (const float least : {-INFINITY, 0.0f, 25.0f, 48.0f, 60.0f}) {
      std::vector<int> expected;
      for (int i = 0; i < n; ++i) {
        if (logits[static_cast<size_t>(i)] >= least) expected.push_back(i);
      }
      EXPECT_EQ(TokensAtLeast(logits.data(), n, least), expected);
    }
  }
}

}  // namespace
}  // namespace espalier
