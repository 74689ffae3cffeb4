#include "server/jobs/prepare_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ops/graph/builder.h"
#include "ops/operators/register_all.h"
#include "server/jobs/add_loss_and_metrics.h"

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
