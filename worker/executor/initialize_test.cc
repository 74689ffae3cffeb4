#include "worker/executor/initialize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace espalier {
namespace {

using Kind = v1::Initializer;

std::vector<float> Draw(const v1::Initializer& initializer, const TensorSpec& spec,
                        const std::string& name = "w", uint64_t seed = 7) {
  std::vector<float> values(static_cast<size_t>(spec.num_elements()));
  const absl::Status status = Initialize(initializer, name, seed, spec, values.data());
  EXPECT_TRUE(status.ok()) << status;
  return values;
}

std::vector<float> Draw(const v1::Initializer& initializer, const Dims& dims) {
  return Draw(initializer, TensorSpec::Whole({DType::kF32, dims}));
}

v1::Initializer Of(Kind::Kind kind, double scale = 0, double mean = 0) {
  v1::Initializer initializer;
  initializer.set_kind(kind);
  initializer.set_scale(scale);
  initializer.set_mean(mean);
  return initializer;
}

struct Moments {
  double mean = 0, deviation = 0, kurtosis = 0, least = 0, most = 0;
};
Moments MomentsOf(const std::vector<float>& values) {
  const double n = static_cast<double>(values.size());
  Moments m{.least = values[0], .most = values[0]};
  for (float v : values) m.mean += v / n;
  double second = 0, fourth = 0;
  for (float v : values) {
    const double d = v - m.mean;
    second += d * d / n;
    fourth += d * d * d * d / n;
    m.least = std::min<double>(m.least, v);
    m.most = std::max<double>(m.most, v);
  }
  m.deviation = std::sqrt(second);
  m.kurtosis = fourth / (second * second);
  return m;
}

struct Expectation {
  Kind::Kind kind;
  double scale, mean;
  double deviation, kurtosis;
  double limit;  // largest distance from the mean
};

class DistributionTest : public testing::TestWithParam<Expectation> {};

// [200, 50, 5, 4]: fan in 1000, fan out 4000, 200000 elements.
TEST_P(DistributionTest, HasTheExpectedMoments) {
  const Expectation& e = GetParam();
  const Moments m = MomentsOf(Draw(Of(e.kind, e.scale, e.mean), Dims{200, 50, 5, 4}));
  // Within five standard errors of each moment.
  const double n = 200000;
  EXPECT_NEAR(m.mean, e.mean, 5 * e.deviation / std::sqrt(n));
  EXPECT_NEAR(m.deviation, e.deviation, 5 * e.deviation * std::sqrt((e.kurtosis - 1) / (4 * n)));
  EXPECT_NEAR(m.kurtosis, e.kurtosis, 5 * std::sqrt(96 / n));
  EXPECT_LE(m.most - e.mean, e.limit * 1.000001);
  EXPECT_GE(m.least - e.mean, -e.limit * 1.000001);
}

constexpr double kUnbounded = 1e9;
INSTANTIATE_TEST_SUITE_P(
    All, DistributionTest,
    testing::Values(
        Expectation{Kind::NORMAL, 2, 0.5, 2, 3, kUnbounded},
        Expectation{Kind::UNIFORM, 3, -1, 3 / std::sqrt(3.0), 1.8, 3},
        // Moments of the normal distribution truncated at two deviations.
        Expectation{Kind::TRUNCATED_NORMAL, 2, 1, 2 * 0.8796256610, 2.36544, 4},
        Expectation{Kind::GLOROT_UNIFORM, 0, 0, std::sqrt(2.0 / 5000), 1.8, std::sqrt(6.0 / 5000)},
        Expectation{Kind::GLOROT_NORMAL, 0, 0, std::sqrt(2.0 / 5000), 3, kUnbounded},
        Expectation{Kind::HE_UNIFORM, 0, 0, std::sqrt(2.0 / 1000), 1.8, std::sqrt(6.0 / 1000)},
        Expectation{Kind::HE_NORMAL, 0, 0, std::sqrt(2.0 / 1000), 3, kUnbounded}));

TEST(InitializeTest, Constants) {
  EXPECT_EQ(Draw(Of(Kind::ZEROS), Dims{2}), (std::vector<float>{0, 0}));
  EXPECT_EQ(Draw(Of(Kind::ONES), Dims{2}), (std::vector<float>{1, 1}));
  EXPECT_EQ(Draw(Of(Kind::CONSTANT, 0, 0.25), Dims{2}), (std::vector<float>{0.25f, 0.25f}));
}

TEST(InitializeTest, OrthogonalRowsOrColumns) {
  for (const Dims& dims :
       {Dims{20, 60}, Dims{60, 20}, Dims{16, 2, 3, 4}, Dims{30, 30}, Dims{1, 5}}) {
    const std::vector<float> m = Draw(Of(Kind::ORTHOGONAL, 2), dims);
    const int64_t rows = dims[0], columns = static_cast<int64_t>(m.size()) / rows;
    const bool by_rows = rows <= columns;
    const int64_t count = by_rows ? rows : columns, length = by_rows ? columns : rows;
    const auto at = [&](int64_t v, int64_t i) {
      return static_cast<double>(by_rows ? m[v * columns + i] : m[i * columns + v]);
    };
    for (int64_t a = 0; a < count; ++a) {
      for (int64_t b = 0; b < count; ++b) {
        double dot = 0;
        for (int64_t i = 0; i < length; ++i) dot += at(a, i) * at(b, i);
        EXPECT_NEAR(dot, a == b ? 4 : 0, 1e-5) << a << " " << b;
      }
    }
  }
  std::vector<float> values(3);
  const absl::Status refused = Initialize(Of(Kind::ORTHOGONAL), "b", 1,
                                          TensorSpec::Whole({DType::kF32, {3}}), values.data());
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
}

TEST(InitializeTest, AShardHoldsItsPartOfTheWhole) {
  const Dims whole = {6, 5, 4};
  for (int kind = Kind::ZEROS; kind <= Kind::ORTHOGONAL; ++kind) {
    const v1::Initializer initializer = Of(static_cast<Kind::Kind>(kind), 0.5, 0.1);
    const std::vector<float> all = Draw(initializer, whole);
    const TensorSpec shard{DType::kF32, {2, 5, 2}, {3, 0, 1}, whole};
    const std::vector<float> part = Draw(initializer, shard);
    for (int64_t a = 0; a < 2; ++a) {
      for (int64_t b = 0; b < 5; ++b) {
        for (int64_t c = 0; c < 2; ++c) {
          EXPECT_EQ(part[(a * 5 + b) * 2 + c], all[((a + 3) * 5 + b) * 4 + c + 1]) << kind;
        }
      }
    }
  }
}

TEST(InitializeTest, FollowsSeedAndName) {
  const TensorSpec spec = TensorSpec::Whole({DType::kF32, {8, 8}});
  for (Kind::Kind kind : {Kind::TRUNCATED_NORMAL, Kind::HE_NORMAL, Kind::ORTHOGONAL}) {
    const v1::Initializer initializer = Of(kind, 1);
    EXPECT_EQ(Draw(initializer, spec, "a", 1), Draw(initializer, spec, "a", 1));
    EXPECT_NE(Draw(initializer, spec, "a", 1), Draw(initializer, spec, "b", 1));
    EXPECT_NE(Draw(initializer, spec, "a", 1), Draw(initializer, spec, "a", 2));
  }
}

TEST(InitializeTest, AnySplitStartsTheSame) {
  for (auto kind :
       {v1::Initializer::NORMAL, v1::Initializer::UNIFORM, v1::Initializer::GLOROT_UNIFORM}) {
    v1::Initializer initializer;
    initializer.set_kind(kind);
    initializer.set_scale(0.02);
    const Dims whole{6, 10};
    std::vector<float> all(60), part(15);
    ASSERT_TRUE(
        Initialize(initializer, "w", 9, TensorSpec::Whole({DType::kF32, whole}), all.data()).ok());
    const TensorSpec spec{DType::kF32, {3, 5}, {3, 5}, whole};
    ASSERT_TRUE(Initialize(initializer, "w", 9, spec, part.data()).ok());
    for (int r = 0; r < 3; ++r) {
      for (int c = 0; c < 5; ++c) EXPECT_EQ(part[r * 5 + c], all[(r + 3) * 10 + c + 5]);
    }
    std::vector<float> other(60);
    ASSERT_TRUE(
        Initialize(initializer, "v", 9, TensorSpec::Whole({DType::kF32, whole}), other.data())
            .ok());
    EXPECT_NE(all, other);
  }
}

TEST(InitializeTest, NormalHasTheRequestedMoments) {
  v1::Initializer initializer;
  initializer.set_kind(v1::Initializer::NORMAL);
  initializer.set_scale(2);
  const int n = 100000;
  std::vector<float> values(n);
  ASSERT_TRUE(
      Initialize(initializer, "w", 1, TensorSpec::Whole({DType::kF32, {n}}), values.data()).ok());
  double sum = 0, squares = 0, fourth = 0;
  for (float v : values) {
    sum += v;
    squares += v * v;
    fourth += static_cast<double>(v) * v * v * v;
  }
  EXPECT_NEAR(sum / n, 0, 0.03);
  EXPECT_NEAR(squares / n, 4, 0.08);
  EXPECT_NEAR(fourth / n, 48, 3);
}

}  // namespace
}  // namespace espalier
