#include <numeric>

#include "gmock/gmock.h"
#include "ops/cpu/op_test_util.h"

namespace espalier::testing {
namespace {

using ::testing::HasSubstr;
using Values = std::vector<double>;

TestTensor Counting(Dims dims, DType dtype = DType::kF32) {
  Values values(NumElements(dims));
  std::iota(values.begin(), values.end(), 0);
  return Tensor(dtype, std::move(dims), values);
}

Values RunOp(const std::string& op, Attributes attributes, std::vector<TestTensor> inputs,
           size_t output = 0) {
  TestOp node(op, std::move(attributes));
  return ValuesOf(node.Forward(inputs), output);
}

std::string ErrorOf(const std::string& op, Attributes attributes, std::vector<TestTensor> inputs) {
  TestOp node(op, std::move(attributes));
  return std::string(node.Forward(inputs).status().message());
}

TEST(Reshape, CopiesInfersAndKeepsTheOrder) {
  TestOp op("reshape", {{"shape", Dims{0, -1, 2}}});
  std::vector<TestTensor> inputs = {Counting({3, 8})};
  absl::StatusOr<std::vector<TestTensor>> y = op.Forward(inputs);
  ASSERT_TRUE(y.ok()) << y.status();
  EXPECT_EQ((*y)[0].spec.dims, (Dims{3, 4, 2}));
  EXPECT_EQ((*y)[0].values(), inputs[0].values());
  CheckGradient("reshape", {{"shape", Dims{4, -1}}}, {RandomTensor(DType::kF32, {2, 6}, 1)});
  EXPECT_THAT(ErrorOf("reshape", {{"shape", Dims{5, -1}}}, {Counting({3, 8})}),
              HasSubstr("does not hold the 24 elements of input 'x' with shape [3, 8]"));
  EXPECT_THAT(ErrorOf("reshape", {{"shape", Dims{int64_t{1} << 62, 8}}}, {Counting({3, 8})}),
              HasSubstr("does not hold"));
  EXPECT_THAT(ErrorOf("reshape", {{"shape", Dims{-1, -1}}}, {Counting({3, 8})}), HasSubstr("one -1"));
}

SplitRule RuleOf(const std::string& op, const Attributes& attributes, const Dims& x) {
  TestOp node(op, attributes);
  NodeTypes types{attributes, {{DType::kF32, x}}, {}};
  EXPECT_TRUE(InferNode(node.def(), &types).ok());
  return SplitOf(node.def(), types);
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
  TestOp op("flatten");
  std::vector<TestTensor> inputs = {Counting({2, 3, 4})};
  absl::StatusOr<std::vector<TestTensor>> y = op.Forward(inputs);
  ASSERT_TRUE(y.ok());
  EXPECT_EQ((*y)[0].spec.dims, (Dims{2, 12}));
  EXPECT_EQ((*y)[0].values(), inputs[0].values());
  CheckGradient("flatten", {{"axis", int64_t{2}}}, {RandomTensor(DType::kF32, {2, 3, 2}, 1)});
}

TEST(Transpose, PermutesEveryTypeAndShape) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kI64, DType::kBool}) {
    for (const auto& [dims, perm] : std::vector<std::pair<Dims, Dims>>{{{}, {}},
                                                                       {{5}, {0}},
                                                                       {{3, 4}, {1, 0}},
                                                                       {{37, 53}, {1, 0}},
                                                                       {{2, 3, 4}, {0, 2, 1}},
                                                                       {{2, 3, 4}, {2, 0, 1}},
                                                                       {{2, 19, 3, 17}, {0, 2, 1, 3}},
                                                                       {{2, 3, 4, 5}, {3, 1, 2, 0}}}) {
      TestOp op("transpose", {{"perm", perm}});
      std::vector<TestTensor> inputs = {RandomTensor(dtype, dims, 1, -99, 99)};
      absl::StatusOr<std::vector<TestTensor>> y = op.Forward(inputs);
      ASSERT_TRUE(y.ok()) << y.status();
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
        ASSERT_EQ((*y)[0].at(i), inputs[0].at(index)) << ToString(dims) << ToString(perm);
      }
    }
  }
  CheckGradient("transpose", {{"perm", Dims{2, 0, 1}}}, {RandomTensor(DType::kF32, {2, 3, 4}, 1)});
  EXPECT_THAT(ErrorOf("transpose", {{"perm", Dims{0, 0}}}, {Counting({2, 2})}),
              HasSubstr("each of 0 to 1 once"));
}

TEST(Concat, PutsInputsOneAfterTheOther) {
  EXPECT_EQ(RunOp("concat", {{"axis", int64_t{-1}}},
                {Tensor(DType::kI32, {2, 2}, {1, 2, 3, 4}), Tensor(DType::kI32, {2, 1}, {5, 6})}),
            (Values{1, 2, 5, 3, 4, 6}));
  CheckGradient("concat", {{"axis", int64_t{0}}},
                {RandomTensor(DType::kF32, {2, 3}, 1), RandomTensor(DType::kF32, {1, 3}, 2)});
  CheckGradient("concat", {{"axis", int64_t{1}}},
                {RandomTensor(DType::kF32, {2, 3, 2}, 1), RandomTensor(DType::kF32, {2, 1, 2}, 2),
                 RandomTensor(DType::kF32, {2, 2, 2}, 3)});
  EXPECT_THAT(ErrorOf("concat", {{"axis", int64_t{0}}}, {Counting({2, 2}), Counting({2, 3})}),
              HasSubstr("input 'x1' has shape [2, 3], expected [any, 2]"));
}

