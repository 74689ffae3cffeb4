// Dropout, losses, metrics, gradient clipping and optimisers.
#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "ops/cpu/op_test_util.h"
#include "ops/kernel/philox.h"

namespace espalier::testing {
namespace {

using ::testing::HasSubstr;
using Values = std::vector<double>;

TEST(Dropout, KeepsTheRightShareAndScalesIt) {
  TestOp op("dropout", {{"rate", 0.25}});
  std::vector<TestTensor> inputs = {Tensor(DType::kF32, {100003}, Values(100003, 3.0))};
  const Values y = ValuesOf(op.Forward(inputs, {.step = 5}));
  int64_t kept = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    ASSERT_TRUE(y[i] == 0 || y[i] == 4.0) << y[i];
    kept += y[i] != 0;
    // The definition, element by element.
    ASSERT_EQ(y[i] != 0, PhiloxUniform(7, 11, 5, i) >= 0.25f) << i;
  }
  EXPECT_NEAR(static_cast<double>(kept) / 100003, 0.75, 0.01);
  EXPECT_NE(y, ValuesOf(op.Forward(inputs, {.step = 6})));
  EXPECT_NE(y, ValuesOf(op.Forward(inputs, {.node_key = 12, .step = 5})));
  EXPECT_EQ(ValuesOf(op.Forward(inputs, {.training = false})), inputs[0].values());
}

TEST(Dropout, ShardsMakeTheMaskOfTheWhole) {
  const Dims global = {6, 10, 8};
  TestOp op("dropout", {{"rate", 0.5}});
  std::vector<TestTensor> inputs = {RandomTensor(DType::kF32, global, 1)};
  const Values want = ValuesOf(op.Forward(inputs));
  for (size_t axis = 0; axis < 3; ++axis) {
    for (int64_t parts : {2, static_cast<int>(global[axis])}) {
      if (global[axis] % parts != 0) continue;
      for (int64_t part = 0; part < parts; ++part) {
        TestTensor x;
        x.spec = inputs[0].spec;
        x.spec.dims[axis] /= parts;
        x.spec.offset[axis] = part * x.spec.dims[axis];
        x.bytes.resize(x.spec.bytes() + 64);
        const auto whole_index = [&](int64_t i) {
          Dims at(3);
          for (size_t d = 3; d-- > 0;) {
            at[d] = i % x.spec.dims[d] + x.spec.offset[d];
            i /= x.spec.dims[d];
          }
          return (at[0] * global[1] + at[1]) * global[2] + at[2];
        };
        for (int64_t i = 0; i < x.spec.num_elements(); ++i) x.set(i, inputs[0].at(whole_index(i)));
        std::vector<TestTensor> xs = {x}, ys = {x};
        ASSERT_TRUE(op.Run("dropout", xs, ys).ok());
        for (int64_t i = 0; i < x.spec.num_elements(); ++i) {
          ASSERT_EQ(ys[0].at(i), want[whole_index(i)]) << "axis " << axis << " part " << part;
        }
      }
    }
  }
}

TEST(Dropout, GradientHasTheSameMask) {
  CheckGradient("dropout", {{"rate", 0.4}}, {RandomTensor(DType::kF32, {5, 9}, 1)}, 4e-3, {.step = 3});
}

TEST(Dropout, RateMustBeAProbabilityBelowOne) {
  TestOp op("dropout", {{"rate", 1.0}});
  std::vector<TestTensor> inputs = {RandomTensor(DType::kF32, {2}, 1)};
  EXPECT_THAT(std::string(op.Forward(inputs).status().message()), HasSubstr("[0, 1)"));
}

double CrossEntropy(const TestTensor& logits, const TestTensor& labels, int64_t classes) {
  double loss = 0;
  const int64_t rows = labels.spec.num_elements();
  for (int64_t r = 0; r < rows; ++r) {
    if (labels.at(r) < 0) continue;
    double sum = 0;
    for (int64_t c = 0; c < classes; ++c) sum += std::exp(logits.at(r * classes + c));
    loss += std::log(sum) - logits.at(r * classes + static_cast<int64_t>(labels.at(r)));
  }
  return loss / static_cast<double>(rows);
}

TestTensor Labels(Dims dims, int64_t classes, uint64_t seed) {
  TestTensor labels = RandomTensor(DType::kI32, std::move(dims), seed, 0,
                                   static_cast<double>(classes) - 0.001);
  return labels;
}

TEST(CrossEntropy, EqualsTheFormulaForAnyNumberOfClasses) {
  for (int64_t classes : {1, 2, 10, 256, 1500}) {
    TestOp op("sparse_categorical_crossentropy");
    std::vector<TestTensor> inputs = {RandomTensor(DType::kF32, {7, 30, classes}, 1, -5, 5),
                                      Labels({7, 30}, classes, 2)};
    inputs[1].set(3, -100);
    const double want = CrossEntropy(inputs[0], inputs[1], classes);
    ExpectNear(ValuesOf(op.Forward(inputs)), {want}, 1e-6, "loss");
  }
}

TEST(CrossEntropy, GradientEqualsFiniteDifferences) {
  TestTensor labels = Labels({3, 4}, 5, 2);
  labels.set(6, -100);
  CheckGradient("sparse_categorical_crossentropy", {},
                {RandomTensor(DType::kF32, {3, 4, 5}, 1), labels});
}

TEST(CrossEntropy, LargeLogitsDoNotOverflowAndNanIsReported) {
  TestOp op("sparse_categorical_crossentropy");
  std::vector<TestTensor> inputs = {
      Tensor(DType::kF32, {2, 3}, {1e4, -1e4, 0, -3e4, 2e4, -std::numeric_limits<double>::infinity()}),
      Tensor(DType::kI64, {2}, {1, 1})};
  EXPECT_EQ(ValuesOf(op.Forward(inputs)), (Values{1e4}));
  inputs[0].set(2, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(ValuesOf(op.Forward(inputs))[0]));
}

TEST(CrossEntropy, LabelOutOfRangeIsNamedWithItsPlaceInTheWholeBatch) {
  for (const char* name : {"sparse_categorical_crossentropy", "accuracy"}) {
    TestOp op(name);
    std::vector<TestTensor> inputs = {RandomTensor(DType::kF32, {2, 3, 5}, 1), Labels({2, 3}, 5, 2)};
    inputs[1].set(4, 5);
    inputs[1].spec.offset = {6, 0};
    inputs[1].spec.global = {8, 3};
    EXPECT_EQ(op.Forward(inputs).status().message(),
              std::string(name) + ": labels[7, 1] is 5, accepted are 0 to 4, or -100 to ignore the row");
  }
}

TEST(CrossEntropy, ShapesThatDoNotFitAreNamed) {
  TestOp op("sparse_categorical_crossentropy");
  std::vector<TestTensor> inputs = {RandomTensor(DType::kF32, {4, 5}, 1), Labels({3}, 5, 2)};
  EXPECT_THAT(std::string(op.Forward(inputs).status().message()),
              HasSubstr("input 'labels' has shape [3], expected [4]"));
}

TEST(Losses, PartsOverABatchAddUpToTheMean) {
  for (const char* name : {"sparse_categorical_crossentropy", "accuracy", "mean_squared_error"}) {
    const bool regression = std::string(name) == "mean_squared_error";
    TestOp op(name);
    std::vector<TestTensor> whole = {RandomTensor(DType::kF32, {8, 6}, 1),
                                     regression ? RandomTensor(DType::kF32, {8, 6}, 2)
                                                : Labels({8}, 6, 2)};
    const Values want = ValuesOf(op.Forward(whole));
    double sum = 0;
    for (int64_t part = 0; part < 4; ++part) {
      std::vector<TestTensor> x;
      for (const TestTensor& input : whole) {
        TensorType type = input.spec.type();
        type.dims[0] = 2;
        x.emplace_back(type);
        const int64_t n = type.num_elements();
        for (int64_t i = 0; i < n; ++i) x.back().set(i, input.at(part * n + i));
      }
      std::vector<TestTensor> y = {TestTensor({DType::kF32, {}})};
      ASSERT_TRUE(op.Run(name, x, y).ok());
      sum += y[0].at(0);
    }
    ExpectNear({sum}, want, 1e-6, name);
  }
}

TEST(MeanSquaredError, EqualsTheFormulaAndItsGradient) {
  TestOp op("mean_squared_error");
  std::vector<TestTensor> inputs = {Tensor(DType::kF32, {2, 2}, {1, 2, 3, 4}),
                                    Tensor(DType::kF32, {2, 2}, {1, 0, 0, 4})};
  EXPECT_EQ(ValuesOf(op.Forward(inputs)), (Values{13.0 / 4}));
  CheckGradient("mean_squared_error", {},
                {RandomTensor(DType::kF32, {3, 4}, 1), RandomTensor(DType::kF32, {3, 4}, 2)});
}

TEST(Accuracy, CountsTheFirstOfTheLargest) {
  TestOp op("accuracy");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<TestTensor> inputs = {
      Tensor(DType::kF32, {5, 3}, {1, 2, 0, /**/ 2, 2, 1, /**/ 2, 2, 1, /**/ nan, nan, nan, /**/ 0, 1, 2}),
      Tensor(DType::kI64, {5}, {1, 0, 1, 0, 2})};
  ExpectNear(ValuesOf(op.Forward(inputs)), {3.0 / 5}, 1e-7, "right: rows 0, 1, 4");
}

TEST(ClipScale, ScalesDownToTheNormAndKeepsNan) {
  TestOp op("clip_scale", {{"max_norm", 2.0}});
  std::vector<TestTensor> inputs = {Tensor(DType::kF32, {}, {9}), Tensor(DType::kF32, {}, {16})};
  absl::StatusOr<std::vector<TestTensor>> out = op.Forward(inputs);
  ExpectNear(ValuesOf(out, 0), {2.0 / 5}, 1e-6, "scale");
  EXPECT_EQ(ValuesOf(out, 1), (Values{5}));
  inputs[1].set(0, -8.5);  // sum 0.5: below the limit
  EXPECT_EQ(ValuesOf(op.Forward(inputs), 0), (Values{1}));
  inputs[0].set(0, std::numeric_limits<double>::quiet_NaN());
  EXPECT_TRUE(std::isnan(ValuesOf(op.Forward(inputs), 0)[0]));
}

// Runs five steps of an update and a double-precision transcription of PyTorch's loop beside it.
template <typename Reference>
void CheckUpdate(const std::string& op, const Attributes& attributes, size_t buffers, bool scaled,
                 Reference reference) {
  const int64_t n = 1037;
  TestOp node(op, attributes);
  std::vector<TestTensor> inputs = {RandomTensor(DType::kF32, {n}, 1), TestTensor(),
                                    scaled ? Tensor(DType::kF32, {}, {0.5}) : TestTensor(),
                                    Tensor(DType::kF32, {2}, {0, 0})};
  for (size_t b = 0; b < buffers; ++b) inputs.emplace_back(TensorType{DType::kF32, {n}});
  std::vector<Values> want = {inputs[0].values(), Values(n, 0.0), Values(n, 0.0)};
  for (int step = 1; step <= 5; ++step) {
    const double lr = 0.01 * step;
    inputs[1] = RandomTensor(DType::kF32, {n}, 10 + step);
    inputs[3] = Tensor(DType::kF32, {2}, {lr, static_cast<double>(step)});
    absl::StatusOr<std::vector<TestTensor>> y = node.Forward(inputs);
    for (int64_t i = 0; i < n; ++i) {
      reference(inputs[1].at(i) * (scaled ? 0.5 : 1.0), lr, step, &want[0][i], &want[1][i], &want[2][i]);
    }
    ExpectNear(inputs[0].values(), want[0], 3e-6, op + " in place");
    ExpectNear(ValuesOf(y), want[0], 3e-6, op + " output");
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
  TestOp node("sgd_update", {{"momentum", 0.9}});
  std::vector<TestTensor> inputs = {
      Tensor(DType::kF32, {1}, {1}), Tensor(DType::kF32, {1}, {2}), TestTensor(),
      Tensor(DType::kF32, {2}, {0.1, 1}),
      Tensor(DType::kF32, {1}, {std::numeric_limits<double>::quiet_NaN()})};
  ExpectNear(ValuesOf(node.Forward(inputs)), {0.8}, 1e-6, "parameter");
}

TEST(Sgd, MomentumWithoutABufferIsRefused) {
  TestOp node("sgd_update", {{"momentum", 0.9}});
  std::vector<TestTensor> inputs = {Tensor(DType::kF32, {1}, {1}), Tensor(DType::kF32, {1}, {2}),
                                    TestTensor(), Tensor(DType::kF32, {2}, {0.1, 1})};
  EXPECT_THAT(std::string(node.Forward(inputs).status().message()), HasSubstr("momentum buffer"));
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
}  // namespace espalier::testing
