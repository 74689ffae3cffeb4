// Tests the SIMD building blocks: every instruction set of this CPU must give the same results.
#include "ops/cpu/simd/simd.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/gemm/dot_tile.h"
#include "ops/cpu/simd/row_sums.h"
#include "ops/cpu/simd/simd_test_names.h"

namespace espalier {
namespace {

template <template <int> class Body, typename... Args>
void OnEachIsa(const std::function<void(int width)>& check, Args... args) {
  simd::RunSse2<Body<4>, Args...>(args...);
  check(4);
  if (simd::BestIsa() == simd::Isa::kSse2) return;
  simd::RunAvx2<Body<8>, Args...>(args...);
  check(8);
  if (simd::BestIsa() == simd::Isa::kAvx2) return;
  simd::RunAvx512<Body<16>, Args...>(args...);
  check(16);
}

template <int W>
struct ExpBody {
  static ESPALIER_INLINE void Run(const float* x, float* y, int64_t n) {
    for (int64_t i = 0; i < n; i += W) simd::Store<W>(y + i, simd::Exp<W>(simd::Load<W>(x + i)));
  }
};

TEST(Simd, ExpIsWithinTwoUlpsAndRightAtTheEnds) {
  std::vector<float> x, y;
  for (int i = 0; i < 160000; ++i) x.push_back(-87.3f + static_cast<float>(i) * 0.0011f);
  y.resize(x.size());
  OnEachIsa<ExpBody>(
      [&](int width) {
        for (size_t i = 0; i < x.size(); ++i) {
          const double expected = std::exp(static_cast<double>(x[i]));
          if (expected > 3.4e38) continue;
          ASSERT_NEAR(y[i], expected, expected * 2.4e-7) << x[i] << " with " << width << " lanes";
        }
      },
      static_cast<const float*>(x.data()), y.data(), static_cast<int64_t>(x.size()));
  x = {0, -INFINITY, INFINITY, NAN, 88.72f, 89, -88, 1};
  x.resize(16);
  y.assign(16, 0);
  OnEachIsa<ExpBody>(
      [&](int) {
        EXPECT_EQ(y[0], 1);
        EXPECT_EQ(y[1], 0);
        EXPECT_EQ(y[2], INFINITY);
        EXPECT_TRUE(std::isnan(y[3]));
        EXPECT_NEAR(y[4] / std::exp(88.72), 1, 1e-5);
        EXPECT_EQ(y[5], INFINITY);
        EXPECT_EQ(y[6], 0);
      },
      static_cast<const float*>(x.data()), y.data(), int64_t{16});
}

// One row with every row of b, one by one, then several equal rows in tiles of each height.
template <int W>
struct DotBody {
  template <int R>
  static ESPALIER_INLINE void Tiles(const float* const* left, const float* const* right, int64_t n,
                                    float* tiles) {
    simd::Store<W>(tiles, simd::DotTile<W, R, W / R>(left, right, n));
    if constexpr (R > 1) Tiles<R - 1>(left, right, n, tiles + W);
  }