TEST(Concat, GradientOfALaterInputNeedsNotTheEarlierOnes) {
  TestOp op("concat", {{"axis", int64_t{0}}});
  std::vector<TestTensor> inputs = {Counting({2, 2}), Counting({3, 2})};
  ASSERT_TRUE(op.Infer(inputs).ok());
  std::vector<TestTensor> dy = {Counting({5, 2})};
  std::vector<TestTensor> dx = {TestTensor(), TestTensor({DType::kF32, {3, 2}})};
  ASSERT_TRUE(op.Run("concat_grad", dy, dx).ok());
  EXPECT_EQ(dx[1].values(), (Values{4, 5, 6, 7, 8, 9}));
}

TEST(Split, CutsAndItsGradientTreatsUnreadPiecesAsZeros) {
  const Attributes attributes = {{"axis", int64_t{1}}, {"sizes", Dims{1, 2}}};
  EXPECT_EQ(RunOp("split", attributes, {Counting({2, 3})}, 0), (Values{0, 3}));
  EXPECT_EQ(RunOp("split", attributes, {Counting({2, 3})}, 1), (Values{1, 2, 4, 5}));
  CheckGradient("split", attributes, {RandomTensor(DType::kF32, {4, 3}, 1)});
  TestOp op("split", attributes);
  std::vector<TestTensor> inputs = {Counting({2, 3})};
  absl::StatusOr<std::vector<TestTensor>> y = op.Forward(inputs);
  ASSERT_TRUE(y.ok());
  EXPECT_EQ(ValuesOf(op.Backward(inputs, *y, {Tensor(DType::kF32, {2, 1}, {7, 8}), TestTensor()})),
            (Values{7, 0, 0, 8, 0, 0}));
  EXPECT_THAT(ErrorOf("split", {{"axis", int64_t{0}}, {"sizes", Dims{1, 2}}}, {Counting({2, 3})}),
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
  CheckGradient("slice",
                {{"axes", Dims{1}}, {"starts", Dims{1}}, {"ends", Dims{6}}, {"steps", Dims{2}}},
                {RandomTensor(DType::kF32, {2, 6, 2}, 1)});
  EXPECT_THAT(ErrorOf("slice",
                      {{"axes", Dims{0}}, {"starts", Dims{0}}, {"ends", Dims{1}}, {"steps", Dims{-1}}},
                      {Counting({3})}),
              HasSubstr("positive steps"));
}

TEST(Gather, LooksUpAlongAnyAxis) {
  EXPECT_EQ(RunOp("gather", {{"axis", int64_t{0}}},
                {Counting({3, 2}), Tensor(DType::kI64, {2, 2}, {2, 0, -1, 1})}),
            (Values{4, 5, 0, 1, 4, 5, 2, 3}));
  EXPECT_EQ(RunOp("gather", {{"axis", int64_t{1}}},
                {Counting({2, 3}, DType::kI32), Tensor(DType::kI32, {}, {1})}),
            (Values{1, 4}));
  for (int64_t axis : {0, 1, 2}) {
    CheckGradient("gather", {{"axis", axis}},
                  {RandomTensor(DType::kF32, {3, 3, 3}, 1), Tensor(DType::kI32, {4}, {2, 0, 2, -3})});
  }
}

TEST(Gather, NamesTheIndexThatIsOutOfRange) {
  EXPECT_THAT(ErrorOf("gather", {{"axis", int64_t{0}}},
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
        CheckGradient(op, {{"axes", axes}, {"keepdims", keepdims}},
                      {RandomTensor(DType::kF32, {3, 4, 2}, 1)});
      }
    }
  }
}

TEST(Reduce, LargeSumsStayAccurate) {
  // A million times 0.1 in plain f32 is off by 1 %.
  TestTensor x(TensorType{DType::kF32, {1000, 1001}});
  for (int64_t i = 0; i < x.spec.num_elements(); ++i) x.set(i, 0.1);
  const double tenth = static_cast<float>(0.1);
  ExpectNear(RunOp("reduce_sum", {}, {x}), {1001000 * tenth}, 1e-6, "all");
  ExpectNear(RunOp("reduce_sum", {{"axes", Dims{0}}}, {x}), Values(1001, 1000 * tenth), 1e-6, "rows");
  ExpectNear(RunOp("reduce_mean", {{"axes", Dims{1}}}, {x}), Values(1000, tenth), 1e-6, "columns");
  ExpectNear(RunOp("sum_squares", {}, {x}), {1001000 * tenth * tenth}, 1e-6, "squares");
}

TEST(Reduce, PartsOfASplitSumAddUpToTheMean) {
  TestOp op("reduce_mean", {{"axes", Dims{0}}});
  std::vector<TestTensor> whole = {RandomTensor(DType::kF32, {6, 5}, 4)};
  const Values want = ValuesOf(op.Forward(whole));
  Values sum(5, 0.0);
  for (int64_t part = 0; part < 2; ++part) {
    std::vector<TestTensor> x = {TestTensor({DType::kF32, {3, 5}})};
    for (int64_t i = 0; i < 15; ++i) x[0].set(i, whole[0].at(15 * part + i));
    std::vector<TestTensor> y = {TestTensor({DType::kF32, {5}})};
    ASSERT_TRUE(op.Run("reduce_mean", x, y).ok());  // with the whole tensor's count
    for (int64_t i = 0; i < 5; ++i) sum[i] += y[0].at(i);
  }
  ExpectNear(sum, want, 1e-6, "sum of parts");
}

}  // namespace
}  // namespace espalier::testing
