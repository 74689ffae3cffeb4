#include "ops/cpu/testing/op_runner.h"

namespace espalier {
namespace {

const OpRunner& Ops() {
  static const OpRunner runner;
  return runner;
}

struct Shape {
  int64_t batch, rows, columns, heads, kv_heads, dim;
};

struct Inputs {
  TestTensor q, k, v, mask;
  std::vector<TestTensor> all() const {
    std::vector<TestTensor> list = {q, k, v};
    if (mask.present()) list.push_back(mask);
    return list;
  }
};

Inputs Make(const Shape& s) {
  return {Random({s.batch, s.rows, s.heads * s.dim}, 1),
          Random({s.batch, s.columns, s.kv_heads * s.dim}, 2),
          Random({s.batch, s.columns, s.kv_heads * s.dim}, 3),
          {}};
}

// Added to score (b, h, i, j); -infinity hides it.
using MaskFunction = std::function<double(int64_t, int64_t, int64_t, int64_t)>;

std::vector<double> Naive(const Shape& s, const Inputs& in, const MaskFunction& mask) {
  std::vector<double> y(s.batch * s.rows * s.heads * s.dim);
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t kv = h * s.kv_heads / s.heads;
      for (int64_t i = 0; i < s.rows; ++i) {
        const int64_t at = (b * s.rows + i) * s.heads * s.dim + h * s.dim;
        std::vector<double> p(s.columns);
        double total = 0;
        for (int64_t j = 0; j < s.columns; ++j) {
          const int64_t k_at = (b * s.columns + j) * s.kv_heads * s.dim + kv * s.dim;
          double score = 0;
          for (int64_t d = 0; d < s.dim; ++d) {
            score += static_cast<double>(in.q.at(at + d)) * in.k.at(k_at + d);
          }
          p[j] = std::exp(score / std::sqrt(static_cast<double>(s.dim)) + mask(b, h, i, j));
          total += p[j];
        }
        if (total == 0) continue;
        for (int64_t j = 0; j < s.columns; ++j) {
          const int64_t v_at = (b * s.columns + j) * s.kv_heads * s.dim + kv * s.dim;
          for (int64_t d = 0; d < s.dim; ++d) y[at + d] += p[j] / total * in.v.at(v_at + d);
        }
      }
    }
  }
  return y;
}

Attributes Of(const Shape& s, bool causal) { return {{"head_dim", s.dim}, {"causal", causal}}; }

TEST(Attention, MatchesLoops) {
  for (const Shape& s :
       {Shape{2, 5, 5, 2, 2, 16}, Shape{1, 130, 130, 4, 2, 32}, Shape{2, 7, 19, 4, 1, 8},
        Shape{1, 49, 50, 3, 3, 20}, Shape{1, 1, 1, 1, 1, 1}, Shape{1, 3, 100, 2, 1, 64}}) {
    const Inputs in = Make(s);
    for (const bool causal : {false, true}) {
      const auto mask = [&](int64_t, int64_t, int64_t i, int64_t j) {
        return causal && j > i ? -INFINITY : 0;
      };
      ExpectClose(Ops().Run("attention", Of(s, causal), in.all())[0], Naive(s, in, mask), 1e-5);
    }
  }
}

TEST(Attention, MasksOfAllShapesAndTypes) {
  const Shape s{2, 6, 9, 4, 2, 16};
  for (const Dims& dims : {Dims{6, 9}, Dims{2, 6, 9}, Dims{2, 4, 6, 9}}) {
    for (const bool boolean : {false, true}) {
      Inputs in = Make(s);
      const TestTensor values = Random(dims, 7);
      in.mask = Zeros(boolean ? DType::kBool : DType::kF32, dims);
      for (int64_t i = 0; i < values.size(); ++i) {
        if (boolean)
          in.mask.bytes[i] = values.at(i) > 0;
        else
          in.mask.as<float>()[i] = 3 * values.at(i);
      }
      const auto mask = [&](int64_t b, int64_t h, int64_t i, int64_t j) -> double {
        const int64_t leading = dims.size() == 2 ? 0 : dims.size() == 3 ? b : b * 4 + h;
        const float value = values.at((leading * 6 + i) * 9 + j);
        return boolean ? (value > 0 ? 0 : -INFINITY) : 3 * value;
      };
      ExpectClose(Ops().Run("attention", Of(s, false), in.all())[0], Naive(s, in, mask), 1e-5);
    }
  }
}

