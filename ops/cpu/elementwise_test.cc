#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "ops/cpu/testing/op_runner.h"

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
      const TestTensor input = RandomIn(DType::kF32, dims, 1, -20, 20);
      const Values got = RunOp(c.op, c.attributes, {input});
      Values want;
      for (double x : input.values()) want.push_back(c.formula(x));
      ExpectNear(got, want, c.tolerance, c.op);
    }
  }
}

TEST(Unary, GradientsEqualFiniteDifferences) {
  for (const UnaryCase& c : UnaryCases()) {
    TestTensor x = RandomIn(DType::kF32, {5, 7}, 2, -3, 3);
    for (int64_t i = 0; i < 35; ++i) {  // relu has no derivative at 0
      if (std::abs(x.value(i)) < 0.05) x.set(i, 0.5);
    }
    Ops().CheckGradient(c.op, c.attributes, {x});
  }
}

TEST(Unary, NanPassesAndExtremesDoNotTurnIntoNan) {
  for (const UnaryCase& c : UnaryCases()) {
    const std::vector<TestTensor> inputs = {Tensor(DType::kF32, {5}, {kNan, 1e4, -1e4, 120, -120})};
    const std::vector<TestTensor> outputs = Ops().Run(c.op, c.attributes, inputs);
    const Values y = outputs[0].values();
    EXPECT_TRUE(std::isnan(y[0])) << c.op;
    for (int i = 1; i < 5; ++i) EXPECT_FALSE(std::isnan(y[i])) << c.op << " " << inputs[0].value(i);
    const TestTensor dy = Tensor(DType::kF32, {5}, {1, 1, 1, 1, 1});
    const Values dx = Ops().RunGradient(c.op, c.attributes, inputs, outputs, {dy})[0].values();
    if (c.op == "exp") continue;  // infinite
    for (int i = 1; i < 5; ++i)
      EXPECT_FALSE(std::isnan(dx[i])) << c.op << " " << inputs[0].value(i);
  }
}

TEST(Unary, ExpUnderflowsAndOverflowsAsItShould) {
  const Values y = RunOp("exp", {}, {Tensor(DType::kF32, {5}, {-kInf, kInf, -100, 0, 88.7})});
  EXPECT_EQ(y[0], 0);
  EXPECT_EQ(y[1], kInf);
  EXPECT_NEAR(y[2], std::exp(-100.0), 1e-45);
  EXPECT_EQ(y[3], 1);
  EXPECT_NEAR(y[4] / std::exp(88.7), 1, 1e-5);
}

TEST(Unary, NarrowTypesAreRoundedOnce) {
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    const TestTensor input = RandomIn(dtype, {1000}, 3, -2, 2);
    const Values y = RunOp("silu", {}, {input});
    for (int64_t i = 0; i < 1000; ++i) {
      const double x = input.value(i), want = x * Sigmoid(x);
      ASSERT_NEAR(y[i], want, std::abs(want) * (dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11) + 1e-6);
    }
  }
}

TEST(Unary, ErrorsNameTheInput) {
  EXPECT_THAT(Ops().RunError("relu", {}, {Tensor(DType::kI32, {1}, {1})}),
              HasSubstr("relu: input 'x' has element type i32, expected one of f32"));
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

const std::pair<Dims, Dims> kBroadcasts[] = {{{3, 4}, {3, 4}},
                                             {{3, 4}, {4}},
                                             {{3, 4}, {3, 1}},
                                             {{4}, {2, 3, 4}},
                                             {{2, 3, 4}, {3, 1}},
                                             {{2, 1, 4}, {3, 1}},
                                             {{}, {2, 3}},
                                             {{2, 3}, {1, 1}},
                                             {{1, 1}, {1, 1}},
                                             {{5, 1, 1}, {4, 1}},
                                             {{2, 5, 3, 3}, {5, 1, 1}}};

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
      const std::vector<TestTensor> inputs = {RandomIn(DType::kF32, a, 1, -2, 2),
                                              RandomIn(DType::kF32, b, 2, 0.5, 2)};
      const std::vector<TestTensor> outputs = Ops().Run(c.op, {}, inputs);
      const Dims& y = outputs[0].type.dims;
      Values want;
      for (int64_t i = 0; i < NumElements(y); ++i) {
        want.push_back(c.formula(inputs[0].value(BroadcastIndex(a, y, i)),
                                 inputs[1].value(BroadcastIndex(b, y, i))));
      }
      ExpectNear(outputs[0].values(), want, 1e-6, c.op);
    }
  }
}

TEST(Binary, GradientsSumOverBroadcastDimensions) {
  for (const BinaryCase& c : kBinaryCases) {
    for (const auto& [a, b] : kBroadcasts) {
      Ops().CheckGradient(c.op, {},
                          {RandomIn(DType::kF32, a, 1, -2, 2), RandomIn(DType::kF32, b, 2, 1, 2)});
    }
  }
}

