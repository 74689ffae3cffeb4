#include <numeric>

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

TestTensor Counting(Dims dims, DType dtype = DType::kF32) {
  Values values(NumElements(dims));
  std::iota(values.begin(), values.end(), 0);
  return Tensor(dtype, std::move(dims), values);
}

// Values of one output.
Values RunOp(const std::string& op, const Attributes& attributes,
             const std::vector<TestTensor>& inputs, size_t output = 0,
             const RunOptions& options = {}) {
  const std::vector<TestTensor> outputs = Ops().Run(op, attributes, inputs, options);
  return output < outputs.size() ? outputs[output].values() : Values();
}

TEST(Reshape, CopiesInfersAndKeepsTheOrder) {
  const TestTensor x = Counting({3, 8});
  const TestTensor y = Ops().Run("reshape", {{"shape", Dims{0, -1, 2}}}, {x})[0];
  EXPECT_EQ(y.type.dims, (Dims{3, 4, 2}));
  EXPECT_EQ(y.values(), x.values());
  Ops().CheckGradient("reshape", {{"shape", Dims{4, -1}}}, {Random({2, 6}, 1)});
  EXPECT_THAT(Ops().RunError("reshape", {{"shape", Dims{5, -1}}}, {Counting({3, 8})}),
              HasSubstr("does not hold the 24 elements of input 'x' with shape [3, 8]"));
  EXPECT_THAT(Ops().RunError("reshape", {{"shape", Dims{int64_t{1} << 62, 8}}}, {Counting({3, 8})}),
              HasSubstr("does not hold"));
  EXPECT_THAT(Ops().RunError("reshape", {{"shape", Dims{-1, -1}}}, {Counting({3, 8})}),
              HasSubstr("one -1"));
}

SplitRule RuleOf(const std::string& op, const Attributes& attributes, const Dims& x) {
  NodeTypes types{attributes, {{DType::kF32, x}}, {}};
  EXPECT_TRUE(InferNode(Ops().definition(op), &types).ok());
  return SplitOf(Ops().definition(op), types);
}