TEST(Attention, FullyMaskedRowsAreZeroWithoutGradient) {
  const Shape s{1, 3, 4, 1, 1, 16};
  Inputs in = Make(s);
  in.mask = Zeros(DType::kBool, {3, 4});
  for (int j = 0; j < 4; ++j) in.mask.bytes[4 + j] = 1;  // only row 1 sees anything
  const std::vector<TestTensor> y = Ops().Run("attention", Of(s, false), in.all());
  const std::vector<TestTensor> gradients =
      Ops().RunGradient("attention", Of(s, false), in.all(), y, {Random({1, 3, 16}, 9)});
  for (int d = 0; d < 16; ++d) {
    EXPECT_EQ(y[0].at(d), 0);
    EXPECT_NE(y[0].at(16 + d), 0);
    EXPECT_EQ(gradients[0].at(d), 0);
    EXPECT_NE(gradients[0].at(16 + d), 0);
  }
}

TEST(Attention, GradientMatchesFiniteDifferences) {
  for (const Shape& s :
       {Shape{2, 5, 5, 2, 2, 16}, Shape{1, 60, 60, 4, 2, 4}, Shape{1, 4, 7, 2, 1, 20}}) {
    for (const bool causal : {false, true}) {
      Ops().CheckGradient("attention", Of(s, causal), Make(s).all(), 3e-3);
    }
  }
  const Shape s{1, 5, 6, 2, 1, 8};
  Inputs in = Make(s);
  in.mask = Random({5, 6}, 8);
  Ops().CheckGradient("attention", Of(s, true), in.all(), 3e-3);
}

TEST(Attention, QueryShardUsesItsPositionInTheWhole) {
  const Shape s{1, 10, 10, 2, 1, 16};
  const Inputs in = Make(s);
  const TestTensor whole = Ops().Run("attention", Of(s, true), in.all())[0];
  Inputs part = in;
  part.q = F32({1, 4, 32}, std::vector<float>(in.q.as<float>() + 6 * 32, in.q.as<float>() + 320));
  RunOptions options;
  options.specs = {{DType::kF32, {1, 4, 32}, {0, 6, 0}, {1, 10, 32}}};
  const TestTensor y = Ops().Run("attention", Of(s, true), part.all(), options)[0];
  for (int64_t i = 0; i < y.size(); ++i) EXPECT_EQ(y.at(i), whole.at(6 * 32 + i));
}

TEST(Attention, EmptyBatchAndEmptyKeys) {
  EXPECT_EQ(Ops()
                .Run("attention", Of({0, 3, 3, 1, 1, 8}, true), Make({0, 3, 3, 1, 1, 8}).all())[0]
                .size(),
            0);
  const TestTensor y =
      Ops().Run("attention", Of({1, 2, 0, 1, 1, 16}, false), Make({1, 2, 0, 1, 1, 16}).all())[0];
  for (int64_t i = 0; i < y.size(); ++i) EXPECT_EQ(y.at(i), 0);
}

TEST(Attention, ErrorsStateTheExpectedShapes) {
  const Attributes attributes = {{"head_dim", int64_t{8}}};
  EXPECT_EQ(Ops().InferError("attention", attributes,
                             {Random({1, 2, 24}, 1), Random({1, 2, 16}, 2), Random({1, 2, 16}, 3)}),
            "attention: 'q' has 3 heads and 'k' 2, expected a multiple of the heads of 'k'");
  EXPECT_EQ(Ops().InferError("attention", attributes,
                             {Random({1, 2, 16}, 1), Random({1, 3, 16}, 2), Random({1, 3, 16}, 3),
                              Random({3, 2}, 4)}),
            "attention: input 'mask' has shape [3, 2], expected [2, 3], [1, 2, 3] or [1, 2, 2, 3]");
}

}  // namespace
}  // namespace espalier
