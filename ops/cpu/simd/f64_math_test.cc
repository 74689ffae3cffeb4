// Tests through the kernels: accuracy over the whole range of f32, and non-finite results.
#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "ops/cpu/testing/op_runner.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kMax = std::numeric_limits<float>::max();

const OpRunner& Ops() {
  static const OpRunner runner;
  return runner;
}

TestTensor RunOne(const std::string& op, const Attributes& attributes,
                  const std::vector<TestTensor>& inputs) {
  return Ops().Run(op, attributes, inputs)[0];
}

// Every 20011th f32, of both signs, and the special ones.
const std::vector<float>& Sweep() {
  static const std::vector<float> values = [] {
    std::vector<float> all = {0.0f, -0.0f, 1.0f, -1.0f, kInf, -kInf, kNan, kMax, -kMax, 1e-45f};
    for (uint64_t bits = 0; bits < 0x100000000u; bits += 20011) {
      all.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
    }
    return all;
  }();
  return values;
}

// The distance in units in the last place of `want`; 0 if both are NaN.
double Ulps(float got, double want) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : kInf;
  const float rounded = static_cast<float>(want);
  if (got == rounded) return 0;
  const float magnitude = std::abs(rounded);
  const double unit = std::max<double>(std::nextafter(magnitude, kInf) - magnitude, 1e-45);
  return std::abs(got - want) / unit;
}

struct Function {
  const char* op;
  double (*formula)(double);
  double ulps;
};

const Function kFunctions[] = {
    {"log", std::log, 0.51},
    {"sin", std::sin, 2},
    {"cos", std::cos, 2},
    {"tan", std::tan, 4},
    {"asin", std::asin, 4},
    {"acos", std::acos, 4},
    {"atan", std::atan, 3},
    {"sinh", std::sinh, 0.51},
    {"cosh", std::cosh, 0.51},
    {"asinh", std::asinh, 0.51},
    {"acosh", std::acosh, 0.51},
    {"atanh", std::atanh, 0.51},
    {"erf", std::erf, 3},
    {"floor", std::floor, 0},
    {"ceil", std::ceil, 0},
    {"round", std::nearbyint, 0},
    {"elu", [](double x) { return x > 0 ? x : std::expm1(x); }, 0.51},
    {"softplus", [](double x) { return std::max(x, x * 0) + std::log1p(std::exp(-std::abs(x))); },
     0.51},
};

TEST(F64Math, IsAccurateOverTheWholeRange) {
  const TestTensor x = F32({static_cast<int64_t>(Sweep().size())}, Sweep());
  for (const Function& function : kFunctions) {
    const TestTensor y = RunOne(function.op, {}, {x});
    double worst = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < x.size(); ++i) {
      if (std::string(function.op) == "softplus" && std::isinf(x.at(i)))
        continue;  // of the formula
      const double ulps = Ulps(y.at(i), function.formula(x.at(i)));
      if (ulps > worst) {
        worst = ulps;
        at = i;
      }
    }
    EXPECT_LE(worst, function.ulps) << function.op << " of " << x.at(at) << " gives " << y.at(at);
  }
}

// The same function with all, and with none, of its arguments within the fast range.
TEST(F64Math, AnglesAgreeWhicheverWayTheyAreReduced) {
  std::vector<float> near, mixed;
  for (int i = 0; i < 1000; ++i) near.push_back(static_cast<float>(i) * 37.25f);
  mixed = near;
  mixed.push_back(1e30f);
  const TestTensor a = RunOne("sin", {}, {F32({1000}, near)});
  const TestTensor b = RunOne("sin", {}, {F32({1001}, mixed)});
  for (int i = 0; i < 1000; ++i) ASSERT_NEAR(a.at(i), b.at(i), 2e-7) << near[i];
  EXPECT_NEAR(b.at(1000), std::sin(static_cast<double>(1e30f)), 1e-7);
}

TEST(Power, HasTheSpecialCasesOfIeee754) {
  const std::vector<float> values = {
      0,    -0.0f, 1,    -1,     2,       -2,   3,     -3,          0.5f,        -0.5f,       1.5f,
      kInf, -kInf, kNan, 1e-40f, -1e-40f, kMax, -kMax, 16777215.0f, 33554432.0f, -16777215.0f};
  const int64_t n = static_cast<int64_t>(values.size());
  const TestTensor y = RunOne("power", {}, {F32({n, 1}, values), F32({n}, values)});
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const float got = y.at(i * n + j);
      const double want = std::pow(static_cast<double>(values[i]), static_cast<double>(values[j]));
      EXPECT_LE(Ulps(got, want), 0.51) << values[i] << " ^ " << values[j] << " = " << got;
      if (!std::isnan(want)) {
        EXPECT_EQ(std::signbit(got), std::signbit(want)) << values[i] << " ^ " << values[j];
      }
    }
  }
}

