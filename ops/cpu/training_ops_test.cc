// Dropout, losses, metrics, gradient clipping and optimisers.
#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "ops/cpu/testing/op_runner.h"
#include "ops/kernel/philox.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
const OpRunner& Ops() {
  static const OpRunner runner;
  return runner;
}

using Values = std::vector<double>;

// Values of one output.
Values RunOp(const std::string& op, const Attributes& attributes,
             const std::vector<TestTensor>& inputs, size_t output = 0,
             const RunOptions& options = {}) {
  const std::vector<TestTensor> outputs = Ops().Run(op, attributes, inputs, options);
  return output < outputs.size() ? outputs[output].values() : Values();
}

TEST(Dropout, KeepsTheRightShareAndScalesIt) {
  const auto run =
      [input = Tensor(DType::kF32, {100003}, Values(100003, 3.0))](const RunOptions& options) {
        return RunOp("dropout", {{"rate", 0.25}}, {input}, 0, options);
      };
  const Values y = run({.seed = 7, .node_key = 11, .step = 5});
  int64_t kept = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    ASSERT_TRUE(y[i] == 0 || y[i] == 4.0) << y[i];
    kept += y[i] != 0;
    // The definition, element by element.
    ASSERT_EQ(y[i] != 0, PhiloxUniform(7, 11, 5, i) >= 0.25f) << i;
  }
  EXPECT_NEAR(static_cast<double>(kept) / 100003, 0.75, 0.01);
  EXPECT_NE(y, run({.seed = 7, .node_key = 11, .step = 6}));
  EXPECT_NE(y, run({.seed = 7, .node_key = 12, .step = 5}));
  EXPECT_NE(y, run({.seed = 8, .node_key = 11, .step = 5}));
  EXPECT_EQ(run({.training = false}), Values(100003, 3.0));
}

TEST(Dropout, ShardsReproduceTheWholeMask) {
  const Dims global = {6, 10, 8};
  const Attributes attributes = {{"rate", 0.5}};
  const TestTensor whole = RandomIn(DType::kF32, global, 1, -2, 2);
  const Values want = RunOp("dropout", attributes, {whole});
  for (size_t axis = 0; axis < 3; ++axis) {
    for (int64_t parts : {int64_t{2}, global[axis]}) {
      TensorSpec shard = TensorSpec::Whole(whole.type);
      shard.dims[axis] /= parts;
      for (int64_t part = 0; part < parts; ++part) {
        shard.offset[axis] = part * shard.dims[axis];
        const auto whole_index = [&](int64_t i) {
          Dims at(3);
          for (size_t d = 3; d-- > 0;) {
            at[d] = i % shard.dims[d] + shard.offset[d];
            i /= shard.dims[d];
          }
          return (at[0] * global[1] + at[1]) * global[2] + at[2];
        };
        std::vector<TestTensor> x = {Zeros(DType::kF32, shard.dims)}, y = x;
        for (int64_t i = 0; i < x[0].size(); ++i) x[0].set(i, whole.at(whole_index(i)));
        const RunOptions options{.specs = {shard}, .output_specs = {shard}};
        ASSERT_TRUE(Ops().RunKernel("dropout", attributes, &x, &y, options).ok());
        for (int64_t i = 0; i < x[0].size(); ++i) {
          ASSERT_EQ(y[0].at(i), want[whole_index(i)]) << "axis " << axis << " part " << part;
        }
      }
    }
  }
}

TEST(Dropout, GradientHasTheSameMask) {
  Ops().CheckGradient("dropout", {{"rate", 0.4}}, {Random({5, 9}, 1)});
}

TEST(Dropout, RateMustBeAProbabilityBelowOne) {
  EXPECT_THAT(Ops().RunError("dropout", {{"rate", 1.0}}, {Random({2}, 1)}), HasSubstr("[0, 1)"));
}

