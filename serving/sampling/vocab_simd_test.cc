#include "serving/sampling/vocab_simd.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "serving/sampling/gumbel_coupling.h"
#include "serving/sampling/logprobs.h"

namespace espalier {
namespace {

std::vector<float> Random(int count, uint32_t seed, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> out(static_cast<size_t>(count));
  for (float& value : out) value = normal(random);
  return out;
}

TEST(FindLogitMax, FindsTheFirstMaximumAtAnyPosition) {
  for (const int count : {1, 3, 8, 9, 1023, 1024, 1025, 3000, 4096, 5001}) {
    std::vector<float> logits = Random(count, static_cast<uint32_t>(count), 4);
    for (int round = 0; round < 40; ++round) {
      const int at = (round * 7919) % count;
      logits[static_cast<size_t>(at)] = 30.0f + static_cast<float>(round / 2);  // twice each
      const auto expected = std::max_element(logits.begin(), logits.end()) - logits.begin();
      const LogitMax highest = FindLogitMax(logits.data(), count);
      ASSERT_EQ(highest.token, expected) << count << " " << round;
      ASSERT_TRUE(highest.numbers);
    }
  }
}

TEST(FindLogitMax, ReportsNanAndAllMaskedLogits) {
  for (const int count : {1, 7, 1024, 2500}) {
    for (const float wrong : {NAN, -NAN, INFINITY}) {
      for (int at = 0; at < count; at += 1 + count / 50) {
        std::vector<float> logits = Random(count, 5, 4);
        logits[static_cast<size_t>(at)] = wrong;
        EXPECT_FALSE(FindLogitMax(logits.data(), count).numbers) << at << " of " << count;
      }
    }
    const std::vector<float> none(static_cast<size_t>(count), -INFINITY);
    EXPECT_TRUE(FindLogitMax(none.data(), count).numbers);
    EXPECT_EQ(FindLogitMax(none.data(), count).token, 0);
  }
}

// Integers, so that many are equal.
TEST(TopKTokens, AreThoseOfAStableSortAndCountsThoseAbove) {
  for (const int count : {1, 5, 1023, 1024, 1025, 3000}) {
    for (uint32_t seed = 0; seed < 20; ++seed) {
      std::vector<float> logits = Random(count, seed, seed % 2 == 0 ? 2 : 40);
      for (float& logit : logits) logit = std::round(logit);
      if (seed % 4 == 0) std::fill(logits.begin(), logits.begin() + count / 2, -INFINITY);
      if (seed % 5 == 0) std::sort(logits.begin(), logits.end());  // each is better than the last
      std::vector<int> expected(static_cast<size_t>(count));
      std::iota(expected.begin(), expected.end(), 0);
      std::stable_sort(expected.begin(), expected.end(), [&](int a, int b) {
        return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
      });
      for (const int wanted : {0, 1, 4, 64, 5000}) {
        const std::vector<int> first(expected.begin(), expected.begin() + std::min(wanted, count));
        ASSERT_EQ(TopKTokens(logits.data(), count, wanted), first) << count << " " << seed;
      }
      const float least = logits[static_cast<size_t>(count / 3)];
      EXPECT_EQ(CountAbove(logits.data(), count, least),
                std::count_if(logits.begin(), logits.end(), [&](float x) { return x > least; }));
    }
  }
}

TEST(Exponentials, AreThoseOfTheLibrary) {
  for (const int count : {1, 2, 3, 4, 5, 1000, 4099}) {
    std::vector<float> logits = Random(count, static_cast<uint32_t>(count), 60);
    if (count > 3) logits[2] = -INFINITY;
    const float highest = *std::max_element(logits.begin(), logits.end());
    for (const double temperature : {1.0, 0.7, 3.0, 0.01, 1e-300}) {
      std::vector<double> out(static_cast<size_t>(count) + 1, -1);
      const double sum = Exponentials(logits.data(), count, highest, temperature, out.data());
      double expected_sum = 0;
      for (int i = 0; i < count; ++i) {
        const size_t at = static_cast<size_t>(i);
        const double y = (static_cast<double>(logits[at]) - highest) / temperature;
        const double expected = y < -700 ? 0 : std::exp(y);
        expected_sum += expected;
        EXPECT_NEAR(out[at], expected, 4e-16 * expected) << y;
      }
      EXPECT_EQ(out.back(), -1) << "beyond the end";
      EXPECT_NEAR(sum, expected_sum, 1e-13 * expected_sum);
      EXPECT_EQ(sum, Exponentials(logits.data(), count, highest, temperature, nullptr));
    }
  }
}

TEST(LogprobsOf, AreNanWhereALogitIsNan) {
  std::vector<float> logits = Random(3000, 1, 4);
  EXPECT_TRUE(std::isfinite(LogprobsOf(logits.data(), 3000, 5, 3).logprob));
  for (const float wrong : {NAN, INFINITY}) {
    logits[1234] = wrong;
    EXPECT_TRUE(std::isnan(LogprobsOf(logits.data(), 3000, 5, 3).logprob));
  }
}

TEST(CoupledSample, IsTheFirstArrivalOfAllTokens) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const std::vector<float> logits = Random(700, static_cast<uint32_t>(seed), 3);
    const Distribution p =
        *SamplingDistribution(logits.data(), 700, {.temperature = 1, .top_k = seed % 2 ? 30 : 0});
    const ExponentialClocks clocks(seed, 11);
    int best = -1;
    for (int token = 0; token < 700; ++token) {
      const double now = clocks.Of(token) / p[static_cast<size_t>(token)];
      if (p[static_cast<size_t>(token)] > 0 &&
          (best < 0 || now < clocks.Of(best) / p[static_cast<size_t>(best)])) {
        best = token;
      }
    }
    EXPECT_EQ(CoupledSample(p, seed, 11), best);
  }
}

