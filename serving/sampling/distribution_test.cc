#include "serving/sampling/distribution.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "serving/sampling/noise.h"

namespace espalier {
namespace {

TEST(Argmax, TakesTheLowestIdAmongEquals) {
  const float logits[] = {0, 3, 1, 3};
  EXPECT_EQ(*Argmax(logits, 4), 1);
}

TEST(Argmax, RefusesWhatIsNotANumber) {
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
  EXPECT_NE(ValidateSampling({.top_k = -3}).message().find("top_k"), absl::string_view::npos);
}

TEST(RequestUniform, IsUniformAndSeparateByEveryKey) {
  double sum = 0;
  for (int i = 0; i < 100000; ++i) sum += RequestUniform(7, NoiseStream::kDraft, 0, i, 0);
  EXPECT_NEAR(sum / 100000, 0.5, 0.005);
  const std::set<double> values = {RequestUniform(7, NoiseStream::kDraft, 0, 1, 0),
                                   RequestUniform(8, NoiseStream::kDraft, 0, 1, 0),
                                   RequestUniform(7, NoiseStream::kAcceptance, 0, 1, 0),
                                   RequestUniform(7, NoiseStream::kResidual, 0, 1, 0),
                                   RequestUniform(7, NoiseStream::kDraft, 1, 1, 0),
                                   RequestUniform(7, NoiseStream::kDraft, 0, 2, 0),
                                   RequestUniform(7, NoiseStream::kDraft, 0, 1, 1)};
  EXPECT_EQ(values.size(), 7u);
}

}  // namespace
}  // namespace espalier