TEST(Reshape, SplitsAlongTheLeadingDimensionsOfGroups) {
  // [batch, sequence, 4 heads * 16] -> [batch, sequence, 4, 16]
  SplitRule rule = RuleOf("reshape", {{"shape", Dims{0, 0, 4, 16}}}, {6, 10, 64});
  ASSERT_EQ(rule.axes.size(), 3u);
  EXPECT_EQ(rule.inputs[0], (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(rule.outputs[0], (std::vector<int>{0, 1, 2, kNotSplit}));
  EXPECT_EQ(rule.axes[2].size, 4);
  EXPECT_EQ(rule.axes[0].kind, AxisKind::kSample);
  // [6, 10, 64] -> [60, 64]: only the leading one of the two can be cut.
  rule = RuleOf("reshape", {{"shape", Dims{60, 64}}}, {6, 10, 64});
  EXPECT_EQ(rule.inputs[0], (std::vector<int>{0, kNotSplit, 1}));
  EXPECT_EQ(rule.outputs[0], (std::vector<int>{0, 1}));
  EXPECT_EQ(rule.axes[0].size, 6);
  // Dimensions of size 1 are in no group; sizes without a common divisor cannot be cut.
  rule = RuleOf("reshape", {{"shape", Dims{1, 9, 4}}}, {4, 1, 9});
  EXPECT_EQ(rule.axes.size(), 0u);
}

TEST(Flatten, HasTwoDimensionsAndSplitsTheFirst) {
  const SplitRule rule = RuleOf("flatten", {{"axis", int64_t{1}}}, {8, 3, 5});
  EXPECT_EQ(rule.outputs[0], (std::vector<int>{0, 1}));
  EXPECT_EQ(rule.axes[0].size, 8);
  EXPECT_EQ(rule.axes[1].size, 3);
  const TestTensor x = Counting({2, 3, 4});
  const TestTensor y = Ops().Run("flatten", {}, {x})[0];
  EXPECT_EQ(y.type.dims, (Dims{2, 12}));
  EXPECT_EQ(y.values(), x.values());
  Ops().CheckGradient("flatten", {{"axis", int64_t{2}}}, {Random({2, 3, 2}, 1)});
}

TEST(Transpose, PermutesEveryTypeAndShape) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kI64, DType::kBool}) {
    for (const auto& [dims, perm] :
         std::vector<std::pair<Dims, Dims>>{{{}, {}},
                                            {{5}, {0}},
                                            {{3, 4}, {1, 0}},
                                            {{37, 53}, {1, 0}},
                                            {{2, 3, 4}, {0, 2, 1}},
                                            {{2, 3, 4}, {2, 0, 1}},
                                            {{2, 19, 3, 17}, {0, 2, 1, 3}},
                                            {{2, 3, 4, 5}, {3, 1, 2, 0}}}) {
      const TestTensor x = RandomIn(dtype, dims, 1, -99, 99);
      const TestTensor y = Ops().Run("transpose", {{"perm", perm}}, {x})[0];
      // Element i of y lies at x[index permuted back].
      for (int64_t i = 0; i < NumElements(dims); ++i) {
        Dims position(dims.size());
        int64_t rest = i;
        for (size_t d = dims.size(); d-- > 0;) {
          position[perm[d]] = rest % dims[perm[d]];
          rest /= dims[perm[d]];
        }
        int64_t index = 0;
        for (size_t d = 0; d < dims.size(); ++d) index = index * dims[d] + position[d];
        ASSERT_EQ(y.value(i), x.value(index)) << ToString(dims) << ToString(perm);
      }
    }
  }
  Ops().CheckGradient("transpose", {{"perm", Dims{2, 0, 1}}}, {Random({2, 3, 4}, 1)});
  EXPECT_THAT(Ops().RunError("transpose", {{"perm", Dims{0, 0}}}, {Counting({2, 2})}),
              HasSubstr("each of 0 to 1 once"));
}

TEST(Concat, PutsInputsOneAfterTheOther) {
  EXPECT_EQ(RunOp("concat", {{"axis", int64_t{-1}}},
                  {Tensor(DType::kI32, {2, 2}, {1, 2, 3, 4}), Tensor(DType::kI32, {2, 1}, {5, 6})}),
            (Values{1, 2, 5, 3, 4, 6}));
  Ops().CheckGradient("concat", {{"axis", int64_t{0}}}, {Random({2, 3}, 1), Random({1, 3}, 2)});
  Ops().CheckGradient("concat", {{"axis", int64_t{1}}},
                      {Random({2, 3, 2}, 1), Random({2, 1, 2}, 2), Random({2, 2, 2}, 3)});
  EXPECT_THAT(
      Ops().RunError("concat", {{"axis", int64_t{0}}}, {Counting({2, 2}), Counting({2, 3})}),
      HasSubstr("input 'x1' has shape [2, 3], expected [any, 2]"));
}

TEST(Concat, GradientOfALaterInputNeedsNotTheEarlierOnes) {
  NodeTypes types{{{"axis", int64_t{0}}}, {}, {}};
  ASSERT_TRUE(Ops().Infer("concat", {Counting({2, 2}), Counting({3, 2})}, &types).ok());
  std::vector<TestTensor> dy = {Counting({5, 2})};
  std::vector<TestTensor> dx = {TestTensor(), Zeros(DType::kF32, {3, 2})};
  ASSERT_TRUE(Ops().RunKernel("concat_grad", types.attributes, &dy, &dx, {}).ok());
  EXPECT_EQ(dx[1].values(), (Values{4, 5, 6, 7, 8, 9}));
}

