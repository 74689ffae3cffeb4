#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "ops/cpu/op_test_util.h"

namespace espalier::testing {
namespace {

using ::testing::HasSubstr;

const double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct UnaryCase {
  std::string op;
  Attributes attributes;
  double (*formula)(double);
  double tolerance = 3e-7;
};

std::vector<UnaryCase> UnaryCases() {
  return {
      {"relu", {}, [](double x) { return std::max(x, 0.0); }},
      {"silu", {}, [](double x) { return x * Sigmoid(x); }},
      {"sigmoid", {}, Sigmoid},
      {"tanh", {}, [](double x) { return std::tanh(x); }},
      {"exp", {}, [](double x) { return std::exp(x); }},
      {"identity", {}, [](double x) { return x; }},
      {"gelu", {}, [](double x) { return 0.5 * x * std::erfc(-x / std::sqrt(2.0)); }, 1e-6},
      {"gelu",
       {{"approximate", "tanh"}},
       [](double x) {
         return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
       },
       1e-6},
  };
}

TEST(Unary, ForwardEqualsTheFormulaOnSmallAndLargeTensors) {
  for (const UnaryCase& c : UnaryCases()) {
    for (const Dims& dims : {Dims{}, Dims{3, 7}, Dims{70001}, Dims{2, 0}}) {
      TestOp op(c.op, c.attributes);
      std::vector<TestTensor> inputs = {RandomTensor(DType::kF32, dims, 1, -20, 20)};
      const std::vector<double> got = ValuesOf(op.Forward(inputs));
      std::vector<double> want;
      for (double x : inputs[0].values()) want.push_back(c.formula(x));
      ExpectNear(got, want, c.tolerance, c.op);
    }
  }
}

TEST(Unary, GradientsEqualFiniteDifferences) {
  for (const UnaryCase& c : UnaryCases()) {
    TestTensor x = RandomTensor(DType::kF32, {5, 7}, 2, -3, 3);
    for (int64_t i = 0; i < 35; ++i) {  // relu has no derivative at 0
      if (std::abs(x.at(i)) < 0.05) x.set(i, 0.5);
    }
    CheckGradient(c.op, c.attributes, {x});
  }
}

TEST(Unary, NanPassesAndExtremesDoNotTurnIntoNan) {
  for (const UnaryCase& c : UnaryCases()) {
    TestOp op(c.op, c.attributes);
    std::vector<TestTensor> inputs = {Tensor(DType::kF32, {5}, {kNan, 1e4, -1e4, 120, -120})};
    absl::StatusOr<std::vector<TestTensor>> outputs = op.Forward(inputs);
    const std::vector<double> y = ValuesOf(outputs);
    EXPECT_TRUE(std::isnan(y[0])) << c.op;
    for (int i = 1; i < 5; ++i) EXPECT_FALSE(std::isnan(y[i])) << c.op << " " << inputs[0].at(i);
    const std::vector<double> dx =
        ValuesOf(op.Backward(inputs, *outputs, {Tensor(DType::kF32, {5}, {1, 1, 1, 1, 1})}));
    if (c.op == "exp") continue;  // infinite
    for (int i = 1; i < 5; ++i) EXPECT_FALSE(std::isnan(dx[i])) << c.op << " " << inputs[0].at(i);
  }
}

TEST(Unary, ExpUnderflowsAndOverflowsAsItShould) {
  TestOp op("exp");
  std::vector<TestTensor> inputs = {Tensor(DType::kF32, {5}, {-kInf, kInf, -100, 0, 88.7})};
  const std::vector<double> y = ValuesOf(op.Forward(inputs));
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], kInf);
  EXPECT_NEAR(y[2], std::exp(-100.0), 1e-45);
  EXPECT_EQ(y[3], 1);
  EXPECT_NEAR(y[4] / std::exp(88.7), 1, 1e-5);
}

TEST(Unary, NarrowTypesAreRoundedOnce) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    TestOp op("silu");
    std::vector<TestTensor> inputs = {RandomTensor(dtype, {1000}, 3)};
    const std::vector<double> y = ValuesOf(op.Forward(inputs));
    for (int64_t i = 0; i < 1000; ++i) {
      const double x = inputs[0].at(i), want = x * Sigmoid(x);
      ASSERT_NEAR(y[i], want, std::abs(want) * (dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11) + 1e-6);
    }
  }
}

