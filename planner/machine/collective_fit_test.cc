// Fits to measurements, and errors for invalid arguments.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "planner/machine/collectives.h"
#include "planner/machine/test_topologies.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Collective = v1::CollectiveInstruction;
using Algorithm = CollectiveAlgorithm;

constexpr Algorithm kAlgorithms[] = {Algorithm::kRing, Algorithm::kTree,
                                     Algorithm::kHalvingDoubling, Algorithm::kHierarchical};

CollectiveModel Model(const Topology& t, Collective::Kind kind, const std::vector<int>& ranks) {
  return CollectiveModel::Create(t, kind, ranks).value();
}

CollectiveModel Model(const Topology& t, Collective::Kind kind) {
  return Model(t, kind, AllDevices(t));
}

TEST(CollectivesErrorTest, RejectsBadArgumentsWithPlaceAndRemedy) {
  const Topology t = Tiers({{6, 1, 1}});
  auto error = [&](int kind, const std::vector<int>& ranks, Algorithm a, double bytes) {
    const auto s = CollectiveSeconds(t, static_cast<Collective::Kind>(kind), ranks, a, bytes);
    return s.ok() ? "accepted" : std::string(s.status().message());
  };
  const Algorithm ring = Algorithm::kRing;
  EXPECT_EQ(error(1, {0, 5}, ring, 1), "accepted");
  EXPECT_THAT(error(1, {0, 6}, ring, 1), HasSubstr("ranks[1] is 6; devices are 0 to 5"));
  EXPECT_THAT(error(1, {-1}, ring, 1), HasSubstr("ranks[0] is -1"));
  EXPECT_THAT(error(1, {2, 3, 2}, ring, 1), HasSubstr("ranks[2] is 2, which is there already"));
  EXPECT_THAT(error(1, {}, ring, 1), HasSubstr("no ranks"));
  EXPECT_THAT(error(0, {1, 2}, ring, 1), AllOf(HasSubstr("kind is 0"), HasSubstr("ALL_REDUCE")));
  EXPECT_THAT(error(6, {1, 2}, ring, 1), HasSubstr("kind is 6"));
  EXPECT_THAT(error(1, {1, 2}, ring, -1), HasSubstr("bytes is -1; it must be 0 or more"));
  EXPECT_THAT(error(1, {1, 2}, ring, std::nan("")), HasSubstr("bytes is nan"));
  EXPECT_THAT(error(1, {1, 2, 3}, Algorithm::kHalvingDoubling, 1),
              HasSubstr("halving_doubling cannot run on these 3 ranks; it needs a power of two"));
  EXPECT_THAT(error(1, {1, 2, 3}, Algorithm::kHierarchical, 1),
              AllOf(HasSubstr("hierarchical cannot"), HasSubstr("equal groups")));
  EXPECT_FALSE(BestCollective(t, Collective::ALL_REDUCE, {0, 9}, 1).ok());
  EXPECT_FALSE(BestCollective(t, Collective::ALL_REDUCE, {0, 1}, -1).ok());
}

TEST(CollectiveFitTest, FactorsScaleLatencyAndBandwidth) {
  v1::Link link;
  link.set_bandwidth(10);
  link.set_latency_seconds(1);
  const Topology t = Topology::Uniform(4, link).value();
  const CollectiveModel model = Model(t, Collective::ALL_REDUCE);
  EXPECT_DOUBLE_EQ(model.Seconds(Algorithm::kRing, 40, {3, 1}), 6 * (3 + 1));
  EXPECT_DOUBLE_EQ(model.Seconds(Algorithm::kRing, 40, {1, 3}), 6 * (1 + 3));
  const CollectiveModel::Parts parts = model.Split(Algorithm::kRing, 80);
  EXPECT_DOUBLE_EQ(parts.latency, 6);
  EXPECT_DOUBLE_EQ(parts.transfer, 12);
  CollectiveFits fits;
  const Algorithm best = model.Best(40).algorithm;
  fits[static_cast<int>(best)] = {1000, 1000};
  EXPECT_NE(model.Best(40, fits).algorithm, best);
  for (CollectiveFit& fit : fits) fit = {1, 1, false};
  EXPECT_EQ(model.Best(40, fits).algorithm, Algorithm::kRing);
}