TEST(EarlyArrivals, MatchPerTokenArrivals) {
  std::mt19937 random(4);
  for (int trial = 0; trial < 300; ++trial) {
    const ExponentialClocks clocks(random(), random());
    const int n = 1 + static_cast<int>(random() % 300), first = static_cast<int>(random() % 100000);
    std::vector<double> weights(static_cast<size_t>(n));
    for (double& weight : weights) weight = random() % 4 == 0 ? 0 : 1e-3 * (random() % 1000);
    for (const double time : {0.0, 0.01, 0.5, 3.0}) {
      std::vector<int> out(weights.size()), expected;
      for (int i = 0; i < n; ++i) {
        if (clocks.Uniform(first + i) < time * weights[static_cast<size_t>(i)]) {
          expected.push_back(i);
        }
      }
      out.resize(static_cast<size_t>(
          EarlyArrivals(clocks.begin(), first, weights.data(), n, time, out.data())));
      EXPECT_EQ(out, expected);
    }
  }
}

// Frequencies against p: over seeds, over positions, and the correlation of adjacent noise values.
TEST(CoupledSample, DrawsFromTheDistribution) {
  const Distribution p = {0.4, 0.05, 0.25, 0, 0.3};
  constexpr int kDraws = 200000;
  for (const bool over_seeds : {true, false}) {
    std::vector<int> counts(p.size());
    for (uint64_t i = 0; i < kDraws; ++i) {
      ++counts[static_cast<size_t>(over_seeds ? CoupledSample(p, i, 5) : CoupledSample(p, 5, i))];
    }
    EXPECT_EQ(counts[3], 0);
    double chi_square = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      if (p[i] > 0) chi_square += std::pow(counts[i] - kDraws * p[i], 2) / (kDraws * p[i]);
    }
    EXPECT_LT(chi_square, 21.1);  // three degrees of freedom, 1e-4
  }
  double sum = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const ExponentialClocks clocks(i, 5), next(i, 6), other(i + 1, 5);
    const double here = clocks.Uniform(7) - 0.5;
    sum += here * (clocks.Uniform(8) - 0.5) + here * (next.Uniform(7) - 0.5) +
           here * (other.Uniform(7) - 0.5);
  }
  // Of three products of independent uniforms, each of variance 1 / 144.
  EXPECT_LT(std::abs(sum), 4.5 * std::sqrt(3.0 * kDraws / 144));
}

}  // namespace
}  // namespace espalier
