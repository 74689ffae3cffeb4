// Types with an open batch size, and operators as messages.
#include "ops/graph/infer_types.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/graph/builder.h"
#include "ops/graph/operators_proto.h"
#include "ops/operators/register_all.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class InferTypesTest : public ::testing::Test {
 protected:
  InferTypesTest() { RegisterAllOperators(registry_); }

  Dims DimsOf(const Graph& graph, const std::string& value, int64_t batch = 0) {
    const absl::StatusOr<std::vector<TensorType>> types = InferTypes(registry_, graph, batch);
    EXPECT_TRUE(types.ok()) << types.status();
    return types.ok() ? (*types)[static_cast<size_t>(graph.FindValue(value))].dims : Dims{-99};
  }

  OpRegistry registry_;
};

TEST_F(InferTypesTest, AnOpenBatchStaysOpen) {
  GraphBuilder b(registry_, "attention");
  const ValueId x = b.Input("x", DType::kF32, {-1, 6, 4});
  const ValueId w = b.Parameter("w", DType::kF32, {10, 4}, {Initializer::kZeros});
  const ValueId rows = b.Op("reshape", {x}, {{"shape", std::vector<int64_t>{-1, 4}}}, "rows");
  const ValueId h = b.Op("linear", {rows, w}, {}, "h");
  b.Op("reshape", {h}, {{"shape", std::vector<int64_t>{-1, 6, 10}}}, "back");
  b.Op("reduce_mean", {h}, {}, "mean");
  const absl::StatusOr<Graph> graph = b.Build();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(DimsOf(*graph, "x"), (Dims{-1, 6, 4}));
  EXPECT_EQ(DimsOf(*graph, "w"), (Dims{10, 4}));
  EXPECT_EQ(DimsOf(*graph, "h"), (Dims{-6, 10}));
  EXPECT_EQ(DimsOf(*graph, "back"), (Dims{-1, 6, 10}));
  EXPECT_EQ(DimsOf(*graph, "mean"), Dims{});
  EXPECT_EQ(DimsOf(*graph, "h", /*batch=*/7), (Dims{42, 10}));
}

TEST_F(InferTypesTest, WithoutOpenInputsAllIsStatic) {
  GraphBuilder b(registry_, "fixed");
  // The size that an open batch would be inferred with.
  b.Op("relu", {b.Input("x", DType::kF32, {5040, 3})}, {}, "y");
  const absl::StatusOr<Graph> graph = b.Build();
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(DimsOf(*graph, "y"), (Dims{5040, 3}));
}

TEST_F(InferTypesTest, ADimensionThatIsNoMultipleOfTheBatchIsRefused) {
  GraphBuilder b(registry_, "concat");
  const ValueId x = b.Input("x", DType::kF32, {-1, 3});
  const ValueId more = b.Parameter("more", DType::kF32, {2, 3}, {Initializer::kZeros});
  b.Op("concat", {x, more}, {{"axis", int64_t{0}}}, "both");
  const absl::StatusOr<Graph> graph = b.Build();
  ASSERT_TRUE(graph.ok()) << graph.status();
  const absl::Status refused = InferTypes(registry_, *graph, 0).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("node 'both' (concat)"), HasSubstr("give a batch_size")));
  EXPECT_EQ(DimsOf(*graph, "both", 4), (Dims{6, 3}));
}

TEST_F(InferTypesTest, ErrorsNameNodeAndInput) {
  GraphBuilder b(registry_, "wrong");
  const ValueId x = b.Input("x", DType::kF32, {-1, 3});
  const ValueId w = b.Parameter("w", DType::kF32, {10, 4}, {Initializer::kZeros});
  b.Op("linear", {x, w}, {}, "fc1");
  const absl::StatusOr<Graph> graph = b.Build();
  ASSERT_TRUE(graph.ok()) << graph.status();
  const absl::Status refused = InferTypes(registry_, *graph, 0).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("node 'fc1' (linear)"), HasSubstr("'weight'")));
  EXPECT_EQ(InferTypes(registry_, *graph, -2).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(InferTypesTest, OperatorsAreListedWithWhatClientsNeed) {
  const v1::ListOperatorsReply reply = ListOperators(registry_);
  const auto find = [&](const std::string& name) {
    const auto found = std::find_if(reply.operators().begin(), reply.operators().end(),
                                    [&](const v1::Operator& op) { return op.name() == name; });
    EXPECT_NE(found, reply.operators().end()) << name;
    return found == reply.operators().end() ? v1::Operator() : *found;
  };
  EXPECT_EQ(reply.operators_size(), static_cast<int>(registry_.All().size()));

  const v1::Operator accuracy = find("top_k_accuracy");
  EXPECT_TRUE(accuracy.is_metric() && accuracy.larger_is_better());
  EXPECT_FALSE(accuracy.is_loss() || accuracy.differentiable());
  EXPECT_EQ(accuracy.inputs(0).name(), "logits");
  EXPECT_TRUE(accuracy.inputs(2).optional());
  const auto& attributes = accuracy.attributes();
  const auto k = std::find_if(attributes.begin(), attributes.end(),
                              [](const auto& attribute) { return attribute.name() == "k"; });
  ASSERT_NE(k, attributes.end());
  EXPECT_EQ(k->kind(), v1::Operator::AttributeSpec::INT);
  EXPECT_EQ(k->default_value().i(), 5);

  EXPECT_FALSE(find("root_mean_squared_error").larger_is_better());
  EXPECT_TRUE(find("concat").inputs(0).variadic());
  EXPECT_TRUE(find("dropout").random());
  EXPECT_TRUE(find("linear").inputs(1).differentiable());
  EXPECT_TRUE(find("mean_squared_error").is_loss());
  EXPECT_EQ(find("split").outputs(), -1);
  EXPECT_EQ(find("adam_update").optimizers(0), "adam");
  EXPECT_TRUE(find("linear").optimizers().empty());
}

}  // namespace
}  // namespace espalier