TEST(Unary, ErrorsNameTheInput) {
  TestOp op("relu");
  std::vector<TestTensor> inputs = {Tensor(DType::kI32, {1}, {1})};
  EXPECT_THAT(std::string(op.Forward(inputs).status().message()),
              HasSubstr("relu: input 'x' has type i32"));
}

struct BinaryCase {
  std::string op;
  double (*formula)(double, double);
};

const BinaryCase kBinaryCases[] = {
    {"add", [](double a, double b) { return a + b; }},
    {"subtract", [](double a, double b) { return a - b; }},
    {"multiply", [](double a, double b) { return a * b; }},
    {"divide", [](double a, double b) { return a / b; }},
};

const std::pair<Dims, Dims> kBroadcasts[] = {
    {{3, 4}, {3, 4}},    {{3, 4}, {4}},       {{3, 4}, {3, 1}},         {{4}, {2, 3, 4}},
    {{2, 3, 4}, {3, 1}}, {{2, 1, 4}, {3, 1}}, {{}, {2, 3}},             {{2, 3}, {1, 1}},
    {{1, 1}, {1, 1}},    {{5, 1, 1}, {4, 1}}, {{2, 5, 3, 3}, {5, 1, 1}}};

// Index into a tensor of shape `dims` that broadcasts to `out`, for element i of out.
int64_t BroadcastIndex(const Dims& dims, const Dims& out, int64_t i) {
  int64_t index = 0, stride = 1;
  for (size_t d = out.size(); d-- > 0;) {
    const int64_t position = i % out[d];
    i /= out[d];
    if (d + dims.size() < out.size()) continue;
    const int64_t size = dims[d + dims.size() - out.size()];
    if (size > 1) index += position * stride;
    stride *= size;
  }
  return index;
}

TEST(Binary, BroadcastsAsNumpy) {
  for (const BinaryCase& c : kBinaryCases) {
    for (const auto& [a, b] : kBroadcasts) {
      TestOp op(c.op);
      std::vector<TestTensor> inputs = {RandomTensor(DType::kF32, a, 1),
                                        RandomTensor(DType::kF32, b, 2, 0.5, 2)};
      absl::StatusOr<std::vector<TestTensor>> outputs = op.Forward(inputs);
      ASSERT_TRUE(outputs.ok()) << outputs.status();
      const Dims& y = (*outputs)[0].spec.dims;
      std::vector<double> want;
      for (int64_t i = 0; i < NumElements(y); ++i) {
        want.push_back(c.formula(inputs[0].at(BroadcastIndex(a, y, i)),
                                 inputs[1].at(BroadcastIndex(b, y, i))));
      }
      ExpectNear((*outputs)[0].values(), want, 1e-6, c.op);
    }
  }
}

TEST(Binary, GradientsSumOverBroadcastDimensions) {
  for (const BinaryCase& c : kBinaryCases) {
    for (const auto& [a, b] : kBroadcasts) {
      CheckGradient(c.op, {},
                    {RandomTensor(DType::kF32, a, 1), RandomTensor(DType::kF32, b, 2, 1, 2)});
    }
  }
}

TEST(Binary, LargeBroadcastGradientIsAccurateAndTheSameEachTime) {
  TestOp op("multiply");
  std::vector<TestTensor> inputs = {RandomTensor(DType::kF32, {700, 300}, 1),
                                    RandomTensor(DType::kF32, {300}, 2)};
  absl::StatusOr<std::vector<TestTensor>> outputs = op.Forward(inputs);
  const TestTensor dy = RandomTensor(DType::kF32, {700, 300}, 3);
  absl::StatusOr<std::vector<TestTensor>> first = op.Backward(inputs, *outputs, {dy});
  absl::StatusOr<std::vector<TestTensor>> second = op.Backward(inputs, *outputs, {dy});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ((*first)[1].bytes, (*second)[1].bytes);
  std::vector<double> want(300, 0.0);
  for (int64_t i = 0; i < 700 * 300; ++i) want[i % 300] += dy.at(i) * inputs[0].at(i);
  ExpectNear((*first)[1].values(), want, 4e-6, "db");
}