TEST(RandomLike, UniformNumbersAreThoseOfTheirElements) {
  const TestTensor like = Zeros(DType::kBool, {1003});
  const Values y = RunOp("random_like", {{"a", -1.0}, {"b", 3.0}}, {like}, 0,
                         {.seed = 7, .node_key = 11, .step = 5});
  ASSERT_EQ(y.size(), 1003u);
  for (size_t i = 0; i < y.size(); ++i) {
    ASSERT_EQ(static_cast<float>(y[i]), -1 + 4 * PhiloxUniform(7, 11, 5, i)) << i;
  }
}

TEST(RandomLike, NormalNumbersHaveTheirMoments) {
  constexpr int64_t kCount = 200'000;
  const TestTensor like = Zeros(DType::kBool, {kCount});
  const auto run = [&](int64_t step, bool training) {
    return RunOp("random_like", {{"distribution", std::string("normal")}, {"a", 2.0}, {"b", 0.5}},
                 {like}, 0, {.training = training, .seed = 3, .node_key = 1, .step = step});
  };
  const Values y = run(1, true);
  double sum = 0, squares = 0, cubes = 0, fourths = 0, neighbours = 0, before = 0;
  for (double value : y) {
    const double z = (value - 2) / 0.5;
    sum += z;
    squares += z * z;
    cubes += z * z * z;
    fourths += z * z * z * z;
    neighbours += z * before;
    before = z;
  }
  // Within five standard deviations of the estimates.
  EXPECT_NEAR(sum / kCount, 0, 5 / std::sqrt(kCount));
  EXPECT_NEAR(squares / kCount, 1, 5 * std::sqrt(2.0 / kCount));
  EXPECT_NEAR(cubes / kCount, 0, 5 * std::sqrt(15.0 / kCount));
  EXPECT_NEAR(fourths / kCount, 3, 5 * std::sqrt(96.0 / kCount));
  EXPECT_NEAR(neighbours / kCount, 0, 5 / std::sqrt(kCount));
  EXPECT_NE(run(2, true), y);
  EXPECT_EQ(run(1, false), y);  // not only in training
}

TEST(RandomLike, DistributionMustBeKnown) {
  EXPECT_THAT(
      Ops().RunError("random_like", {{"distribution", std::string("cauchy")}}, {Random({2}, 1)}),
      HasSubstr("uniform or normal"));
}

double CrossEntropy(const TestTensor& logits, const TestTensor& labels, int64_t classes) {
  double loss = 0;
  const int64_t rows = labels.size();
  for (int64_t r = 0; r < rows; ++r) {
    if (labels.value(r) < 0) continue;
    double sum = 0;
    for (int64_t c = 0; c < classes; ++c) sum += std::exp(logits.value(r * classes + c));
    loss += std::log(sum) - logits.value(r * classes + static_cast<int64_t>(labels.value(r)));
  }
  return loss / static_cast<double>(rows);
}

TestTensor Labels(const Dims& dims, int64_t classes, int seed) {
  return RandomIn(DType::kI32, dims, seed, 0, static_cast<double>(classes) - 0.001);
}

const char kCrossEntropy[] = "sparse_categorical_crossentropy";

TEST(CrossEntropy, EqualsTheFormulaForAnyNumberOfClasses) {
  for (int64_t classes : {1, 2, 10, 256, 1500}) {
    std::vector<TestTensor> inputs = {RandomIn(DType::kF32, {7, 30, classes}, 1, -5, 5),
                                      Labels({7, 30}, classes, 2)};
    inputs[1].set(3, -100);
    const double want = CrossEntropy(inputs[0], inputs[1], classes);
    ExpectNear(RunOp(kCrossEntropy, {}, inputs), {want}, 1e-6, "loss");
  }
}

TEST(CrossEntropy, GradientEqualsFiniteDifferences) {
  TestTensor labels = Labels({3, 4}, 5, 2);
  labels.set(6, -100);
  Ops().CheckGradient(kCrossEntropy, {}, {RandomIn(DType::kF32, {3, 4, 5}, 1, -2, 2), labels});
}

TEST(CrossEntropy, LargeLogitsDoNotOverflowAndNanIsReported) {
  std::vector<TestTensor> inputs = {
      Tensor(DType::kF32, {2, 3},
             {1e4, -1e4, 0, -3e4, 2e4, -std::numeric_limits<double>::infinity()}),
      Tensor(DType::kI64, {2}, {1, 1})};
  EXPECT_EQ(RunOp(kCrossEntropy, {}, inputs), (Values{1e4}));
  inputs[0].set(2, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(RunOp(kCrossEntropy, {}, inputs)[0]));
}

