// Tests of operators on indices that the conformance cases do not cover: errors, NaN, shards.
#include <cmath>
#include <numeric>

#include "gmock/gmock.h"
#include "ops/cpu/testing/op_runner.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;
using Values = std::vector<double>;

const OpRunner& Ops() {
  static const OpRunner runner;
  return runner;
}

TestTensor Counting(Dims dims, DType dtype = DType::kF32) {
  Values values(NumElements(dims));
  std::iota(values.begin(), values.end(), 0);
  return Tensor(dtype, std::move(dims), values);
}

TEST(Indices, OutOfRangeAreNamed) {
  const TestTensor x = Counting({3, 2}), index = Tensor(DType::kI64, {2, 2}, {0, 1, -4, 2});
  EXPECT_THAT(Ops().RunError("gather_elements", {}, {x, index}),
              HasSubstr("gather_elements: indices[1, 0] is -4, accepted are -3 to 2"));
  EXPECT_THAT(Ops().RunError("scatter_elements", {}, {x, index, Counting({2, 2})}),
              HasSubstr("scatter_elements: indices[1, 0] is -4, accepted are -3 to 2"));
  const TestTensor pairs = Tensor(DType::kI32, {2, 2}, {2, 1, 0, 2});
  EXPECT_THAT(Ops().RunError("gather_nd", {}, {x, pairs}),
              HasSubstr("gather_nd: indices[1, 1] is 2, accepted are -2 to 1"));
  EXPECT_THAT(Ops().RunError("scatter_nd", {}, {x, pairs, Counting({2})}),
              HasSubstr("scatter_nd: indices[1, 1] is 2, accepted are -2 to 1"));
  EXPECT_THAT(
      Ops().RunError("gather_elements", {}, {Counting({0, 2}), Counting({1, 2}, DType::kI32)}),
      HasSubstr("nothing to choose from"));
  EXPECT_THAT(Ops().RunError("reverse_sequence", {}, {x, Tensor(DType::kI32, {2}, {3, 4})}),
              HasSubstr("reverse_sequence: lengths[1] is 4, accepted are 0 to 3"));
}

TEST(Indices, OneHotSkipsIndicesOutOfRange) {
  const TestTensor y =
      Ops().Run("one_hot", {{"depth", int64_t{3}}}, {Tensor(DType::kI32, {3}, {-1, 3, -4})})[0];
  EXPECT_EQ(y.values(), (Values{0, 0, 1, 0, 0, 0, 0, 0, 0}));
}

TEST(Scatter, RejectsUnsupportedCases) {
  const TestTensor x = Counting({3}), index = Tensor(DType::kI64, {1}, {0});
  EXPECT_THAT(
      Ops().InferError("scatter_elements", {{"reduction", "mean"}}, {x, index, Counting({1})}),
      HasSubstr("attribute 'reduction' is 'mean', expected 'none', 'add'"));
  const TestTensor narrow = Counting({3}, DType::kI8);
  EXPECT_THAT(Ops().InferError("scatter_elements", {{"reduction", "add"}},
                               {narrow, index, Counting({1}, DType::kI8)}),
              HasSubstr("scatter_elements: input 'x' has type i8"));
  EXPECT_THAT(Ops().InferError("scatter_elements", {}, {x, index, Counting({2})}),
              HasSubstr("input 'updates' has shape [2], expected [1]"));
  std::vector<TestTensor> operands = {index, x}, results = {Counting({3}), Counting({1})};
  EXPECT_THAT(
      Ops()
          .RunKernel("scatter_elements_grad", {{"axis", int64_t{0}}, {"reduction", "multiply"}},
                     &operands, &results, {})
          .error,
      HasSubstr("reduction 'multiply' has no gradient"));
}

TEST(Select, NanIsTheExtreme) {
  const float nan = std::nanf("");
  const TestTensor x = F32({5}, {1, nan, 7, nan, -0.0f});
  std::vector<TestTensor> top = Ops().Run("top_k", {{"k", int64_t{3}}}, {x});
  EXPECT_EQ(top[1].values(), (Values{1, 3, 2}));
  EXPECT_TRUE(std::isnan(top[0].at(0)));
  top = Ops().Run("top_k", {{"k", int64_t{2}}, {"largest", false}}, {x});
  EXPECT_EQ(top[1].values(), (Values{4, 0}));
  std::vector<TestTensor> sorted = Ops().Run("sort", {}, {x});
  EXPECT_EQ(sorted[1].values(), (Values{4, 0, 2, 1, 3}));
  EXPECT_TRUE(std::isnan(sorted[0].at(3)) && sorted[0].at(2) == 7);
  EXPECT_EQ(Ops().Run("argsort", {{"descending", true}}, {x})[0].values(), (Values{1, 3, 2, 0, 4}));
  EXPECT_EQ(Ops().Run("arg_max", {}, {x})[0].values(), (Values{1}));
  EXPECT_EQ(Ops().Run("arg_min", {{"select_last", true}}, {x})[0].values(), (Values{3}));
  EXPECT_TRUE(std::isnan(Ops().Run("reduce_max", {}, {x})[0].at(0)));
  EXPECT_TRUE(std::isnan(Ops().Run("reduce_min", {}, {x})[0].at(0)));
  EXPECT_THAT(Ops().InferError("top_k", {{"k", int64_t{6}}}, {x}),
              HasSubstr("top_k: attribute 'k' is 6, expected a value from 0 to 5"));
  EXPECT_THAT(Ops().InferError("arg_max", {}, {Counting({0, 2})}),
              HasSubstr("expected at least 1"));
}

