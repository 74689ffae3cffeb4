#include "server/jobs/prepare_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "ops/graph/builder.h"
#include "ops/operators/register_all.h"
#include "server/jobs/add_example_weights.h"
#include "server/jobs/add_loss_and_metrics.h"
#include "storage/example_weights.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

class AddLossAndMetricsTest : public ::testing::Test {
 protected:
  AddLossAndMetricsTest() { RegisterAllOperators(registry_); }

  // As the importer returns it: a dynamic batch and no loss.
  Graph Model(const std::string& output = "scores") {
    GraphBuilder builder(registry_, "m");
    const ValueId x = builder.Input("x", DType::kF32, {-1, 6});
    const ValueId w = builder.Parameter("w", DType::kF32, {3, 6}, {Initializer::kNormal, 0.1});
    builder.Output(output, builder.Op("linear", {x, w}));
    return *builder.Build();
  }
  std::string Error(const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }

  OpRegistry registry_;
};

TEST_F(AddLossAndMetricsTest, ClassificationGetsOneLabelPerRowLossAndMetric) {
  Graph graph = Model();
  ASSERT_TRUE(AddLossAndMetrics(registry_, "sparse_categorical_crossentropy", {"accuracy"}, 8,
                                DType::kI64, &graph)
                  .ok());
  ASSERT_TRUE(BindAndInfer(registry_, 8, &graph).ok());
  const Value& labels = graph.value(graph.FindValue(kLabelsInput));
  EXPECT_EQ(labels.kind, ValueKind::kInput);
  EXPECT_EQ(labels.type, (TensorType{DType::kI64, {8}}));
  for (const char* name : {"loss", "accuracy"}) {
    const ValueId output = graph.FindOutput(name);
    ASSERT_NE(output, kNoValue) << name;
    EXPECT_TRUE(graph.value(output).type.dims.empty());
  }
  EXPECT_NE(graph.FindOutput("scores"), kNoValue) << "the model's own output stays";
}

TEST_F(AddLossAndMetricsTest, RegressionLabelsHaveTheShapeOfTheOutput) {
  Graph graph = Model("loss");  // a reserved name
  ASSERT_TRUE(AddLossAndMetrics(registry_, "mean_squared_error", {}, 8, DType::kI32, &graph).ok());
  ASSERT_TRUE(BindAndInfer(registry_, 8, &graph).ok());
  EXPECT_EQ(graph.value(graph.FindValue(kLabelsInput)).type, (TensorType{DType::kF32, {8, 3}}));
  EXPECT_TRUE(graph.value(graph.FindOutput("loss")).type.dims.empty());
}

class AddExampleWeightsTest : public AddLossAndMetricsTest {
 protected:
  // Scores of three classes with a loss, by a builder of the rest.
  WeightedHeads Add(
      const std::function<ValueId(GraphBuilder&, ValueId scores, ValueId labels)>& loss) {
    GraphBuilder builder(registry_, "m");
    const ValueId x = builder.Input("x", DType::kF32, {-1, 6});
    const ValueId labels = builder.Input("labels", DType::kI64, {-1});
    const ValueId w = builder.Parameter("w", DType::kF32, {3, 6}, {Initializer::kNormal, 0.1});
    builder.Output("loss", loss(builder, builder.Op("linear", {x, w}), labels));
    graph_ = *builder.Build();
    EXPECT_EQ(BindAndInfer(registry_, 8, &graph_), absl::OkStatus());
    columns_ = {{"x", "x"}, {"labels", "y"}};
    const WeightedHeads heads = AddExampleWeights(registry_, 8, &graph_, &columns_);
    // Still a graph that fits the operators.
    EXPECT_EQ(BindAndInfer(registry_, 8, &graph_), absl::OkStatus());
    return heads;
  }
  const Node& Head() { return graph_.node(graph_.value(graph_.FindOutput("loss")).producer); }

  Graph graph_;
  std::map<std::string, std::string> columns_;
};

TEST_F(AddExampleWeightsTest, LabelsOfAnInputAreCounted) {
  const WeightedHeads heads = Add([](GraphBuilder& b, ValueId scores, ValueId labels) {
    return b.Op("negative_log_likelihood", {b.Op("log_softmax", {scores}, {{"axis", 1}}), labels},
                {{"ignore_index", -1}});
  });
  EXPECT_TRUE(heads.all);
  const auto column = ExampleWeightsColumn::Parse(columns_["example_weights"]);
  ASSERT_TRUE(column.has_value());
  EXPECT_EQ(column->labels, "y");
  EXPECT_EQ(column->ignore_index, -1);
  EXPECT_EQ(Head().inputs.size(), 4u);
  EXPECT_EQ(Head().attributes.String("mean_over"), "all") << "the weights count; shards may sum";
}

TEST_F(AddExampleWeightsTest, LossOfSeveralOperatorsIsNotWeighted) {
  const WeightedHeads heads = Add([](GraphBuilder& b, ValueId scores, ValueId labels) {
    const ValueId loss = b.Op("sparse_categorical_crossentropy", {scores, labels});
    return b.Op("add", {loss, b.Op("mean_squared_error", {scores, scores})});
  });
  EXPECT_FALSE(heads.all);
  EXPECT_EQ(heads.unweighted, "loss");
}

TEST_F(AddLossAndMetricsTest, ErrorsNameWhatIsWrongAndWhatThereIs) {
  Graph graph = Model();
  EXPECT_THAT(Error(AddLossAndMetrics(registry_, "hinge", {}, 8, DType::kI32, &graph)),
              ::testing::AllOf(HasSubstr("hinge"), HasSubstr("mean_squared_error")));
  EXPECT_THAT(
      Error(AddLossAndMetrics(registry_, "mean_squared_error", {"f1"}, 8, DType::kI32, &graph)),
      ::testing::AllOf(HasSubstr("f1"), HasSubstr("accuracy")));
  GraphBuilder builder(registry_, "fixed");
  builder.Output("y", builder.Op("relu", {builder.Input("x", DType::kF32, {1, 6})}));
  Graph fixed = *builder.Build();
  EXPECT_THAT(Error(AddLossAndMetrics(registry_, "mean_squared_error", {}, 8, DType::kI32, &fixed)),
              HasSubstr("dynamic first dimension"));
}

}  // namespace
}  // namespace espalier
