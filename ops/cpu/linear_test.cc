#include "ops/cpu/dtype/convert.h"
#include "ops/cpu/testing/op_runner.h"

namespace espalier {
namespace {

const OpRunner& Ops() {
  static const OpRunner runner;
  return runner;
}

std::vector<double> NaiveLinear(const TestTensor& x, const TestTensor& w, const TestTensor* bias) {
  const int64_t out = w.type.dims[0], in = w.type.dims[1], rows = x.size() / in;
  std::vector<double> y(rows * out);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < out; ++j) {
      double sum = bias != nullptr ? bias->at(j) : 0;
      for (int64_t k = 0; k < in; ++k) {
        sum += static_cast<double>(x.at(i * in + k)) * w.at(j * in + k);
      }
      y[i * out + j] = sum;
    }
  }
  return y;
}

TEST(Linear, MatchesLoopsWithAndWithoutBias) {
  for (const bool stable : {false, true}) {
    for (const auto& [in, out] :
         {std::pair<int64_t, int64_t>{1, 1}, {7, 5}, {64, 33}, {100, 130}}) {
      const TestTensor x = Random({3, 5, in}, 1), w = Random({out, in}, 2), b = Random({out}, 3);
      ExpectClose(Ops().Run("linear", {}, {x, w}, {stable})[0], NaiveLinear(x, w, nullptr), 2e-5);
      ExpectClose(Ops().Run("linear", {}, {x, w, b}, {stable})[0], NaiveLinear(x, w, &b), 2e-5);
    }
  }
}

TEST(Linear, GradientMatchesFiniteDifferences) {
  Ops().CheckGradient("linear", {}, {Random({4, 6, 9}, 1), Random({5, 9}, 2), Random({5}, 3)});
  Ops().CheckGradient("linear", {}, {Random({4, 9}, 1), Random({5, 9}, 2)});
}

TEST(Linear, BiasGradientOfManyRowsIsTheirSum) {
  for (const int64_t rows : {1, 31, 100, 1003}) {
    const int64_t out = 37;
    const std::vector<TestTensor> inputs = {Random({rows, 3}, 1), Random({out, 3}, 2),
                                            Random({out}, 3)};
    const TestTensor dy = Random({rows, out}, 4);
    std::vector<double> expected(out);
    for (int64_t i = 0; i < dy.size(); ++i) expected[i % out] += dy.at(i);
    const std::vector<TestTensor> y = Ops().Run("linear", {}, inputs);
    ExpectClose(Ops().RunGradient("linear", {}, inputs, y, {dy})[2], expected, 1e-5);
  }
}

TEST(Linear, EmptyBatchGivesNoRowsAndZeroGradients) {
  const std::vector<TestTensor> inputs = {Random({0, 4}, 1), Random({3, 4}, 2), Random({3}, 3)};
  const std::vector<TestTensor> y = Ops().Run("linear", {}, inputs);
  EXPECT_EQ(y[0].type.dims, (Dims{0, 3}));
  const std::vector<TestTensor> gradients = Ops().RunGradient("linear", {}, inputs, y, y);
  ExpectClose(gradients[1], std::vector<double>(12, 0), 0);
  ExpectClose(gradients[2], std::vector<double>(3, 0), 0);
}

TEST(Linear, EmptySumIsTheBias) {
  ExpectClose(Ops().Run("linear", {}, {Random({2, 0}, 1), Random({2, 0}, 2), F32({2}, {3, 4})})[0],
              {3, 4, 3, 4}, 0);
}

TEST(Linear, NarrowTypesRoundTheF32Result) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const bool stable : {false, true}) {
      std::vector<TestTensor> wide = {Random({6, 40}, 1), Random({9, 40}, 2), Random({9}, 3)},
                              narrow;
      for (TestTensor& tensor : wide) {
        narrow.push_back(Zeros(dtype, tensor.type.dims));
        FromF32(dtype, tensor.as<float>(), narrow.back().bytes.data(), tensor.size());
        ToF32(dtype, narrow.back().bytes.data(), tensor.as<float>(), tensor.size());
      }
      const std::vector<TestTensor> y = Ops().Run("linear", {}, narrow, {stable});
      const std::vector<double> expected = NaiveLinear(wide[0], wide[1], &wide[2]);
      TestTensor back = Zeros(DType::kF32, y[0].type.dims);
      ToF32(dtype, y[0].bytes.data(), back.as<float>(), back.size());
      for (int64_t i = 0; i < back.size(); ++i) {
        EXPECT_NEAR(back.at(i), expected[i],
                    std::abs(expected[i]) * (dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11) + 1e-5);
      }
    }
  }
}