TEST(Pad, RejectsInvalidPads) {
  EXPECT_THAT(Ops().InferError("pad", {{"pads", Dims{-2, -2}}}, {Counting({3})}),
              HasSubstr("pad: attribute 'pads' is"));
  EXPECT_THAT(Ops().InferError("pad", {{"pads", Dims{1, 1}}, {"mode", "edge"}}, {Counting({0})}),
              HasSubstr("has nothing to repeat"));
  EXPECT_THAT(Ops().InferError("pad", {{"pads", Dims{1}}}, {Counting({3})}),
              HasSubstr("expected 2 integers"));
  EXPECT_EQ(Ops().Run("pad", {{"pads", Dims{}}}, {Counting({})})[0].values(), (Values{0}));
}

TEST(Expand, KeepsNoSizeThatASplitChanges) {
  NodeTypes types{{{"shape", Dims{2, 4, 3}}}, {{DType::kF32, {4, 1}}}, {}};
  ASSERT_TRUE(InferNode(Ops().definition("expand"), &types).ok());
  EXPECT_EQ(types.outputs[0].dims, (Dims{2, 4, 3}));
  EXPECT_EQ(types.attributes.Ints("shape"), (Dims{2, 1, 3}));
}

TEST(Triangle, ShardUsesItsOffsetInTheWhole) {
  RunOptions options;
  options.specs = {{DType::kF32, {2, 3}, {2, 1}, {4, 4}}};
  options.output_specs = options.specs;
  // Rows 2 and 3, columns 1 to 3 of a 4 x 4 matrix.
  EXPECT_EQ(Ops().Run("triangle", {}, {Counting({2, 3})}, options)[0].values(),
            (Values{0, 1, 0, 3, 4, 5}));
}

TEST(Reduce, EmptyInput) {
  const TestTensor none = Counting({2, 0});
  const double infinity = std::numeric_limits<double>::infinity();
  const auto run = [&](const char* op, const TestTensor& x) {
    return Ops().Run(op, {{"axes", Dims{1}}}, {x})[0].values();
  };
  EXPECT_EQ(run("reduce_max", none), (Values{-infinity, -infinity}));
  EXPECT_EQ(run("reduce_min", Counting({2, 0}, DType::kI8)), (Values{127, 127}));
  EXPECT_EQ(run("reduce_prod", none), (Values{1, 1}));
  EXPECT_EQ(run("reduce_log_sum_exp", none), (Values{-infinity, -infinity}));
  EXPECT_EQ(run("reduce_l2", none), (Values{0, 0}));
}

// Enough elements for several threads, whichever dimensions are reduced.
TEST(Reduce, LargeTensors) {
  const TestTensor x = RandomIn(DType::kF32, {37, 64, 65}, 3, -1, 1);
  for (const Dims& axes : {Dims{0}, Dims{1}, Dims{2}, Dims{0, 2}, Dims{0, 1, 2}, Dims{1, 2}}) {
    const TestTensor y = Ops().Run("reduce_max", {{"axes", axes}}, {x})[0];
    const TestTensor norm = Ops().Run("reduce_l2", {{"axes", axes}}, {x})[0];
    std::vector<double> most(y.size(), -2), squares(y.size(), 0);
    for (int64_t i = 0; i < x.size(); ++i) {
      const int64_t at[] = {i / (64 * 65), i / 65 % 64, i % 65}, sizes[] = {37, 64, 65};
      int64_t o = 0;
      for (int64_t d = 0; d < 3; ++d) {
        if (std::find(axes.begin(), axes.end(), d) == axes.end()) o = o * sizes[d] + at[d];
      }
      most[o] = std::max(most[o], x.value(i));
      squares[o] += x.value(i) * x.value(i);
    }
    for (double& value : squares) value = std::sqrt(value);
    EXPECT_EQ(y.values(), most);
    ExpectNear(norm.values(), squares, 1e-6, "reduce_l2");
  }
}

}  // namespace
}  // namespace espalier