TEST(Binary, LargeBroadcastGradientIsAccurateAndTheSameEachTime) {
  const std::vector<TestTensor> inputs = {RandomIn(DType::kF32, {700, 300}, 1, -2, 2),
                                          RandomIn(DType::kF32, {300}, 2, -2, 2)};
  const std::vector<TestTensor> outputs = Ops().Run("multiply", {}, inputs);
  const TestTensor dy = RandomIn(DType::kF32, {700, 300}, 3, -2, 2);
  const auto run = [&] { return Ops().RunGradient("multiply", {}, inputs, outputs, {dy})[1]; };
  const TestTensor first = run(), second = run();
  EXPECT_EQ(first.bytes, second.bytes);
  Values want(300, 0.0);
  for (int64_t i = 0; i < 700 * 300; ++i) want[i % 300] += dy.value(i) * inputs[0].value(i);
  ExpectNear(first.values(), want, 4e-6, "db");
}

TEST(Binary, IntegersWrapAndDivideTruncates) {
  const std::vector<TestTensor> inputs = {Tensor(DType::kI32, {2}, {2147483647, 5}),
                                          Tensor(DType::kI32, {1}, {1})};
  EXPECT_EQ(RunOp("add", {}, inputs), (Values{-2147483648.0, 6}));
  EXPECT_EQ(RunOp("multiply", {},
                  {Tensor(DType::kI64, {2}, {1LL << 40, -5}), Tensor(DType::kI64, {2}, {3, 7})}),
            (Values{3.0 * (1LL << 40), -35}));
  EXPECT_EQ(RunOp("divide", {},
                  {Tensor(DType::kI32, {4}, {7, -7, 8, -8}), Tensor(DType::kI32, {1}, {3})}),
            (Values{2, -2, 2, -2}));
}

TEST(Binary, ShapesThatDoNotBroadcastAreNamed) {
  EXPECT_THAT(Ops().RunError("add", {}, {Random({2, 3}, 1), Random({2, 4}, 1)}),
              HasSubstr("[2, 3] and [2, 4]"));
}

TEST(Binary, BroadcastDimensionsAreNotSplitOnThatInput) {
  const OpDef& add = Ops().definition("add");
  NodeTypes types{{}, {{DType::kF32, {8, 6}}, {DType::kF32, {6}}}, {{DType::kF32, {8, 6}}}};
  const SplitRule rule = SplitOf(add, types);
  EXPECT_EQ(rule.inputs[0], rule.outputs[0]);
  EXPECT_EQ(rule.inputs[1], (std::vector<int>{1}));
  EXPECT_EQ(rule.axes[0].kind, AxisKind::kSample);
  types.inputs[1].dims = {8, 1};
  EXPECT_EQ(SplitOf(add, types).inputs[1], (std::vector<int>{0, kNotSplit}));
}

TEST(AddN, SumsInOrderAndPassesTheGradientToEach) {
  const std::vector<TestTensor> inputs = {Random({3, 5}, 1), Random({3, 5}, 2), Random({3, 5}, 3)};
  const Values y = RunOp("add_n", {}, inputs);
  for (int64_t i = 0; i < 15; ++i) {
    EXPECT_EQ(y[i], inputs[0].at(i) + inputs[1].at(i) + inputs[2].at(i));
  }
  Ops().CheckGradient("add_n", {}, inputs);
}

TEST(Fill, WritesTheValueInEveryType) {
  for (const char* dtype : {"f32", "bf16", "f16", "i32", "i64", "bool"}) {
    EXPECT_EQ(
        RunOp("fill", {{"dims", Dims{2, 3}}, {"value", 1.0}, {"dtype", std::string(dtype)}}, {}),
        Values(6, 1.0))
        << dtype;
  }
  EXPECT_THAT(Ops().RunError("fill", {{"dims", Dims{-1}}}, {}), HasSubstr("attribute 'dims'"));
}

TEST(Cast, TruncatesClampsAndRounds) {
  const TestTensor input = Tensor(DType::kF32, {7}, {1.9, -1.9, 3e10, -3e10, kNan, 0, 16777217});
  EXPECT_EQ(RunOp("cast", {{"to", "i32"}}, {input}),
            (Values{1, -1, 2147483647, -2147483648.0, 0, 0, 16777216}));
  EXPECT_EQ(RunOp("cast", {{"to", "bool"}}, {input}), (Values{1, 1, 1, 1, 1, 0, 1}));
  EXPECT_EQ(RunOp("cast", {{"to", "bf16"}}, {Tensor(DType::kI64, {2}, {-3, 257})}),
            (Values{-3, 256}));
  Ops().CheckGradient("cast", {{"to", "f32"}}, {Random({6}, 1)});
}

}  // namespace
}  // namespace espalier
