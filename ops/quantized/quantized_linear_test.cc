#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <random>

#include "ops/cpu/testing/op_runner.h"
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

// Bits and types of weights.
constexpr std::pair<int, DType> kFormats[] = {
    {16, DType::kBF16}, {16, DType::kF16}, {8, DType::kU8}, {4, DType::kU8}};

Attributes AttributesOf(int bits, int64_t out) {
  return {{"bits", int64_t{bits}}, {"out", out}, {"activation", std::string("silu")}};
}

TEST(QuantizedLinearTest, IsBatchInvariant) {
  const OpRunner ops;
  const int threads = omp_get_max_threads();
  for (const auto& [bits, dtype] : kFormats) {
    const PackedWeights shape{bits == 16 ? 8 : bits, 200, 300};
    const std::vector<float> weights = Normal(shape.out * shape.in, 1);
    TestTensor weight = Weights(shape, weights);
    if (bits == 16) {
      weight = Zeros(dtype, {shape.out, shape.in});
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
  const double bounds[] = {0x1p-8, 0x1p-11, 0.012, 0.12};
  for (size_t f = 0; f < std::size(kFormats); ++f) {
    const auto& [bits, dtype] = kFormats[f];
    TestTensor weight = Zeros(dtype, {out, in});
    if (bits == 16) {
      for (size_t i = 0; i < weights.size(); ++i) weight.set(static_cast<int64_t>(i), weights[i]);
    } else {
      weight = Weights({bits, out, in}, weights);
    }
    const TestTensor y =
        ops.Run("quantized_linear", {{"bits", int64_t{bits}}, {"out", out}}, {x, weight})[0];
    double error = 0, size = 0;
    for (int64_t i = 0; i < y.size(); ++i) {
      error += std::pow(y.at(i) - exact.at(i), 2);
      size += std::pow(exact.at(i), 2);
    }
    EXPECT_GT(error, 0);
    EXPECT_LT(std::sqrt(error / size), bounds[f]) << bits << " bits, " << Name(dtype);
  }
}

TEST(QuantizedLinearTest, NonFiniteValuesStayInTheirRow) {
  const OpRunner ops;
  const PackedWeights shape{8, 20, 64};
  std::vector<float> x = Normal(3 * 64, 3);
  x[64 + 5] = std::numeric_limits<float>::infinity();
  const TestTensor y = ops.Run("quantized_linear", {{"bits", int64_t{8}}, {"out", int64_t{20}}},
                               {F32({3, 64}, x), Weights(shape, Normal(20 * 64, 1))})[0];
  for (int64_t i = 0; i < y.size(); ++i) EXPECT_EQ(std::isnan(y.at(i)), i / 20 == 1) << i;
}

// Each row equals quantized_linear with its expert's matrix, bit for bit, for any number of rows
// per expert, with unused experts in between.
TEST(QuantizedExpertLinearTest, EachRowEqualsQuantizedLinearOfItsExpert) {
  const OpRunner ops;
  const int threads = omp_get_max_threads();
  const int64_t experts = 6, k = 2, in = 70;
  for (const auto& [bits, dtype] : kFormats) {
    for (const int64_t out : {48, 37}) {
      const PackedWeights shape{bits == 16 ? 8 : bits, out, in};
      std::vector<TestTensor> matrices;
      const Dims one = bits == 16 ? Dims{out, in} : Dims{shape.blocks(), shape.block_bytes()};
      TestTensor all = Zeros(dtype, {experts, one[0], one[1]});
      for (int64_t e = 0; e < experts; ++e) {
        const std::vector<float> values = Normal(out * in, static_cast<int>(e));
        TestTensor matrix = Zeros(dtype, one);
        if (bits == 16) {
          for (int64_t i = 0; i < out * in; ++i) matrix.set(i, values[static_cast<size_t>(i)]);
        } else {
          matrix = Weights(shape, values);
        }
        std::copy(matrix.bytes.begin(), matrix.bytes.end(),
                  all.bytes.begin() + e * static_cast<int64_t>(matrix.bytes.size()));
        matrices.push_back(std::move(matrix));
      }
      for (const int64_t rows : {1, 4, 33}) {
        omp_set_num_threads(rows == 4 ? 1 : 3);
        TestTensor assign = Zeros(DType::kI32, {rows, k});
        // Expert 4 is never chosen; a row's experts are distinct.
        for (int64_t t = 0; t < rows; ++t) {
          assign.set(2 * t, static_cast<float>(t % 4));
          assign.set(2 * t + 1, static_cast<float>(t % 3 == 0 ? 5 : (t + 1) % 4));
        }
        const std::vector<float> x = Normal(rows * in, 9);
        const TestTensor y =
            ops.Run("quantized_expert_linear", {{"bits", int64_t{bits}}, {"out", out}},
                    {F32({rows, in}, x), all, assign})[0];
        const TestTensor gates = F32({rows, k}, Normal(rows * k, 10));
        const TestTensor sums =
            ops.Run("quantized_expert_linear", {{"bits", int64_t{bits}}, {"out", out}},
                    {F32({rows, in}, x), all, assign, gates})[0];
        for (int64_t t = 0; t < rows; ++t) {
          std::vector<float> sum(static_cast<size_t>(out), 0.0f);
          for (int64_t j = 0; j < k; ++j) {
            const int64_t expert = static_cast<int64_t>(assign.value(t * k + j));
            const TestTensor alone =
                ops.Run("quantized_linear", {{"bits", int64_t{bits}}, {"out", out}},
                        {F32({1, in}, {x.begin() + t * in, x.begin() + (t + 1) * in}),
                         matrices[expert]})[0];
            for (int64_t o = 0; o < out; ++o) {
              ASSERT_EQ(y.at((t * k + j) * out + o), alone.at(o)) << bits << " bits, row " << t;
              sum[static_cast<size_t>(o)] += static_cast<float>(gates.at(t * k + j) * alone.at(o));
            }
          }
          for (int64_t o = 0; o < out; ++o) {
            ASSERT_NEAR(sums.at(t * out + o), sum[static_cast<size_t>(o)], 1e-4);
          }
        }
      }
    }
  }
  omp_set_num_threads(threads);
}

}  // namespace
}  // namespace espalier
