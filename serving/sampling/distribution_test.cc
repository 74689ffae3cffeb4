#include "serving/sampling/distribution.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "serving/sampling/counter_rng.h"

namespace espalier {
namespace {

TEST(Argmax, TakesTheLowestIdAmongEquals) {
  const float logits[] = {0, 3, 1, 3};
  EXPECT_EQ(*Argmax(logits, 4), 1);
}

TEST(Argmax, RefusesNan) {
  const float logits[] = {0, NAN, 1};
  EXPECT_EQ(Argmax(logits, 3).status().code(), absl::StatusCode::kInternal);
  const float infinite[] = {0, INFINITY};
  EXPECT_FALSE(SamplingDistribution(infinite, 2, {.temperature = 1}).ok());
}

TEST(SamplingDistribution, IsSoftmaxOfLogitsOverTemperature) {
  const float logits[] = {1, 2, 4};
  const Distribution p = *SamplingDistribution(logits, 3, {.temperature = 2});
  const double z = std::exp(0.5) + std::exp(1.0) + std::exp(2.0);
  EXPECT_NEAR(p[0], std::exp(0.5) / z, 1e-15);
  EXPECT_NEAR(p[1], std::exp(1.0) / z, 1e-15);
  EXPECT_NEAR(p[2], std::exp(2.0) / z, 1e-15);
}

TEST(SamplingDistribution, TinyTemperatureIsGreedyWithoutOverflow) {
  const float logits[] = {-1e30f, 5, 4.999f};
  const Distribution p = *SamplingDistribution(logits, 3, {.temperature = 1e-300});
  EXPECT_EQ(p, (Distribution{0, 1, 0}));
}

TEST(SamplingDistribution, TopKKeepsTheLowestIdsAmongEquals) {
  const float logits[] = {0, 1, 1, 1};
  const Distribution p = *SamplingDistribution(logits, 4, {.temperature = 1, .top_k = 2});
  EXPECT_EQ(p, (Distribution{0, 0.5, 0.5, 0}));
}

// Logits processors mask most of a vocabulary, and low temperatures make the rest vanish.
TEST(SamplingDistribution, CutsOfFewPossibleTokensKeepThem) {
  std::vector<float> logits(1000, -INFINITY);
  logits[7] = 1;
  logits[500] = 1;
  for (const SamplingParameters& sampling :
       {SamplingParameters{.temperature = 1, .top_k = 40},
        {.temperature = 1, .top_k = 999},
        {.temperature = 1, .top_p = 0.99, .top_k = 40},
        {.temperature = 1, .top_p = 0.99},
        {.temperature = 1, .min_p = 0.5},
        {.temperature = 1, .typical_p = 0.99},
        {.temperature = 1, .top_p = 0.999, .top_k = 40, .min_p = 0.1, .typical_p = 0.99}}) {
    const Distribution p = *SamplingDistribution(logits.data(), 1000, sampling);
    EXPECT_EQ(p[7], 0.5);
    EXPECT_EQ(p[500], 0.5);
  }
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i);
  const Distribution p =
      *SamplingDistribution(logits.data(), 1000, {.temperature = 1e-3, .top_k = 40});
  EXPECT_EQ(p[999], 1);
}

TEST(SamplingDistribution, TopPKeepsTheTokenThatCrosses) {
  // 0.5, 0.25, 0.125, 0.125
  const float logits[] = {std::log(4.0f), std::log(2.0f), 0, 0};
  Distribution p = *SamplingDistribution(logits, 4, {.temperature = 1, .top_p = 0.6});
  EXPECT_NEAR(p[0], 2.0 / 3, 1e-7);
  EXPECT_NEAR(p[1], 1.0 / 3, 1e-7);
  EXPECT_EQ(p[2], 0);
  p = *SamplingDistribution(logits, 4, {.temperature = 1, .top_p = 1e-9});
  EXPECT_EQ(p, (Distribution{1, 0, 0, 0}));
}

TEST(SamplingDistribution, MinPIsRelativeToTheMostProbableToken) {
  // 0.5, 0.25, 0.125, 0.125
  const float logits[] = {std::log(4.0f), std::log(2.0f), 0, 0};
  const Distribution p = *SamplingDistribution(logits, 4, {.temperature = 1, .min_p = 0.49});
  EXPECT_NEAR(p[0], 2.0 / 3, 1e-7);
  EXPECT_NEAR(p[1], 1.0 / 3, 1e-7);
  EXPECT_EQ(p[2] + p[3], 0);
}

TEST(SamplingDistribution, TypicalKeepsWhatIsNearTheEntropyNotWhatIsMostProbable) {
  // 0.5 and ten times 0.05: the entropy is 1.84 nats, from which -log 0.5 is 1.15 away, and
  // -log 0.05 as far, 1.15 too; with 0.6 and 0.04 the many are nearer.
  std::vector<float> logits(11, std::log(0.04f));
  logits[0] = std::log(0.6f);
  const Distribution p =
      *SamplingDistribution(logits.data(), 11, {.temperature = 1, .typical_p = 0.3});
  const double entropy = -0.6 * std::log(0.6) - 0.4 * std::log(0.04);
  const bool likely_is_nearer =
      std::abs(-std::log(0.6) - entropy) < std::abs(-std::log(0.04) - entropy);
  EXPECT_EQ(p[0] > 0, likely_is_nearer);
  double sum = 0;
  for (const double value : p) sum += value;
  EXPECT_NEAR(sum, 1, 1e-12);
  // Uniform: all are equally typical, and the lowest ids are kept.
  const float same[] = {1, 1, 1, 1};
  EXPECT_EQ(*SamplingDistribution(same, 4, {.temperature = 1, .typical_p = 0.5}),
            (Distribution{0.5, 0.5, 0, 0}));
}

// Cuts sort as few tokens as possible; for a large vocabulary the result must equal that of a full
// sort.
TEST(SamplingDistribution, CutsOfALargeVocabularyAreThoseOfAFullSort) {
  const int n = 5000;
  std::vector<float> logits(n);
  uint64_t state = 9;
  for (float& logit : logits) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    logit = static_cast<float>(state >> 40) / (1 << 24) * 4;
  }
  for (const auto& [k, share] : std::vector<std::pair<int, double>>{
           {0, 0.9}, {0, 0.01}, {300, 0.5}, {300, 1}, {1, 0.5}, {70, 0.99}, {0, 0.9999999}}) {
    Distribution all = *SamplingDistribution(logits.data(), n, {.temperature = 1});
    std::vector<int> order(n);
    for (int i = 0; i < n; ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](int a, int b) { return all[a] != all[b] ? all[a] > all[b] : a < b; });
    const int most = k > 0 ? k : n;
    double mass = 0, sum = 0;
    for (int i = 0; i < most; ++i) mass += all[order[i]];
    std::set<int> kept;
    for (int i = 0; i < most && (share == 1 || sum < share * mass); ++i) {
      sum += all[order[i]];
      kept.insert(order[i]);
    }
    const Distribution p =
        *SamplingDistribution(logits.data(), n, {.temperature = 1, .top_p = share, .top_k = k});
    int differ = 0;
    for (int i = 0; i < n; ++i) differ += (p[i] > 0) != (kept.count(i) > 0);
    EXPECT_LE(differ, share > 0.999 ? 2 : 0) << "top_k " << k << " top_p " << share;
  }
}