TEST(Binary, IntegersWrapAndDivideRefusesThem) {
  std::vector<TestTensor> inputs = {Tensor(DType::kI32, {2}, {2147483647, 5}),
                                    Tensor(DType::kI32, {1}, {1})};
  TestOp add("add");
  EXPECT_EQ(ValuesOf(add.Forward(inputs)), (std::vector<double>{-2147483648.0, 6}));
  std::vector<TestTensor> wide = {Tensor(DType::kI64, {2}, {1LL << 40, -5}),
                                  Tensor(DType::kI64, {2}, {3, 7})};
  TestOp multiply("multiply");
  EXPECT_EQ(ValuesOf(multiply.Forward(wide)), (std::vector<double>{3.0 * (1LL << 40), -35}));
  TestOp divide("divide");
  EXPECT_THAT(std::string(divide.Forward(inputs).status().message()),
              HasSubstr("divide: input 'a' has type i32, expected f32 or bf16 or f16"));
}

TEST(Binary, ShapesThatDoNotBroadcastAreNamed) {
  TestOp op("add");
  std::vector<TestTensor> inputs = {RandomTensor(DType::kF32, {2, 3}, 1),
                                    RandomTensor(DType::kF32, {2, 4}, 1)};
  EXPECT_THAT(std::string(op.Forward(inputs).status().message()), HasSubstr("[2, 3] and [2, 4]"));
}

TEST(Binary, BroadcastDimensionsAreNotSplitOnThatInput) {
  TestOp op("add");
  NodeTypes types{{}, {{DType::kF32, {8, 6}}, {DType::kF32, {6}}}, {{DType::kF32, {8, 6}}}};
  const SplitRule rule = SplitOf(op.def(), types);
  EXPECT_EQ(rule.inputs[0], rule.outputs[0]);
  EXPECT_EQ(rule.inputs[1], (std::vector<int>{1}));
  EXPECT_EQ(rule.axes[0].kind, AxisKind::kSample);
  types.inputs[1].dims = {8, 1};
  EXPECT_EQ(SplitOf(op.def(), types).inputs[1], (std::vector<int>{0, kNotSplit}));
}

TEST(AddN, SumsInOrderAndPassesTheGradientToEach) {
  const std::vector<TestTensor> inputs = {RandomTensor(DType::kF32, {3, 5}, 1),
                                          RandomTensor(DType::kF32, {3, 5}, 2),
                                          RandomTensor(DType::kF32, {3, 5}, 3)};
  TestOp op("add_n");
  std::vector<TestTensor> copy = inputs;
  const std::vector<double> y = ValuesOf(op.Forward(copy));
  for (int64_t i = 0; i < 15; ++i) {
    const float want = static_cast<float>(inputs[0].at(i)) + static_cast<float>(inputs[1].at(i)) +
                       static_cast<float>(inputs[2].at(i));
    EXPECT_EQ(y[i], want);
  }
  CheckGradient("add_n", {}, inputs);
}

TEST(Fill, WritesTheValueInEveryType) {
  for (const char* dtype : {"f32", "bf16", "f16", "i32", "i64", "bool"}) {
    TestOp op("fill", {{"dims", Dims{2, 3}}, {"value", 1.0}, {"dtype", std::string(dtype)}});
    std::vector<TestTensor> none;
    EXPECT_EQ(ValuesOf(op.Forward(none)), std::vector<double>(6, 1.0)) << dtype;
  }
  TestOp op("fill", {{"dims", Dims{-1}}});
  std::vector<TestTensor> none;
  EXPECT_THAT(std::string(op.Forward(none).status().message()), HasSubstr("attribute 'dims'"));
}

TEST(Cast, TruncatesClampsAndRounds) {
  std::vector<TestTensor> inputs = {
      Tensor(DType::kF32, {7}, {1.9, -1.9, 3e10, -3e10, kNan, 0, 16777217})};
  TestOp to_i32("cast", {{"to", "i32"}});
  EXPECT_EQ(ValuesOf(to_i32.Forward(inputs)),
            (std::vector<double>{1, -1, 2147483647, -2147483648.0, 0, 0, 16777216}));
  TestOp to_bool("cast", {{"to", "bool"}});
  EXPECT_EQ(ValuesOf(to_bool.Forward(inputs)), (std::vector<double>{1, 1, 1, 1, 1, 0, 1}));
  std::vector<TestTensor> integers = {Tensor(DType::kI64, {2}, {-3, 257})};
  TestOp to_bf16("cast", {{"to", "bf16"}});
  EXPECT_EQ(ValuesOf(to_bf16.Forward(integers)), (std::vector<double>{-3, 256}));
  CheckGradient("cast", {{"to", "f32"}}, {RandomTensor(DType::kF32, {6}, 1)});
}

}  // namespace
}  // namespace espalier::testing
