#include "ops/cpu/gemm/batch_invariant_linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "ops/tensor/half_conversion.h"

namespace espalier {
namespace {

struct Problem {
  int64_t rows, out, in;
  DType dtype, weight_dtype;  // of x, bias and y; of the weights
  std::vector<float> x, bias, weight;
  std::vector<char> weight_bytes;

  Problem(int64_t rows, int64_t out, int64_t in, DType dtype, DType weight_dtype)
      : rows(rows), out(out), in(in), dtype(dtype), weight_dtype(weight_dtype) {
    std::mt19937 random(static_cast<unsigned>(rows * 1000 + out * 100 + in));
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows * in; ++i) x.push_back(Rounded(normal(random), dtype));
    for (int64_t i = 0; i < out; ++i) bias.push_back(Rounded(normal(random), dtype));
    for (int64_t i = 0; i < out * in; ++i) {
      weight.push_back(Rounded(normal(random), weight_dtype));
    }
    weight_bytes = Bytes(weight.data(), out * in, weight_dtype);
  }

  static float Rounded(float value, DType dtype) {
    if (dtype == DType::kF32) return value;
    return dtype == DType::kBF16 ? BF16ToF32(F32ToBF16(value)) : F16ToF32(F32ToF16(value));
  }
  static std::vector<char> Bytes(const float* values, int64_t n, DType dtype) {
    std::vector<char> bytes(static_cast<size_t>(n) * SizeOf(dtype));
    for (int64_t i = 0; i < n; ++i) {
      const uint16_t narrow = dtype == DType::kF16 ? F32ToF16(values[i]) : F32ToBF16(values[i]);
      if (dtype != DType::kF32) std::memcpy(&bytes[2 * i], &narrow, 2);
      if (dtype == DType::kF32) std::memcpy(&bytes[4 * i], &values[i], 4);
    }
    return bytes;
  }
  // Computes rows [begin, end) alone.
  std::vector<float> Run(int64_t begin, int64_t end) const {
    const std::vector<char> from = Bytes(x.data() + begin * in, (end - begin) * in, dtype),
                            add = Bytes(bias.data(), out, dtype);
    std::vector<char> to(static_cast<size_t>((end - begin) * out) * SizeOf(dtype));
    BatchInvariantLinear({dtype, end - begin, in, out, from.data(), weight_bytes.data(), add.data(),
                          to.data(), weight_dtype});
    std::vector<float> y(static_cast<size_t>((end - begin) * out));
    for (size_t i = 0; i < y.size(); ++i) {
      uint16_t narrow = 0;
      if (dtype == DType::kF32) {
        std::memcpy(&y[i], &to[4 * i], 4);
      } else {
        std::memcpy(&narrow, &to[2 * i], 2);
        y[i] = BF16ToF32(narrow);
      }
    }
    return y;
  }
};

void ExpectTheProductAndEachRowItsBits(const Problem& problem) {
  const auto [rows, out, in] = std::tuple(problem.rows, problem.out, problem.in);
  const std::vector<float> y = problem.Run(0, rows);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = problem.bias[o], size = std::fabs(sum);
      for (int64_t i = 0; i < in; ++i) {
        const double term = static_cast<double>(problem.x[r * in + i]) * problem.weight[o * in + i];
        sum += term;
        size += std::fabs(term);
      }
      const double bound =
          1e-6 * size + (problem.dtype == DType::kBF16 ? std::fabs(sum) * 0x1p-8 : 0);
      ASSERT_NEAR(y[r * out + o], sum, bound)
          << rows << " x " << in << " x " << out << " at " << r << ", " << o;
    }
    const std::vector<float> alone = problem.Run(r, r + 1);
    ASSERT_EQ(std::memcmp(alone.data(), y.data() + r * out, alone.size() * 4), 0)
        << rows << " x " << in << " x " << out << ", row " << r;
  }
}

struct Types {
  DType dtype, weight;
};
constexpr Types kTypes[] = {{DType::kF32, DType::kF32},
                            {DType::kF32, DType::kBF16},
                            {DType::kF32, DType::kF16},
                            {DType::kBF16, DType::kBF16}};

TEST(BatchInvariantLinear, MatchesReferenceAndIsBatchInvariant) {
  for (const Types& types : kTypes) {
    for (const int64_t rows : {1, 2, 15, 16, 17, 33, 50}) {
      for (const auto& [out, in] : {std::pair<int64_t, int64_t>{1, 1},
                                    {16, 32},
                                    {17, 33},
                                    {32, 31},
                                    {33, 64},
                                    {70, 0},
                                    {49, 301},
                                    {600, 500}}) {
        ExpectTheProductAndEachRowItsBits({rows, out, in, types.dtype, types.weight});
      }
    }
  }
}

TEST(BatchInvariantLinear, IsBatchInvariantForEveryNumberOfRows) {
  for (const Types& types : kTypes) {
    for (int64_t rows = 1; rows <= 20; ++rows) {
      // Rows that fit L1 together, and rows that do not.
      for (const int64_t in : {96, 800, 2100}) {
        ExpectTheProductAndEachRowItsBits({rows, 21, in, types.dtype, types.weight});
      }
    }
  }
}

// Includes subnormals, infinities and NaN, in whole vectors and in the remainder. One number at a
// time, since 0 times a non-finite number is NaN.
TEST(BatchInvariantLinear, ConvertsEveryF16Exactly) {
  constexpr int64_t kIn = 37;
  for (int64_t number = 0; number < 1 << 16; ++number) {
    std::vector<float> x(kIn, 0.0f);
    std::vector<uint16_t> weight(kIn, 0);
    x[number % kIn] = 1;
    weight[number % kIn] = static_cast<uint16_t>(number);
    float y = 0;
    BatchInvariantLinear(
        {DType::kF32, 1, kIn, 1, x.data(), weight.data(), nullptr, &y, DType::kF16});
    const float expected = F16ToF32(weight[number % kIn]);
    ASSERT_EQ(std::isnan(y), std::isnan(expected)) << number;
    if (!std::isnan(y)) {
      ASSERT_EQ(y, expected) << number;
    }
  }
}

TEST(BatchInvariantLinear, NonFiniteValuesStayInTheirRow) {
  Problem problem(20, 40, 70, DType::kF32, DType::kBF16);
  const std::vector<float> before = problem.Run(0, 20);
  problem.x[3 * 70 + 5] = std::numeric_limits<float>::infinity();
  problem.x[17 * 70 + 69] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> after = problem.Run(0, 20);
  for (int64_t r = 0; r < 20; ++r) {
    for (int64_t o = 0; o < 40; ++o) {
      const float value = after[r * 40 + o];
      if (r == 3) {
        EXPECT_EQ(std::fabs(value), std::numeric_limits<float>::infinity());
      } else if (r == 17) {
        EXPECT_TRUE(std::isnan(value));
      } else {
        EXPECT_EQ(value, before[r * 40 + o]);
      }
    }
  }
}

}  // namespace
}  // namespace espalier