TEST(SampleFrom, NeverReturnsAnImpossibleToken) {
  const Distribution p = {0, 0.25, 0, 0.75, 0};
  EXPECT_EQ(SampleFrom(p, 0), 1);
  EXPECT_EQ(SampleFrom(p, 0.2499), 1);
  EXPECT_EQ(SampleFrom(p, 0.25), 3);
  EXPECT_EQ(SampleFrom(p, std::nextafter(1.0, 0.0)), 3);
  EXPECT_EQ(SampleFrom({0, 1 - 1e-9, 0}, std::nextafter(1.0, 0.0)), 1);
}

TEST(ValidateSampling, NamesTheField) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(ValidateSampling({}).ok());
  EXPECT_NE(ValidateSampling({.temperature = nan}).message().find("temperature"),
            absl::string_view::npos);
  EXPECT_FALSE(ValidateSampling({.temperature = -1}).ok());
  EXPECT_NE(ValidateSampling({.top_p = 0}).message().find("top_p"), absl::string_view::npos);
  EXPECT_FALSE(ValidateSampling({.top_p = nan}).ok());
  EXPECT_FALSE(ValidateSampling({.min_p = 2}).ok());
  EXPECT_FALSE(ValidateSampling({.typical_p = 0}).ok());
  EXPECT_NE(ValidateSampling({.top_k = -3}).message().find("top_k"), absl::string_view::npos);
}

TEST(RequestUniform, IsUniformAndSeparateByEveryKey) {
  double sum = 0;
  for (int i = 0; i < 100000; ++i) sum += RequestUniform(7, RngStream::kDraft, 0, i, 0);
  EXPECT_NEAR(sum / 100000, 0.5, 0.005);
  const std::set<double> values = {RequestUniform(7, RngStream::kDraft, 0, 1, 0),
                                   RequestUniform(8, RngStream::kDraft, 0, 1, 0),
                                   RequestUniform(7, RngStream::kAcceptance, 0, 1, 0),
                                   RequestUniform(7, RngStream::kResidual, 0, 1, 0),
                                   RequestUniform(7, RngStream::kDraft, 1, 1, 0),
                                   RequestUniform(7, RngStream::kDraft, 0, 2, 0),
                                   RequestUniform(7, RngStream::kDraft, 0, 1, 1)};
  EXPECT_EQ(values.size(), 7u);
}

}  // namespace
}  // namespace espalier