TEST(Split, CutsAndItsGradientTreatsUnreadPiecesAsZeros) {
  const Attributes attributes = {{"axis", int64_t{1}}, {"sizes", Dims{1, 2}}};
  EXPECT_EQ(RunOp("split", attributes, {Counting({2, 3})}, 0), (Values{0, 3}));
  EXPECT_EQ(RunOp("split", attributes, {Counting({2, 3})}, 1), (Values{1, 2, 4, 5}));
  Ops().CheckGradient("split", attributes, {Random({4, 3}, 1)});
  const std::vector<TestTensor> inputs = {Counting({2, 3})};
  const std::vector<TestTensor> gradients = {F32({2, 1}, {7, 8}), TestTensor()};
  EXPECT_EQ(Ops()
                .RunGradient("split", attributes, inputs, Ops().Run("split", attributes, inputs),
                             gradients)[0]
                .values(),
            (Values{7, 0, 0, 8, 0, 0}));
  EXPECT_THAT(
      Ops().RunError("split", {{"axis", int64_t{0}}, {"sizes", Dims{1, 2}}}, {Counting({2, 3})}),
      HasSubstr("sizes that add up to 2"));
}

TEST(Slice, FollowsNumpy) {
  const auto slice = [](Dims axes, Dims starts, Dims ends, Dims steps, Dims x) {
    return RunOp("slice", {{"axes", axes}, {"starts", starts}, {"ends", ends}, {"steps", steps}},
                 {Counting(x)});
  };
  EXPECT_EQ(slice({0}, {1}, {4}, {}, {6}), (Values{1, 2, 3}));
  EXPECT_EQ(slice({0}, {-3}, {INT64_MAX}, {2}, {6}), (Values{3, 5}));
  EXPECT_EQ(slice({0}, {INT64_MIN}, {-1}, {4}, {6}), (Values{0, 4}));
  EXPECT_EQ(slice({0}, {5}, {2}, {}, {6}), (Values{}));
  EXPECT_EQ(slice({0}, {2}, {6}, {INT64_MAX}, {6}), (Values{2}));
  EXPECT_EQ(slice({-1, 0}, {1, 1}, {3, 2}, {}, {2, 4}), (Values{5, 6}));
  Ops().CheckGradient(
      "slice", {{"axes", Dims{1}}, {"starts", Dims{1}}, {"ends", Dims{6}}, {"steps", Dims{2}}},
      {Random({2, 6, 2}, 1)});
  EXPECT_EQ(slice({0}, {-1}, {INT64_MIN}, {-1}, {6}), (Values{5, 4, 3, 2, 1, 0}));
  EXPECT_EQ(slice({0}, {100}, {1}, {-2}, {6}), (Values{5, 3}));
  EXPECT_EQ(slice({0}, {2}, {-7}, {INT64_MIN}, {6}), (Values{2}));
  EXPECT_EQ(slice({0}, {INT64_MIN}, {0}, {-1}, {6}), (Values{}));
  Ops().CheckGradient(
      "slice", {{"axes", Dims{1}}, {"starts", Dims{5}}, {"ends", Dims{0}}, {"steps", Dims{-2}}},
      {Random({2, 6, 2}, 1)});
  EXPECT_THAT(
      Ops().RunError(
          "slice", {{"axes", Dims{0}}, {"starts", Dims{0}}, {"ends", Dims{1}}, {"steps", Dims{0}}},
          {Counting({3})}),
      HasSubstr("no step of 0"));
}

TEST(Gather, LooksUpAlongAnyAxis) {
  EXPECT_EQ(RunOp("gather", {{"axis", int64_t{0}}},
                  {Counting({3, 2}), Tensor(DType::kI64, {2, 2}, {2, 0, -1, 1})}),
            (Values{4, 5, 0, 1, 4, 5, 2, 3}));
  EXPECT_EQ(RunOp("gather", {{"axis", int64_t{1}}},
                  {Counting({2, 3}, DType::kI32), Tensor(DType::kI32, {}, {1})}),
            (Values{1, 4}));
  for (int64_t axis : {0, 1, 2}) {
    Ops().CheckGradient("gather", {{"axis", axis}},
                        {Random({3, 3, 3}, 1), Tensor(DType::kI32, {4}, {2, 0, 2, -3})});
  }
}

