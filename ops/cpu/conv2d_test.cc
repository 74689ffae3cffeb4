#include "ops/cpu/testing/op_runner.h"

namespace espalier {
namespace {

const OpRunner& Ops() {
  static const OpRunner runner;
  return runner;
}

using Ints = std::vector<int64_t>;

struct Conv {
  Dims x, weight;
  Ints strides = {1, 1}, pads = {0, 0, 0, 0}, dilations = {1, 1};
  int64_t groups = 1;
  Attributes attributes() const {
    return {{"strides", strides}, {"pads", pads}, {"dilations", dilations}, {"groups", groups}};
  }
};

std::vector<double> Naive(const Conv& c, const TestTensor& x, const TestTensor& w,
                          const TestTensor& bias, const Dims& y) {
  std::vector<double> out;
  const int64_t per_group = c.weight[0] / c.groups;
  for (int64_t n = 0; n < y[0]; ++n) {
    for (int64_t o = 0; o < y[1]; ++o) {
      for (int64_t i = 0; i < y[2]; ++i) {
        for (int64_t j = 0; j < y[3]; ++j) {
          double sum = bias.at(o);
          for (int64_t k = 0; k < c.weight[1]; ++k) {
            const int64_t channel = o / per_group * c.weight[1] + k;
            for (int64_t r = 0; r < c.weight[2]; ++r) {
              for (int64_t s = 0; s < c.weight[3]; ++s) {
                const int64_t row = i * c.strides[0] - c.pads[0] + r * c.dilations[0];
                const int64_t column = j * c.strides[1] - c.pads[1] + s * c.dilations[1];
                if (row < 0 || row >= c.x[2] || column < 0 || column >= c.x[3]) continue;
                sum += static_cast<double>(
                           x.at(((n * c.x[1] + channel) * c.x[2] + row) * c.x[3] + column)) *
                       w.at(((o * c.weight[1] + k) * c.weight[2] + r) * c.weight[3] + s);
              }
            }
          }
          out.push_back(sum);
        }
      }
    }
  }
  return out;
}

TEST(Conv2d, MatchesLoopsAndFiniteDifferences) {
  for (const Conv& c : {Conv{{2, 1, 8, 8}, {16, 1, 3, 3}, {1, 1}, {1, 1, 1, 1}},
                        Conv{{2, 16, 6, 6}, {32, 16, 3, 3}, {2, 2}, {1, 1, 1, 1}},
                        Conv{{1, 3, 9, 7}, {5, 3, 3, 2}, {2, 1}, {0, 1, 2, 0}, {2, 1}},
                        Conv{{2, 4, 5, 5}, {6, 2, 3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}, 2},
                        Conv{{1, 4, 5, 5}, {4, 1, 3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}, 4},
                        Conv{{1, 1, 1, 1}, {1, 1, 1, 1}}}) {
    const TestTensor x = Random(c.x, 1), w = Random(c.weight, 2), b = Random({c.weight[0]}, 3);
    const TestTensor y = Ops().Run("conv2d", c.attributes(), {x, w, b})[0];
    ExpectClose(y, Naive(c, x, w, b, y.type.dims), 2e-5);
    TestTensor zero = Zeros(DType::kF32, {c.weight[0]});
    ExpectClose(Ops().Run("conv2d", c.attributes(), {x, w})[0], Naive(c, x, w, zero, y.type.dims),
                2e-5);
    Ops().CheckGradient("conv2d", c.attributes(), {x, w, b});
    Ops().CheckGradient("conv2d", c.attributes(), {x, w});
  }
}

TEST(Conv2d, EmptyBatch) {
  const Conv c{{0, 2, 5, 5}, {3, 2, 3, 3}};
  const std::vector<TestTensor> inputs = {Random(c.x, 1), Random(c.weight, 2)};
  const std::vector<TestTensor> y = Ops().Run("conv2d", c.attributes(), inputs);
  EXPECT_EQ(y[0].type.dims, (Dims{0, 3, 3, 3}));
  ExpectClose(Ops().RunGradient("conv2d", c.attributes(), inputs, y, y)[1],
              std::vector<double>(54, 0), 0);
}

TEST(Conv2d, ErrorsStateTheExpectedShapes) {
  EXPECT_EQ(
      Ops().InferError("conv2d", {}, {Random({1, 3, 8, 8}, 1), Random({4, 2, 3, 3}, 2)}),
      "conv2d: input 'weight' has shape [4, 2, 3, 3], expected [out, 3, kh, kw] because 'x' has "
      "3 channels in 1 group");
  EXPECT_EQ(Ops().InferError("conv2d", {}, {Random({1, 1, 2, 8}, 1), Random({4, 1, 3, 3}, 2)}),
            "conv2d: the kernel covers 3 of dimension 2 of 'x', which with its pads has only 2; "
            "expected a smaller kernel or larger pads");
  EXPECT_EQ(Ops().InferError("conv2d", {{"strides", Ints{0, 1}}},
                             {Random({1, 1, 4, 4}, 1), Random({4, 1, 3, 3}, 2)}),
            "conv2d: attribute 'strides' is [0, 1], expected 2 integers of at least 1");
}

Attributes Pool(const std::string& kind, Ints kernel, Ints strides, Ints pads, bool include = false,
                bool ceil = false) {
  return {{"kind", kind},
          {"kernel", kernel},
          {"strides", strides},
          {"pads", pads},
          {"count_include_pad", include},
          {"ceil_mode", ceil}};
}

TEST(Pool2d, SmallCasesByHand) {
  const TestTensor x = F32({1, 1, 3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  ExpectClose(Ops().Run("pool2d", Pool("max", {2, 2}, {1, 1}, {0, 0, 0, 0}), {x})[0], {5, 6, 8, 9},
              0);
  ExpectClose(Ops().Run("pool2d", Pool("average", {2, 2}, {1, 1}, {0, 0, 0, 0}), {x})[0],
              {3, 4, 6, 7}, 0);
  // Padded windows: 1 | 2 3 / 4 | 5 6 / 7 | 8 9
  ExpectClose(Ops().Run("pool2d", Pool("average", {2, 2}, {2, 2}, {1, 1, 0, 0}), {x})[0],
              {1, 2.5, 5.5, 7}, 1e-6);
  ExpectClose(Ops().Run("pool2d", Pool("average", {2, 2}, {2, 2}, {1, 1, 0, 0}, true), {x})[0],
              {0.25, 1.25, 2.75, 7}, 1e-6);
  // ceil_mode adds windows that reach over the border; what lies beyond never counts.
  ExpectClose(
      Ops().Run("pool2d", Pool("average", {2, 2}, {2, 2}, {0, 0, 0, 0}, true, true), {x})[0],
      {3, 4.5, 7.5, 9}, 1e-6);
  ExpectClose(Ops().Run("pool2d", Pool("max", {2, 2}, {2, 2}, {0, 0, 0, 0}, false, true), {x})[0],
              {5, 6, 8, 9}, 0);
}

TEST(Pool2d, GradientsMatchFiniteDifferences) {
  TestTensor x = Random({2, 3, 7, 6}, 1);
  // Values far enough apart that a small step changes no maximum.
  for (int64_t i = 0; i < x.size(); ++i) {
    x.as<float>()[i] = static_cast<float>(i * 101 % x.size()) * 0.05f;
  }
  for (const char* kind : {"max", "average"}) {
    for (const bool flag : {false, true}) {
      Ops().CheckGradient("pool2d", Pool(kind, {3, 2}, {2, 2}, {1, 1, 1, 0}, flag, flag), {x});
    }
  }
}

TEST(Pool2d, GradientOfATieGoesToTheFirst) {
  const TestTensor x = F32({1, 1, 2, 2}, {1, 1, 1, 1});
  const Attributes attributes = Pool("max", {2, 2}, {1, 1}, {0, 0, 0, 0});
  const std::vector<TestTensor> y = Ops().Run("pool2d", attributes, {x});
  ExpectClose(Ops().RunGradient("pool2d", attributes, {x}, y, {F32({1, 1, 1, 1}, {3})})[0],
              {3, 0, 0, 0}, 0);
}

// dx of max pooling, one window after the other.
std::vector<double> ScatterToMaxima(const TestTensor& x, const TestTensor& dy, Ints kernel,
                                    Ints strides, Ints pads, Ints dilations) {
  const int64_t height = x.type.dims[2], width = x.type.dims[3];
  const int64_t rows = dy.type.dims[2], columns = dy.type.dims[3];
  std::vector<double> dx(x.size());
  for (int64_t at = 0; at < dy.size(); ++at) {
    const int64_t plane = at / (rows * columns) * height * width;
    const int64_t top = at / columns % rows * strides[0] - pads[0];
    const int64_t left = at % columns * strides[1] - pads[1];
    int64_t best = -1;
    for (int64_t k = 0; k < kernel[0] * kernel[1]; ++k) {
      const int64_t r = top + k / kernel[1] * dilations[0], c = left + k % kernel[1] * dilations[1];
      if (r < 0 || r >= height || c < 0 || c >= width) continue;
      const int64_t here = plane + r * width + c;
      if (best < 0 || x.at(here) > x.at(best) || std::isnan(x.at(here))) best = here;
    }
    if (best >= 0) dx[best] += dy.at(at);
  }
  return dx;
}

TEST(Pool2d, GradientOfTheMaximumMatchesLoops) {
  struct Case {
    Dims x;
    Ints kernel, strides, pads, dilations;
    bool ceil = false;
  };
  const Case cases[] = {
      {{2, 3, 37, 40}, {3, 3}, {2, 2}, {1, 1, 1, 1}, {1, 1}},
      {{1, 2, 24, 33}, {2, 2}, {2, 2}, {0, 0, 0, 0}, {1, 1}, true},
      {{1, 2, 20, 21}, {5, 4}, {1, 1}, {2, 1, 2, 2}, {1, 1}},
      {{1, 2, 30, 29}, {3, 2}, {2, 3}, {1, 1, 0, 0}, {2, 3}, true},
      {{1, 1, 19, 50}, {2, 3}, {3, 4}, {0, 1, 1, 0}, {1, 1}, true},  // some belong to no window
      {{2, 2, 7, 7}, {7, 7}, {1, 1}, {0, 0, 0, 0}, {1, 1}},
      {{3, 2, 4, 4}, {2, 2}, {2, 2}, {0, 0, 0, 0}, {1, 1}},
  };
  for (const Case& c : cases) {
    Attributes attributes = Pool("max", c.kernel, c.strides, c.pads, false, c.ceil);
    attributes.Set("dilations", c.dilations);
    for (const char* values : {"any", "ties", "NaN and -inf", "-inf"}) {
      TestTensor x = Random(c.x, 1);
      for (int64_t i = 0; i < x.size(); ++i) {
        float& value = x.as<float>()[i];
        if (values == std::string("ties")) value = std::floor(value * 2);
        if (values == std::string("-inf")) value = -INFINITY;
        if (values == std::string("NaN and -inf")) {
          value = value > 0.8f ? NAN : value < 0 ? -INFINITY : value;
        }
      }
      const std::vector<TestTensor> y = Ops().Run("pool2d", attributes, {x});
      const TestTensor dy = Random(y[0].type.dims, 2);
      const std::vector<double> expected =
          ScatterToMaxima(x, dy, c.kernel, c.strides, c.pads, c.dilations);
      SCOPED_TRACE(values);
      ExpectClose(Ops().RunGradient("pool2d", attributes, {x}, y, {dy})[0], expected, 1e-5);
    }
  }
}

}  // namespace
}  // namespace espalier