TEST(CollectiveFitTest, RecoversKnownFactors) {
  std::mt19937_64 random(9);
  for (int round = 0; round < 30; ++round) {
    const Topology t =
        Topology::Create(RandomTree(random, 1 + round % 5, 8, {1000, 1e-1, false})).value();
    const CollectiveFit truth = {0.2 + static_cast<double>(random() % 100) / 10,
                                 0.2 + static_cast<double>(random() % 50) / 10};
    for (Algorithm a : kAlgorithms) {
      const CollectiveModel model = Model(t, Collective::ALL_REDUCE);
      if (!model.Has(a)) continue;
      std::vector<CollectiveSample> samples;
      for (double bytes = 1; bytes < 1e7; bytes *= 4) {
        samples.push_back({bytes, model.Seconds(a, bytes, truth)});
      }
      const CollectiveFit fit = FitCollective(model, a, samples).value();
      EXPECT_NEAR(fit.latency_factor, truth.latency_factor, 1e-6);
      EXPECT_NEAR(fit.bandwidth_factor, truth.bandwidth_factor, 1e-6);
    }
  }
}

TEST(CollectiveFitTest, NoiseIsAveragedAndSmallMessagesCountAsMuchAsLarge) {
  const Topology t = Tiers({{2, 10e9, 1e-5}, {4, 100e9, 1e-6}});
  const CollectiveModel model = Model(t, Collective::ALL_REDUCE);
  std::mt19937_64 random(10);
  std::vector<CollectiveSample> samples;
  for (int i = 0; i < 400; ++i) {
    const double bytes = std::exp2(3 + i % 28);
    const double noise = 0.9 + 0.2 * static_cast<double>(random() % 1001) / 1000;
    samples.push_back({bytes, noise * model.Seconds(Algorithm::kRing, bytes, {4, 1.5})});
  }
  const CollectiveFit fit = FitCollective(model, Algorithm::kRing, samples).value();
  EXPECT_NEAR(fit.latency_factor, 4, 0.1);
  EXPECT_NEAR(fit.bandwidth_factor, 1.5, 0.05);
}

TEST(CollectiveFitTest, OneSizeGivesOneFactorAndFactorsAreNeverNegative) {
  const Topology t = Tiers({{4, 10, 1}});
  const CollectiveModel model = Model(t, Collective::ALL_REDUCE);
  const double whole = model.Seconds(Algorithm::kRing, 100);
  CollectiveFit fit =
      FitCollective(model, Algorithm::kRing, {{100, 3 * whole}, {100, 3 * whole}}).value();
  EXPECT_NEAR(fit.latency_factor, 3, 1e-6);
  EXPECT_NEAR(fit.bandwidth_factor, 3, 1e-6);
  // Larger is faster: no line with factors >= 0 fits both.
  fit = FitCollective(model, Algorithm::kRing, {{100, 10}, {1000, 1}}).value();
  EXPECT_GE(fit.latency_factor, 0);
  EXPECT_GE(fit.bandwidth_factor, 0);
  fit = FitCollective(model, Algorithm::kRing, {{100, 1}, {1000, 1000}}).value();
  EXPECT_EQ(fit.latency_factor, 0);
  EXPECT_GT(fit.bandwidth_factor, 0);
  // Zero bytes: only latency can be fitted.
  fit = FitCollective(model, Algorithm::kRing, {{0, 24}}).value();
  EXPECT_DOUBLE_EQ(fit.latency_factor, 2);
  EXPECT_EQ(fit.bandwidth_factor, 1);
}

TEST(CollectiveFitTest, RejectsBadSamples) {
  const Topology t = Tiers({{3, 10, 1}});
  const CollectiveModel model = Model(t, Collective::ALL_REDUCE);
  auto error = [&](const std::vector<CollectiveSample>& samples, Algorithm a) {
    const auto fit = FitCollective(model, a, samples);
    return fit.ok() ? "accepted" : std::string(fit.status().message());
  };
  EXPECT_THAT(error({}, Algorithm::kRing), HasSubstr("no samples"));
  EXPECT_THAT(error({{1, 1}, {-1, 1}}, Algorithm::kRing),
              AllOf(HasSubstr("samples[1]"), HasSubstr("bytes is -1")));
  EXPECT_THAT(error({{1, 0}}, Algorithm::kRing),
              AllOf(HasSubstr("samples[0]"), HasSubstr("seconds is 0; it must be greater than 0")));
  EXPECT_THAT(error({{1, 1}}, Algorithm::kHalvingDoubling), HasSubstr("power of two"));
  EXPECT_THAT(error({{1e300, 1e-300}}, Algorithm::kRing), HasSubstr("too far from the model"));
  EXPECT_THAT(
      std::string(FitCollective(Model(t, Collective::ALL_REDUCE, {0}), Algorithm::kRing, {{1, 1}})
                      .status()
                      .message()),
      HasSubstr("one rank alone"));
}

}  // namespace
}  // namespace espalier