TEST(CrossEntropy, LabelOutOfRangeIsNamedWithItsPlaceInTheWholeBatch) {
  for (const std::string op : {"sparse_categorical_crossentropy", "accuracy"}) {
    std::vector<TestTensor> inputs = {Random({2, 3, 5}, 1), Labels({2, 3}, 5, 2)};
    inputs[1].set(4, 5);
    TensorSpec shard = TensorSpec::Whole(inputs[1].type);
    shard.offset = {6, 0};
    shard.global = {8, 3};
    EXPECT_EQ(Ops().RunError(op, {}, inputs, {.specs = {{}, shard}}),
              op + ": labels[7, 1] is 5, accepted are 0 to 4, or -100 to ignore the row");
  }
}

TEST(CrossEntropy, ShapesThatDoNotFitAreNamed) {
  EXPECT_THAT(Ops().RunError(kCrossEntropy, {}, {Random({4, 5}, 1), Labels({3}, 5, 2)}),
              HasSubstr("input 'labels' has shape [3], expected [4]"));
}

TEST(Losses, PartsOverABatchAddUpToTheMean) {
  for (const std::string op :
       {"sparse_categorical_crossentropy", "accuracy", "mean_squared_error"}) {
    const std::vector<TestTensor> whole = {
        Random({8, 6}, 1), op == "mean_squared_error" ? Random({8, 6}, 2) : Labels({8}, 6, 2)};
    NodeTypes types;
    ASSERT_TRUE(Ops().Infer(op, whole, &types).ok());
    double sum = 0;
    for (int64_t part = 0; part < 4; ++part) {
      std::vector<TestTensor> x, y = {Zeros(DType::kF32, {})};
      for (const TestTensor& input : whole) {
        Dims dims = input.type.dims;
        dims[0] = 2;
        x.push_back(Zeros(input.type.dtype, dims));
        const int64_t n = x.back().size();
        for (int64_t i = 0; i < n; ++i) x.back().set(i, input.value(part * n + i));
      }
      ASSERT_TRUE(Ops().RunKernel(op, types.attributes, &x, &y, {}).ok());
      sum += y[0].at(0);
    }
    ExpectNear({sum}, RunOp(op, {}, whole), 1e-6, op);
  }
}

TEST(MeanSquaredError, EqualsTheFormulaAndItsGradient) {
  EXPECT_EQ(RunOp("mean_squared_error", {}, {F32({2, 2}, {1, 2, 3, 4}), F32({2, 2}, {1, 0, 0, 4})}),
            (Values{13.0 / 4}));
  Ops().CheckGradient("mean_squared_error", {}, {Random({3, 4}, 1), Random({3, 4}, 2)});
}

TEST(Accuracy, CountsTheFirstOfTheLargest) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const TestTensor logits =
      F32({5, 3}, {1, 2, 0, /**/ 2, 2, 1, /**/ 2, 2, 1, /**/ nan, nan, nan, /**/ 0, 1, 2});
  ExpectNear(RunOp("accuracy", {}, {logits, Tensor(DType::kI64, {5}, {1, 0, 1, 0, 2})}), {3.0 / 5},
             1e-7, "right: rows 0, 1, 4");
}

TEST(ClipScale, ScalesDownToTheNormAndKeepsNan) {
  const auto run = [](float a, float b, size_t output) {
    return RunOp("clip_scale", {{"max_norm", 2.0}}, {F32({}, {a}), F32({}, {b})}, output)[0];
  };
  EXPECT_NEAR(run(9, 16, 0), 2.0 / 5, 1e-6);
  EXPECT_EQ(run(9, 16, 1), 5);
  EXPECT_EQ(run(0.25, 0.5, 0), 1);  // below the limit
  EXPECT_TRUE(std::isnan(run(std::numeric_limits<float>::quiet_NaN(), 1, 0)));
}

