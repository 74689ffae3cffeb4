#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <random>

#include "ops/cpu/op_runner.h"
#include "ops/quantized/pack.h"

namespace espalier {
namespace {

std::vector<float> Normal(int64_t n, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = normal(random);
  return values;
}

TestTensor Weights(const PackedWeights& shape, const std::vector<float>& weights) {
  TestTensor packed = Zeros(DType::kU8, {shape.blocks(), shape.block_bytes()});
  EXPECT_TRUE(Pack("w", shape, weights.data(), packed.as<uint8_t>()).ok());
  return packed;
}

Attributes AttributesOf(int bits, int64_t out) {
  return {{"bits", int64_t{bits}}, {"out", out}, {"activation", std::string("silu")}};
}

TEST(QuantizedLinearTest, ARowsBitsDependOnTheRowAlone) {
  const OpRunner ops;
  const int threads = omp_get_max_threads();
  for (const int bits : {16, 8, 4}) {
    const PackedWeights shape{bits == 16 ? 8 : bits, 200, 300};
    const std::vector<float> weights = Normal(shape.out * shape.in, 1);
    TestTensor weight = Weights(shape, weights);
    if (bits == 16) {
      weight = Zeros(DType::kBF16, {shape.out, shape.in});
      for (size_t i = 0; i < weights.size(); ++i) weight.set(static_cast<int64_t>(i), weights[i]);
    }
    const TestTensor bias = F32({shape.out}, Normal(shape.out, 2));
    const std::vector<float> x = Normal(19 * shape.in, 3);
    const TestTensor whole = ops.Run("quantized_linear", AttributesOf(bits, shape.out),
                                     {F32({19, shape.in}, x), weight, bias}, {true})[0];
    for (const int64_t rows : {1, 2, 3, 5, 8, 13}) {
      omp_set_num_threads(rows % 2 == 0 ? 1 : 3);
      const int64_t first = 19 - rows;
      const TestTensor part =
          ops.Run("quantized_linear", AttributesOf(bits, shape.out),
                  {F32({rows, shape.in}, {x.begin() + first * shape.in, x.end()}), weight, bias},
                  {true})[0];
      for (int64_t i = 0; i < part.size(); ++i) {
        ASSERT_EQ(part.at(i), whole.at(first * shape.out + i)) << bits << " bits, " << rows;
      }
    }
    omp_set_num_threads(threads);
  }
}

TEST(QuantizedLinearTest, IsCloseToTheProductInF32) {
  const OpRunner ops;
  const int64_t rows = 5, in = 512, out = 48;
  const std::vector<float> weights = Normal(out * in, 1);
  const TestTensor x = F32({rows, in}, Normal(rows * in, 3));
  const TestTensor exact = ops.Run("linear", {}, {x, F32({out, in}, weights)})[0];
  for (const auto& [bits, bound] : {std::pair<int, double>{8, 0.012}, {4, 0.12}}) {
    const PackedWeights shape{bits, out, in};
    const TestTensor y = ops.Run("quantized_linear", {{"bits", int64_t{bits}}, {"out", out}},
                                 {x, Weights(shape, weights)})[0];
    double error = 0, size = 0;
    for (int64_t i = 0; i < y.size(); ++i) {
      error += std::pow(y.at(i) - exact.at(i), 2);
      size += std::pow(exact.at(i), 2);
    }
    EXPECT_LT(std::sqrt(error / size), bound) << bits << " bits";
  }
}

TEST(QuantizedLinearTest, WhatIsNotFiniteStaysInItsRow) {
  const OpRunner ops;
  const PackedWeights shape{8, 20, 64};
  std::vector<float> x = Normal(3 * 64, 3);
  x[64 + 5] = std::numeric_limits<float>::infinity();
  const TestTensor y = ops.Run("quantized_linear", {{"bits", int64_t{8}}, {"out", int64_t{20}}},
                               {F32({3, 64}, x), Weights(shape, Normal(20 * 64, 1))})[0];
  for (int64_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y.at(i)), i / 20 == 1) << i;
}

}  // namespace
}  // namespace espalier