TEST(Linear, BatchInvariantRowsDoNotDependOnTheBatch) {
  for (const auto& [in, out] : {std::pair<int64_t, int64_t>{96, 70}, {61, 256}}) {
    const TestTensor x = Random({200, in}, 1), w = Random({out, in}, 2), b = Random({out}, 3);
    const TestTensor all = Ops().Run("linear", {}, {x, w, b}, {true})[0];
    for (const int64_t rows : {1, 2, 3, 7, 64}) {
      for (int64_t first = 0; first + rows <= 200; first += 37) {
        TestTensor part = Zeros(DType::kF32, {rows, in});
        std::memcpy(part.bytes.data(), x.as<float>() + first * in, part.bytes.size());
        const TestTensor y = Ops().Run("linear", {}, {part, w, b}, {true})[0];
        ASSERT_EQ(std::memcmp(y.bytes.data(), all.as<float>() + first * out, y.bytes.size()), 0)
            << rows << " rows from " << first;
      }
    }
  }
}

TEST(Linear, ErrorsNameInputShapeAndReason) {
  EXPECT_EQ(Ops().InferError("linear", {}, {Random({2, 128}, 1), Random({3, 4}, 2)}),
            "linear: input 'weight' has shape [3, 4], expected [out, 128] because 'x' ends in 128");
  EXPECT_EQ(Ops().InferError("linear", {}, {Random({2, 4}, 1), Random({3, 4}, 2), Random({4}, 3)}),
            "linear: input 'bias' has shape [4], expected [3] because 'weight' has 3 rows");
  EXPECT_EQ(Ops().InferError("linear", {}, {I32({1, 1}, {0}), Random({3, 1}, 2)}),
            "linear: input 'x' has type i32, expected f32 or bf16 or f16");
}

TEST(Linear, SplitsTheSumOnlyWithoutBias) {
  NodeTypes types;
  ASSERT_TRUE(Ops().Infer("linear", {Random({2, 4}, 1), Random({3, 4}, 2)}, &types).ok());
  EXPECT_EQ(SplitOf(Ops().definition("linear"), types).axes.size(), 3u);
  NodeTypes biased;
  ASSERT_TRUE(
      Ops().Infer("linear", {Random({2, 4}, 1), Random({3, 4}, 2), Random({3}, 3)}, &biased).ok());
  EXPECT_EQ(SplitOf(Ops().definition("linear"), biased).axes.size(), 2u);
}

// y[i] of a broadcasting batched product by definition.
std::vector<double> NaiveMatmul(const TestTensor& a, const TestTensor& b, bool ta, bool tb,
                                int64_t a_batch, int64_t b_batch, int64_t batch, int64_t m,
                                int64_t n, int64_t k) {
  std::vector<double> y(batch * m * n);
  for (int64_t s = 0; s < batch; ++s) {
    const float* pa = a.as<float>() + (a_batch == 1 ? 0 : s) * m * k;
    const float* pb = b.as<float>() + (b_batch == 1 ? 0 : s) * k * n;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t p = 0; p < k; ++p) {
          sum += static_cast<double>(ta ? pa[p * m + i] : pa[i * k + p]) *
                 (tb ? pb[j * k + p] : pb[p * n + j]);
        }
        y[(s * m + i) * n + j] = sum;
      }
    }
  }
  return y;
}

TEST(Matmul, MatchesLoopsForAllTranspositionsAndBroadcasts) {
  const int64_t m = 5, n = 7, k = 3;
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      const Attributes attributes = {{"transpose_a", ta}, {"transpose_b", tb}};
      for (const auto& [a_batch, b_batch] : {std::pair<int64_t, int64_t>{4, 4}, {1, 4}, {4, 1}}) {
        const TestTensor a = Random({a_batch, ta ? k : m, ta ? m : k}, 1);
        const TestTensor b = Random({b_batch, tb ? n : k, tb ? k : n}, 2);
        for (const bool stable : {false, true}) {
          ExpectClose(Ops().Run("matmul", attributes, {a, b}, {stable})[0],
                      NaiveMatmul(a, b, ta, tb, a_batch, b_batch, 4, m, n, k), 1e-5);
        }
        Ops().CheckGradient("matmul", attributes, {a, b});
      }
    }
  }
}

TEST(Matmul, BroadcastsInnerBatchDimensionsAndMissingOnes) {
  const TestTensor a = Random({2, 1, 3, 4}, 1), b = Random({5, 4, 6}, 2);
  const TestTensor y = Ops().Run("matmul", {}, {a, b})[0];
  ASSERT_EQ(y.type.dims, (Dims{2, 5, 3, 6}));
  double sum = 0;  // y[1, 3, 2, 4]
  for (int64_t p = 0; p < 4; ++p) {
    sum += static_cast<double>(a.at(12 + 2 * 4 + p)) * b.at(3 * 24 + p * 6 + 4);
  }
  EXPECT_NEAR(y.at(((1 * 5 + 3) * 3 + 2) * 6 + 4), sum, 1e-5);
  Ops().CheckGradient("matmul", {}, {a, b});
}

TEST(Matmul, ErrorNamesBothShapes) {
  EXPECT_EQ(
      Ops().InferError("matmul", {}, {Random({2, 3}, 1), Random({4, 5}, 2)}),
      "matmul: input 'a' has shape [2, 3] and sums over 3, input 'b' has shape [4, 5] and sums "
      "over 4; expected equal sizes (attributes transpose_a and transpose_b exchange the last "
      "two)");
}

}  // namespace
}  // namespace espalier
