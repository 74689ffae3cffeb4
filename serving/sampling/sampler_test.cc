#include "serving/sampling/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "serving/sampling/counter_rng.h"
#include "serving/sampling/gumbel_coupling.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

TEST(TopTokens, AreTheMostProbableTokensWithTheirProbabilities) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    const int size = 1 + static_cast<int>(random() % 300);
    const int count = static_cast<int>(random() % 12);
    // Few different values: many are equal. Some are far below, some excluded.
    std::vector<float> logits(size);
    for (float& logit : logits) {
      logit = static_cast<float>(random() % 9) * (trial % 3 == 0 ? 10.0f : 0.5f) - 3;
      if (random() % 5 == 0) logit = -INFINITY;
    }
    logits[random() % size] = 1;
    double sum = 0;
    for (const float logit : logits) sum += std::exp(static_cast<double>(logit));
    std::vector<int> order(size);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return logits[a] > logits[b]; });
    while (logits[order.back()] == -INFINITY) order.pop_back();

    const auto choices = TopTokens(logits, count);
    ASSERT_TRUE(choices.ok()) << choices.status();
    ASSERT_EQ(choices->size(), std::min<size_t>(count, order.size()));
    for (size_t i = 0; i < choices->size(); ++i) {
      EXPECT_EQ((*choices)[i].token, order[i]);
      EXPECT_NEAR((*choices)[i].probability, std::exp(logits[order[i]]) / sum, 1e-6);
    }
  }
}

TEST(TopTokens, RefuseNan) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& logits :
       {std::vector<float>{kNan, 1, 2}, std::vector<float>{1, 2, kNan}, std::vector<float>{kNan},
        std::vector<float>{0, INFINITY}, std::vector<float>{-INFINITY, -INFINITY}}) {
    const auto choices = TopTokens(logits, 2);
    ASSERT_FALSE(choices.ok());
    EXPECT_THAT(choices.status().message(), HasSubstr("are the weights intact?"));
  }
}

// Without cuts, weights are summed in blocks and not normalized.
TEST(SampleToken, MatchesTheFullDistribution) {
  for (const int count : {1, 5, 1023, 1024, 1025, 5000}) {
    std::mt19937 random(static_cast<uint32_t>(count));
    std::normal_distribution<float> normal(0, 2);
    std::vector<float> logits(static_cast<size_t>(count));
    for (float& logit : logits) logit = normal(random);
    if (count > 4) logits[3] = -INFINITY;
    for (const double temperature : {1.0, 0.4, 2.0}) {
      const Distribution p = *SamplingDistribution(logits.data(), count, {temperature});
      for (uint64_t seed = 0; seed < 100; ++seed) {
        const SamplingParameters sampling = {.temperature = temperature, .seed = seed};
        EXPECT_EQ(*SampleToken(logits, sampling, true, 7), CoupledSample(p, seed, 7));
        EXPECT_EQ(*SampleToken(logits, sampling, false, 7),
                  SampleFrom(p, ResidualUniform(seed, 7)));
      }
    }
    EXPECT_EQ(*SampleToken(logits, {}, false, 7), *Argmax(logits.data(), count));
    logits[0] = NAN;
    for (const bool shared : {true, false}) {
      EXPECT_FALSE(SampleToken(logits, {.temperature = 1}, shared, 7).ok());
    }
  }
}

TEST(CoupledTopTokens, AreTheFirstArrivalsOfTheExponentialRace) {
  constexpr int kCount = 3000;
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(kCount);
  for (float& logit : logits) logit = normal(random);
  for (const SamplingParameters& way :
       {SamplingParameters{.temperature = 1}, SamplingParameters{.temperature = 0.5},
        SamplingParameters{.temperature = 1.5, .top_k = 40},
        SamplingParameters{.temperature = 1, .top_k = 3}}) {
    const Distribution p = *SamplingDistribution(logits.data(), kCount, way);
    for (uint64_t seed = 0; seed < 50; ++seed) {
      SamplingParameters sampling = way;
      sampling.seed = seed;
      const ExponentialClocks clocks(seed, 9);
      std::vector<int> order;
      for (int token = 0; token < kCount; ++token) {
        if (p[token] > 0) order.push_back(token);
      }
      std::sort(order.begin(), order.end(),
                [&](int a, int b) { return clocks.Of(a) / p[a] < clocks.Of(b) / p[b]; });
      for (const int count : {1, 4, 12}) {
        const auto choices = CoupledTopTokens(logits, count, sampling, 9);
        ASSERT_TRUE(choices.ok()) << choices.status();
        ASSERT_EQ(choices->size(), std::min<size_t>(count, order.size()));
        double sum = 0;
        for (size_t i = 0; i < choices->size(); ++i) {
          EXPECT_EQ((*choices)[i].token, order[i]);
          EXPECT_LE((*choices)[i].probability, (*choices)[i == 0 ? 0 : i - 1].probability);
          sum += (*choices)[i].probability;
        }
        EXPECT_LE(sum, 1 + 1e-12);
        EXPECT_EQ((*choices)[0].token, *SampleToken(logits, sampling, true, 9));
      }
    }
  }
  logits[7] = NAN;
  EXPECT_FALSE(CoupledTopTokens(logits, 4, {.temperature = 1}, 9).ok());
}

TEST(SampleToken, DrawsFromTheDistributionAndNeverZeroProbability) {
  constexpr int kDraws = 200000;
  std::vector<float> logits(3000, -INFINITY);
  const std::pair<size_t, double> possible[] = {{0, 0.4}, {1023, 0.05}, {1024, 0.25}, {2999, 0.3}};
  for (const auto& [token, chance] : possible) logits[token] = std::log(static_cast<float>(chance));
  std::map<int, int> counts;
  for (uint64_t seed = 0; seed < kDraws; ++seed) {
    ++counts[*SampleToken(logits, {.temperature = 1, .seed = seed}, false, 3)];
  }
  double chi_square = 0;
  for (const auto& [token, chance] : possible) {
    chi_square +=
        std::pow(counts[static_cast<int>(token)] - kDraws * chance, 2) / (kDraws * chance);
  }
  EXPECT_EQ(counts.size(), 4u);
  EXPECT_LT(chi_square, 21.1);  // three degrees of freedom, 1e-4
}

}  // namespace
}  // namespace espalier