  static ESPALIER_INLINE void Run(const float* a, const float* b, int64_t n, float* one,
                                  float* tiles, double* sums) {
    const float* left[W / 2];
    const float* right[W];
    for (int r = 0; r < W / 2; ++r) left[r] = a;
    for (int c = 0; c < W; ++c) right[c] = b + c % 4 * n;
    simd::Store<W>(one, simd::DotTile<W, 1, W>(left, right, n));
    Tiles<W / 2>(left, right, n, tiles);
    sums[0] = simd::Dot<W>(a, b, n);
    sums[1] = simd::SumOf<W>(a, n);
    sums[2] = simd::SquaredDistance<W>(a, 0.5f, n);
    sums[3] = simd::Dot3<W>(a, b, b + n, n);
  }
};

template <int W>
struct NamedBody {
  static ESPALIER_INLINE void Run(int* number) { *number = 1; }
};

TEST(Simd, SameNamedBodiesInTwoFilesStayDistinct) {
  int number = 0;
  simd::Dispatch<NamedBody>(&number);
  EXPECT_EQ(number, 1);
  EXPECT_EQ(RunOtherNamedBody(), 2);
}

TEST(Simd, SumsAreRightAndTilesAgreeBitForBit) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(-1, 1);
  for (const int64_t n : {0, 1, 3, 16, 31, 64, 100, 257}) {
    std::vector<float> a(n), b(4 * n), one(16), tiles(8 * 16);
    for (float& value : a) value = uniform(generator);
    for (float& value : b) value = uniform(generator);
    double sums[4];
    OnEachIsa<DotBody>(
        [&](int width) {
          SCOPED_TRACE(width);
          for (int c = 0; c < 4; ++c) {
            double expected = 0;
            for (int64_t i = 0; i < n; ++i) expected += static_cast<double>(a[i]) * b[c * n + i];
            EXPECT_NEAR(one[c], expected, 1e-5);
          }
          for (int rows = width / 2, at = 0; rows >= 1; --rows, at += width) {
            const int columns = width / rows;
            for (int i = 0; i < width; ++i) {
              EXPECT_EQ(tiles[at + i], i < rows * columns ? one[i % columns % 4] : 0)
                  << i << " of a tile of " << rows << " rows";
            }
          }
          double expected[4] = {};
          for (int64_t i = 0; i < n; ++i) {
            expected[0] += static_cast<double>(a[i]) * b[i];
            expected[1] += a[i];
            expected[2] += std::pow(a[i] - 0.5, 2);
            expected[3] += static_cast<double>(a[i]) * b[i] * b[n + i];
          }
          for (int i = 0; i < 4; ++i) EXPECT_NEAR(sums[i], expected[i], 2e-5) << "sum " << i;
        },
        static_cast<const float*>(a.data()), static_cast<const float*>(b.data()), n, one.data(),
        tiles.data(), sums);
  }
}

TEST(Convert, EveryF16AndBF16RoundTrips) {
  for (int bits = 0; bits < 65536; ++bits) {
    const uint16_t value = static_cast<uint16_t>(bits);
    if (std::isnan(F16ToF32(value))) {
      EXPECT_TRUE(std::isnan(F16ToF32(F32ToF16(F16ToF32(value)))));
    } else {
      EXPECT_EQ(F32ToF16(F16ToF32(value)), value);
    }
    if (std::isnan(BF16ToF32(value))) {
      EXPECT_TRUE(std::isnan(BF16ToF32(F32ToBF16(BF16ToF32(value)))));
    } else {
      EXPECT_EQ(F32ToBF16(BF16ToF32(value)), value);
    }
  }
}

TEST(Convert, RoundsToNearestEven) {
  EXPECT_EQ(F16ToF32(0x3c00), 1.0f);
  EXPECT_EQ(F16ToF32(0x0001), 0x1p-24f);
  EXPECT_EQ(F32ToF16(1 + 0x1p-11f), 0x3c00);             // half way: to even
  EXPECT_EQ(F32ToF16(1 + 3 * 0x1p-11f), 0x3c02);         // half way: to even
  EXPECT_EQ(F32ToF16(1 + 0x1p-11f + 0x1p-20f), 0x3c01);  // above half
  EXPECT_EQ(F32ToF16(65519), 0x7bff);
  EXPECT_EQ(F32ToF16(65520), 0x7c00);
  EXPECT_EQ(F32ToF16(0x1p-25f), 0);
  EXPECT_EQ(F32ToF16(-0x1.8p-25f), 0x8001);
  EXPECT_EQ(F32ToBF16(1 + 0x1p-8f), 0x3f80);
  EXPECT_EQ(F32ToBF16(1 + 3 * 0x1p-8f), 0x3f82);
  EXPECT_EQ(F32ToBF16(3.4e38f), 0x7f80);
}

}  // namespace
}  // namespace espalier