TEST(Gather, NamesTheIndexThatIsOutOfRange) {
  EXPECT_THAT(Ops().RunError("gather", {{"axis", int64_t{0}}},
                             {Counting({3, 2}), Tensor(DType::kI64, {2, 2}, {0, 1, 3, 2})}),
              HasSubstr("gather: indices[1, 0] is 3, accepted are -3 to 2"));
}

TEST(Reduce, SumsOverAnyAxes) {
  EXPECT_EQ(RunOp("reduce_sum", {}, {Counting({2, 3})}), (Values{15}));
  EXPECT_EQ(RunOp("reduce_sum", {{"axes", Dims{0}}}, {Counting({2, 3})}), (Values{3, 5, 7}));
  EXPECT_EQ(RunOp("reduce_mean", {{"axes", Dims{-1}}, {"keepdims", true}}, {Counting({2, 3})}),
            (Values{1, 4}));
  EXPECT_EQ(RunOp("reduce_sum", {{"axes", Dims{0, 2}}}, {Counting({2, 2, 2})}), (Values{10, 18}));
  EXPECT_EQ(RunOp("reduce_sum", {{"axes", Dims{1}}}, {Counting({2, 0})}), (Values{0, 0}));
  for (const char* op : {"reduce_sum", "reduce_mean"}) {
    for (const Dims& axes : {Dims{}, Dims{0}, Dims{1}, Dims{2}, Dims{0, 2}, Dims{-2, 2}}) {
      for (bool keepdims : {false, true}) {
        Ops().CheckGradient(op, {{"axes", axes}, {"keepdims", keepdims}}, {Random({3, 4, 2}, 1)});
      }
    }
  }
}

TEST(Reduce, LargeSumsStayAccurate) {
  // A million times 0.1 in plain f32 is off by 1 %.
  TestTensor x = Zeros(DType::kF32, {1000, 1001});
  for (int64_t i = 0; i < x.size(); ++i) x.set(i, 0.1);
  const double tenth = static_cast<float>(0.1);
  ExpectNear(RunOp("reduce_sum", {}, {x}), {1001000 * tenth}, 1e-6, "all");
  ExpectNear(RunOp("reduce_sum", {{"axes", Dims{0}}}, {x}), Values(1001, 1000 * tenth), 1e-6,
             "rows");
  ExpectNear(RunOp("reduce_mean", {{"axes", Dims{1}}}, {x}), Values(1000, tenth), 1e-6, "columns");
  ExpectNear(RunOp("sum_squares", {}, {x}), {1001000 * tenth * tenth}, 1e-6, "squares");
}

TEST(Reduce, PartsOfASplitSumAddUpToTheMean) {
  NodeTypes types{{{"axes", Dims{0}}}, {}, {}};
  const TestTensor whole = Random({6, 5}, 4);
  ASSERT_TRUE(Ops().Infer("reduce_mean", {whole}, &types).ok());
  const Values want = RunOp("reduce_mean", {{"axes", Dims{0}}}, {whole});
  Values sum(5, 0.0);
  for (int64_t part = 0; part < 2; ++part) {
    std::vector<TestTensor> x = {Zeros(DType::kF32, {3, 5})}, y = {Zeros(DType::kF32, {5})};
    for (int64_t i = 0; i < 15; ++i) x[0].set(i, whole.at(15 * part + i));
    // The attributes hold the whole tensor's count.
    ASSERT_TRUE(Ops().RunKernel("reduce_mean", types.attributes, &x, &y, {}).ok());
    for (int64_t i = 0; i < 5; ++i) sum[i] += y[0].at(i);
  }
  ExpectNear(sum, want, 1e-6, "sum of parts");
}

}  // namespace
}  // namespace espalier