TEST(Modulo, OfFloatsIsExact) {
  std::vector<float> a, b;
  for (float x : {5.5f, -5.5f, 1e30f, -1e30f, 3e-42f, 0.0f, kMax, 16777216.0f, kInf, kNan}) {
    for (float y : {3.0f, -3.0f, 0.1f, 7e-42f, 1e30f, kInf, 0.0f, -0.7f}) {
      a.push_back(x);
      b.push_back(y);
    }
  }
  const int64_t n = static_cast<int64_t>(a.size());
  const TestTensor y = RunOne("modulo", {{"fmod", true}}, {F32({n}, a), F32({n}, b)});
  for (int64_t i = 0; i < n; ++i) {
    EXPECT_EQ(Ulps(y.at(i), std::fmod(a[i], b[i])), 0) << a[i] << " mod " << b[i];
  }
}

TEST(IntegerDivision, ByZeroIsAnErrorThatNamesTheOperator) {
  for (DType dtype : {DType::kI32, DType::kI64, DType::kI8, DType::kU8}) {
    const TestTensor a = Tensor(dtype, {2, 3}, {1, 2, 3, 4, 5, 6});
    for (const char* op : {"divide", "modulo"}) {
      EXPECT_THAT(Ops().RunError(op, {}, {a, Tensor(dtype, {3}, {1, 0, 2})}),
                  HasSubstr(std::string(op) + ": an integer is divided by zero"));
      EXPECT_EQ(Ops().RunError(op, {}, {Tensor(dtype, {0, 3}, {}), Tensor(dtype, {3}, {1, 0, 2})}),
                "");
    }
  }
}

TEST(IntegerDivision, OfTheLeastIntegerByMinusOneWraps) {
  const double least = std::numeric_limits<int32_t>::min();
  const TestTensor a = Tensor(DType::kI32, {2}, {least, 7}), b = Tensor(DType::kI32, {1}, {-1});
  EXPECT_EQ(RunOne("divide", {}, {a, b}).values(), (std::vector<double>{least, -7}));
  EXPECT_EQ(RunOne("modulo", {}, {a, b}).values(), (std::vector<double>{0, 0}));
  EXPECT_EQ(RunOne("neg", {}, {a}).values(), (std::vector<double>{least, -7}));
}

TEST(Comparisons, OfI64AreExact) {
  const int64_t large = int64_t{1} << 62;
  const TestTensor a = Filled<int64_t>(DType::kI64, {3}, {large, large + 1, -large - 1});
  const TestTensor b = Filled<int64_t>(DType::kI64, {3}, {large + 1, large + 1, -large});
  EXPECT_EQ(RunOne("equal", {}, {a, b}).values(), (std::vector<double>{0, 1, 0}));
  EXPECT_EQ(RunOne("less", {}, {a, b}).values(), (std::vector<double>{1, 0, 1}));
  EXPECT_EQ(RunOne("maximum", {}, {a, b}).as<int64_t>()[0], large + 1);
}

TEST(Comparisons, TakeAnyByteButZeroAsTrue) {
  const TestTensor a = Filled<uint8_t>(DType::kBool, {3}, {1, 2, 0});
  const TestTensor b = Filled<uint8_t>(DType::kBool, {3}, {255, 0, 0});
  EXPECT_EQ(RunOne("equal", {}, {a, b}).as<uint8_t>()[0], 1);
  EXPECT_EQ(RunOne("logical_and", {}, {a, b}).as<uint8_t>()[0], 1);
  EXPECT_EQ(RunOne("logical_xor", {}, {a, b}).as<uint8_t>()[1], 1);
  EXPECT_EQ(RunOne("logical_not", {}, {a}).as<uint8_t>()[1], 0);
}

TEST(Clip, KeepsToTheTypesOfItsInput) {
  const TestTensor x = Tensor(DType::kI8, {4}, {-128, -3, 3, 127});
  EXPECT_EQ(RunOne("clip", {{"min", -2.5}, {"max", 2.5}}, {x}).values(),
            (std::vector<double>{-2, -2, 2, 2}));
  EXPECT_EQ(RunOne("clip", {{"max", 1e9}}, {x}).values(), x.values());
  EXPECT_THAT(Ops().RunError("clip", {{"min", static_cast<double>(kNan)}}, {x}),
              HasSubstr("clip: attribute 'min' is NaN"));
}

TEST(Errors, NameWhatIsWrong) {
  EXPECT_THAT(Ops().RunError("prelu", {}, {Random({2, 1}, 1), Random({2, 3}, 2)}),
              HasSubstr("prelu: input 'slope' has shape [2, 3]"));
  EXPECT_THAT(Ops().RunError("swiglu", {}, {Random({2, 3}, 1), Random({3}, 2)}),
              HasSubstr("swiglu: input 'up' has shape [3]"));
  EXPECT_THAT(Ops().RunError("where", {}, {Random({2}, 1), Random({2}, 1), Random({2}, 2)}),
              HasSubstr("where: input 'condition' has element type f32"));
  EXPECT_THAT(Ops().RunError("celu", {{"alpha", 0.0}}, {Random({2}, 1)}),
              HasSubstr("celu: attribute 'alpha' is 0"));
  EXPECT_THAT(Ops().RunError("power", {}, {Random({2}, 1), Tensor(DType::kI32, {2}, {1, 2})}),
              HasSubstr("power: input 'b' has type i32, expected f32"));
  EXPECT_THAT(Ops().RunError("add_scalar", {}, {Random({2}, 1)}),
              HasSubstr("attribute 'value' is missing"));
}

}  // namespace
}  // namespace espalier