// Runs five steps of an update and a double-precision transcription of PyTorch's loop beside it.
template <typename Reference>
void CheckUpdate(const std::string& op, const Attributes& attributes, size_t buffers, bool scaled,
                 Reference reference) {
  const int64_t n = 1037;
  std::vector<TestTensor> inputs = {RandomIn(DType::kF32, {n}, 1, -2, 2), TestTensor(),
                                    scaled ? Tensor(DType::kF32, {}, {0.5}) : TestTensor(),
                                    Tensor(DType::kF32, {2}, {0, 0})};
  for (size_t b = 0; b < buffers; ++b) inputs.push_back(Zeros(DType::kF32, {n}));
  std::vector<Values> want = {inputs[0].values(), Values(n, 0.0), Values(n, 0.0)};
  for (int step = 1; step <= 5; ++step) {
    const double lr = 0.01 * step;
    inputs[1] = RandomIn(DType::kF32, {n}, 10 + step, -2, 2);
    inputs[3] = Tensor(DType::kF32, {2}, {lr, static_cast<double>(step)});
    std::vector<TestTensor> y;
    const KernelStatus status = Ops().TryRun(op, attributes, &inputs, &y);
    ASSERT_TRUE(status.ok()) << status.error;
    for (int64_t i = 0; i < n; ++i) {
      reference(inputs[1].value(i) * (scaled ? 0.5 : 1.0), lr, step, &want[0][i], &want[1][i],
                &want[2][i]);
    }
    ExpectNear(inputs[0].values(), want[0], 3e-6, op + " in place");
    ExpectNear(y[0].values(), want[0], 3e-6, op + " output");
  }
  for (size_t b = 0; b < buffers; ++b) {
    ExpectNear(inputs[4 + b].values(), want[1 + b], 3e-6, op + " buffer");
  }
}

TEST(Sgd, FollowsPyTorchForFiveSteps) {
  for (double momentum : {0.0, 0.9}) {
    for (double decay : {0.0, 0.1}) {
      CheckUpdate("sgd_update", {{"momentum", momentum}, {"weight_decay", decay}}, momentum > 0,
                  decay > 0,
                  [&](double g, double lr, int step, double* p, double* buffer, double*) {
                    g += decay * *p;
                    if (momentum > 0) {
                      *buffer = step == 1 ? g : momentum * *buffer + g;
                      g = *buffer;
                    }
                    *p -= lr * g;
                  });
    }
  }
}

TEST(Sgd, FirstStepIgnoresWhatTheBufferHeld) {
  const TestTensor buffer = F32({1}, {std::numeric_limits<float>::quiet_NaN()});
  ExpectNear(RunOp("sgd_update", {{"momentum", 0.9}},
                   {F32({1}, {1}), F32({1}, {2}), TestTensor(), F32({2}, {0.1f, 1}), buffer}),
             {0.8}, 1e-6, "parameter");
}

TEST(Sgd, MomentumWithoutABufferIsRefused) {
  EXPECT_THAT(Ops().RunError("sgd_update", {{"momentum", 0.9}},
                             {F32({1}, {1}), F32({1}, {2}), TestTensor(), F32({2}, {0.1f, 1})}),
              HasSubstr("momentum buffer"));
}

TEST(Adam, FollowsPyTorchForFiveSteps) {
  for (bool decoupled : {false, true}) {
    for (double decay : {0.0, 0.1}) {
      CheckUpdate("adam_update", {{"weight_decay", decay}, {"decoupled", decoupled}}, 2, decay > 0,
                  [&](double g, double lr, int step, double* p, double* m, double* v) {
                    if (decoupled) {
                      *p *= 1 - lr * decay;
                    } else {
                      g += decay * *p;
                    }
                    *m = 0.9 * *m + 0.1 * g;
                    *v = 0.999 * *v + 0.001 * g * g;
                    const double c1 = 1 - std::pow(0.9, step), c2 = 1 - std::pow(0.999, step);
                    *p -= lr / c1 * *m / (std::sqrt(*v) / std::sqrt(c2) + 1e-8);
                  });
    }
  }
}

}  // namespace
}  // namespace espalier
