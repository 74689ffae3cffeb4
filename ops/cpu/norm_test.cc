#include <omp.h>

#include "ops/cpu/testing/op_runner.h"

namespace espalier {
namespace {

const OpRunner& Ops() {
  static const OpRunner runner;
  return runner;
}

TEST(RmsNorm, MatchesLoopsAndFiniteDifferences) {
  for (const int64_t n : {1, 5, 64, 100, 300}) {
    const TestTensor x = Random({2, 3, n}, 1), w = Random({n}, 2);
    std::vector<double> expected;
    for (int64_t r = 0; r < 6; ++r) {
      double squares = 0;
      for (int64_t i = 0; i < n; ++i) squares += std::pow(x.at(r * n + i), 2.0);
      for (int64_t i = 0; i < n; ++i) {
        expected.push_back(x.at(r * n + i) / std::sqrt(squares / n + 1e-3) * w.at(i));
      }
    }
    const Attributes attributes = {{"epsilon", 1e-3}};
    ExpectClose(Ops().Run("rms_norm", attributes, {x, w})[0], expected, 1e-5);
    if (n > 1) Ops().CheckGradient("rms_norm", attributes, {x, w});
  }
}

TEST(RmsNorm, RowsDoNotDependOnTheBatch) {
  const int64_t n = 200;
  const TestTensor x = Random({300, n}, 1), w = Random({n}, 2);
  const TestTensor all = Ops().Run("rms_norm", {}, {x, w}, {true})[0];
  for (const int64_t r : {0, 7, 150, 299}) {
    TestTensor row = Zeros(DType::kF32, {1, n});
    std::memcpy(row.bytes.data(), x.as<float>() + r * n, row.bytes.size());
    const TestTensor y = Ops().Run("rms_norm", {}, {row, w}, {true})[0];
    EXPECT_EQ(std::memcmp(y.bytes.data(), all.as<float>() + r * n, y.bytes.size()), 0);
  }
}

TEST(LayerNorm, MatchesLoopsAndFiniteDifferences) {
  for (const int64_t n : {3, 64, 130}) {
    const TestTensor x = Random({4, n}, 1), scale = Random({n}, 2), bias = Random({n}, 3);
    std::vector<double> expected;
    for (int64_t r = 0; r < 4; ++r) {
      double mean = 0, variance = 0;
      for (int64_t i = 0; i < n; ++i) mean += x.at(r * n + i) / static_cast<double>(n);
      for (int64_t i = 0; i < n; ++i) {
        variance += std::pow(x.at(r * n + i) - mean, 2) / static_cast<double>(n);
      }
      for (int64_t i = 0; i < n; ++i) {
        expected.push_back((x.at(r * n + i) - mean) / std::sqrt(variance + 1e-5) * scale.at(i) +
                           bias.at(i));
      }
    }
    ExpectClose(Ops().Run("layer_norm", {}, {x, scale, bias})[0], expected, 1e-5);
    Ops().CheckGradient("layer_norm", {}, {x, scale, bias}, 4e-3, 3e-3f);
    Ops().CheckGradient("layer_norm", {}, {x}, 4e-3, 3e-3f);
  }
}

TEST(LayerNorm, LargeMeanLosesNoAccuracy) {
  TestTensor x = Random({2, 256}, 1);
  for (int64_t i = 0; i < x.size(); ++i) x.as<float>()[i] = std::round(x.at(i) * 64) / 64 + 1000;
  TestTensor shifted = x;
  for (int64_t i = 0; i < x.size(); ++i) shifted.as<float>()[i] -= 1000;
  const TestTensor a = Ops().Run("layer_norm", {}, {x})[0];
  const TestTensor b = Ops().Run("layer_norm", {}, {shifted})[0];
  for (int64_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a.at(i), b.at(i), 2e-3);
}

// Enough rows for several blocks of partial sums, the last ones shorter.
TEST(Norms, ParameterGradientsMatchLoopsOverManyRowsForAnyNumberOfThreads) {
  const int threads = omp_get_max_threads();
  for (const auto& [rows, n] :
       {std::pair<int64_t, int64_t>{3, 5}, {67, 33}, {301, 130}, {1000, 17}}) {
    TestTensor x = Random({rows, n}, 1);
    const TestTensor w = Random({n}, 2), b = Random({n}, 3), dy = Random({rows, n}, 4);
    std::vector<double> dscale(n), dbias(n), dweight(n);
    for (int64_t r = 0; r < rows; ++r) {
      double mean = 0, squares = 0, variance = 0;
      for (int64_t i = 0; i < n; ++i) {
        mean += x.at(r * n + i) / static_cast<double>(n);
        squares += std::pow(x.at(r * n + i), 2.0) / static_cast<double>(n);
      }
      for (int64_t i = 0; i < n; ++i) {
        variance += std::pow(x.at(r * n + i) - mean, 2.0) / static_cast<double>(n);
      }
      for (int64_t i = 0; i < n; ++i) {
        const double g = dy.at(r * n + i);
        dscale[i] += g * (x.at(r * n + i) - mean) / std::sqrt(variance + 1e-3);
        dbias[i] += g;
        dweight[i] += g * x.at(r * n + i) / std::sqrt(squares + 1e-3);
      }
    }
    const Attributes attributes = {{"epsilon", 1e-3}};
    const auto run = [&](const char* op, const std::vector<TestTensor>& inputs) {
      return Ops().RunGradient(op, attributes, inputs, Ops().Run(op, attributes, inputs), {dy});
    };
    std::vector<TestTensor> layer, rms;
    for (const int count : {1, 2, 3}) {
      omp_set_num_threads(count);
      const std::vector<TestTensor> l = run("layer_norm", {x, w, b}), m = run("rms_norm", {x, w});
      ExpectNear(l[1].values(), dscale, 1e-5, "dscale");
      ExpectNear(l[2].values(), dbias, 1e-5, "dbias");
      ExpectNear(m[1].values(), dweight, 1e-5, "dweight");
      if (count == 1) {
        layer = l;
        rms = m;
      }
      for (size_t i = 0; i < l.size(); ++i) EXPECT_EQ(l[i].bytes, layer[i].bytes) << i;
      for (size_t i = 0; i < m.size(); ++i) EXPECT_EQ(m[i].bytes, rms[i].bytes) << i;
    }
    omp_set_num_threads(threads);
  }
}

TEST(Norms, EmptyRowsDoNotCrash) {
  const std::vector<TestTensor> inputs = {Random({0, 8}, 1), Random({8}, 2)};
  for (const char* op : {"rms_norm", "layer_norm"}) {
    const std::vector<TestTensor> y = Ops().Run(op, {}, inputs);
    EXPECT_EQ(y[0].size(), 0);
    ExpectClose(Ops().RunGradient(op, {}, inputs, y, y)[1], std::vector<double>(8, 0), 0);
  }
}

TEST(Softmax, MatchesLoopsOnEveryAxis) {
  const TestTensor x = Random({3, 20, 5}, 1);
  const int64_t strides[] = {100, 5, 1}, sizes[] = {3, 20, 5};
  for (int axis = 0; axis < 3; ++axis) {
    std::vector<double> expected(x.size());
    for (int64_t i = 0; i < x.size(); ++i) {
      const int64_t start = i - i / strides[axis] % sizes[axis] * strides[axis];
      double sum = 0;
      for (int64_t j = 0; j < sizes[axis]; ++j) sum += std::exp(x.at(start + j * strides[axis]));
      expected[i] = std::exp(x.at(i)) / sum;
    }
    for (const int64_t given : {axis, axis - 3}) {
      ExpectClose(Ops().Run("softmax", {{"axis", given}}, {x})[0], expected, 1e-6);
    }
    Ops().CheckGradient("softmax", {{"axis", int64_t{axis}}}, {x}, 4e-3);
  }
}

TEST(Softmax, LargeLogitsDoNotOverflowAndMaskedOnesVanish) {
  const TestTensor x = F32({1, 4}, {1000, 999, -INFINITY, -1000});
  const double e = std::exp(-1.0);
  ExpectClose(Ops().Run("softmax", {}, {x})[0], {1 / (1 + e), e / (1 + e), 0, 0}, 1e-6);
}

TEST(Softmax, ErrorNamesTheAxis) {
  EXPECT_EQ(Ops().InferError("softmax", {{"axis", int64_t{2}}}, {Random({2, 3}, 1)}),
            "softmax: attribute 'axis' is 2, expected a value from -2 to 1 because the input has 2 "
            "dimensions");
}

// batch_norm_stats, then batch_norm.
std::vector<TestTensor> BatchNormInputs(const TestTensor& x) {
  const int64_t c = x.type.dims[1];
  const TestTensor stats = Ops().Run("batch_norm_stats", {}, {x})[0];
  TestTensor variance = Random({c}, 5);
  for (int64_t i = 0; i < c; ++i) variance.as<float>()[i] += 2;
  return {x, Random({c}, 2), Random({c}, 3), Random({c}, 4), variance, stats};
}

TEST(BatchNorm, TrainingNormalizesAndUpdatesRunningStatistics) {
  const int64_t n = 4, c = 3, spatial = 6, count = n * spatial;
  const TestTensor x = Random({n, c, 2, 3}, 1);
  std::vector<TestTensor> inputs = BatchNormInputs(x), outputs, others;
  const std::vector<TestTensor> before = inputs;
  std::vector<TestTensor> biased = inputs;
  ASSERT_TRUE(Ops().TryRun("batch_norm", {{"momentum", 0.25}}, &inputs, &outputs).ok());
  const Attributes as_keras = {{"momentum", 0.25}, {"biased_running_var", true}};
  ASSERT_TRUE(Ops().TryRun("batch_norm", as_keras, &biased, &others).ok());
  EXPECT_EQ(others[0].values(), outputs[0].values());
  for (int64_t ch = 0; ch < c; ++ch) {
    double mean = 0, variance = 0;
    const auto at = [&](int64_t i) { return (i / spatial * c + ch) * spatial + i % spatial; };
    for (int64_t i = 0; i < count; ++i) mean += x.at(at(i)) / static_cast<double>(count);
    for (int64_t i = 0; i < count; ++i) {
      variance += std::pow(x.at(at(i)) - mean, 2) / static_cast<double>(count);
    }
    for (int64_t i = 0; i < count; ++i) {
      EXPECT_NEAR(
          outputs[0].at(at(i)),
          (x.at(at(i)) - mean) / std::sqrt(variance + 1e-5) * before[1].at(ch) + before[2].at(ch),
          1e-5);
    }
    EXPECT_NEAR(inputs[3].at(ch), 0.75 * before[3].at(ch) + 0.25 * mean, 1e-6);
    EXPECT_NEAR(inputs[4].at(ch), 0.75 * before[4].at(ch) + 0.25 * variance * count / (count - 1.0),
                1e-6);
    EXPECT_NEAR(biased[4].at(ch), 0.75 * before[4].at(ch) + 0.25 * variance, 1e-6);
  }
}

TEST(BatchNorm, EvaluationUsesRunningStatisticsUnchanged) {
  std::vector<TestTensor> inputs = BatchNormInputs(Random({2, 3, 4}, 1)), outputs;
  const std::vector<TestTensor> before = inputs;
  inputs.pop_back();
  ASSERT_TRUE(Ops().TryRun("batch_norm", {}, &inputs, &outputs, {.training = false}).ok());
  for (int64_t i = 0; i < 24; ++i) {
    const int64_t ch = i / 4 % 3;
    EXPECT_NEAR(outputs[0].at(i),
                (inputs[0].at(i) - inputs[3].at(ch)) / std::sqrt(inputs[4].at(ch) + 1e-5) *
                        inputs[1].at(ch) +
                    inputs[2].at(ch),
                1e-5);
  }
  EXPECT_EQ(inputs[3].bytes, before[3].bytes);
  EXPECT_EQ(Ops().TryRun("batch_norm", {}, &inputs, &outputs).error,
            "batch_norm: input 'stats' is missing, which training needs; expected the output of "
            "batch_norm_stats");
}

TEST(BatchNorm, GradientsMatchFiniteDifferences) {
  const TestTensor x = Random({3, 2, 5}, 1);
  Ops().CheckGradient("batch_norm_stats", {}, {x});
  Ops().CheckGradient("batch_norm", {}, BatchNormInputs(x), 5e-3, 3e-3f);
}

// Planes that are split, planes of one piece, and small planes, which are processed by columns; few
// images, and more than fit into one piece.
TEST(BatchNorm, SumsMatchLoopsInEveryShapeForAnyNumberOfThreads) {
  const int threads = omp_get_max_threads();
  for (const Dims& dims : {Dims{2, 3, 40000}, Dims{3, 70, 7, 7}, Dims{3, 5, 33}, Dims{2, 300, 3, 3},
                           Dims{700, 6}, Dims{1, 1, 1}}) {
    const int64_t channels = dims[1];
    int64_t spatial = 1;
    for (size_t d = 2; d < dims.size(); ++d) spatial *= dims[d];
    const double count = static_cast<double>(dims[0] * spatial);
    const TestTensor x = Random(dims, 1), dy = Random(dims, 2);
    std::vector<TestTensor> first;
    for (const int number : {1, 2, 3}) {
      omp_set_num_threads(number);
      const std::vector<TestTensor> inputs = BatchNormInputs(x);
      const TestTensor& stats = inputs[5];
      const std::vector<TestTensor> y = Ops().Run("batch_norm", {}, inputs);
      std::vector<TestTensor> all = Ops().RunGradient("batch_norm", {}, inputs, y, {dy});
      all.push_back(y[0]);
      all.push_back(stats);
      const TestTensor dx = Ops().RunGradient("batch_norm_stats", {}, {x}, {}, {all[3]})[0];
      all.push_back(dx);
      if (number == 1) first = all;
      for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i].bytes, first[i].bytes) << i;
      for (int64_t c = 0; c < channels; ++c) {
        double sum = 0, squares = 0, plain = 0, along = 0;
        const auto at = [&](int64_t i) {
          return (i / spatial * channels + c) * spatial + i % spatial;
        };
        const int64_t elements = dims[0] * spatial;
        for (int64_t i = 0; i < elements; ++i) {
          sum += x.at(at(i));
          squares += std::pow(x.at(at(i)), 2.0);
        }
        const double mean = sum / count, variance = squares / count - mean * mean;
        const double inverse = 1 / std::sqrt(variance + 1e-5), scale = inputs[1].at(c);
        for (int64_t i = 0; i < elements; ++i) {
          plain += dy.at(at(i));
          along += dy.at(at(i)) * (x.at(at(i)) - mean);
        }
        ASSERT_NEAR(stats.at(c), mean, 1e-6);
        ASSERT_NEAR(stats.at(channels + c), squares / count, 1e-6);
        if (elements == 1) continue;  // epsilon alone is the variance
        ASSERT_NEAR(all[1].at(c), along * inverse, 1e-6 * count);
        ASSERT_NEAR(all[2].at(c), plain, 1e-6 * std::sqrt(count) + 1e-6 * std::abs(plain));
        for (int64_t i = 0; i < elements; ++i) {
          const double h = (x.at(at(i)) - mean) * inverse, g = dy.at(at(i));
          ASSERT_NEAR(y[0].at(at(i)), h * scale + inputs[2].at(c), 1e-5);
          ASSERT_NEAR(static_cast<double>(all[0].at(at(i))) + dx.at(at(i)),
                      scale * inverse * (g - (plain + h * along * inverse) / count), 1e-5);
        }
      }
    }
  }
  omp_set_num_threads(threads);
}

// mean^2 uses the stored mean, so only the rounding of the mean of squares affects the variance.
TEST(BatchNorm, VarianceIgnoresTheRoundingOfTheMean) {
  const int64_t n = 4, channels = 64, spatial = 100;
  TestTensor x = Random({n, channels, spatial}, 1);
  for (int64_t i = 0; i < x.size(); ++i) {
    x.as<float>()[i] += 5 + static_cast<float>(i / spatial % channels) * 0.01f;
  }
  const TestTensor stats = Ops().Run("batch_norm_stats", {}, {x})[0];
  for (int64_t c = 0; c < channels; ++c) {
    double mean = 0, variance = 0;
    const auto at = [&](int64_t i) { return (i / spatial * channels + c) * spatial + i % spatial; };
    for (int64_t i = 0; i < n * spatial; ++i) mean += x.at(at(i)) / (n * spatial);
    for (int64_t i = 0; i < n * spatial; ++i) {
      variance += std::pow(x.at(at(i)) - mean, 2.0) / (n * spatial);
    }
    const double stored = stats.at(c), squares = stats.at(channels + c);
    EXPECT_NEAR(squares - stored * stored, variance, squares * 0x1p-24 * 1.001) << c;
  }
}

}  // namespace
}  // namespace espalier
