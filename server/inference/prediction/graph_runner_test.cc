#include "server/inference/prediction/graph_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/file_system.h"
#include "ops/graph/builder.h"
#include "ops/operators/register_all.h"
#include "storage/safetensors.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

std::string Bytes(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
std::vector<float> Floats(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

class GraphRunnerTest : public ::testing::Test {
 protected:
  GraphRunnerTest() { RegisterAllOperators(registry_); }

  // scores = dropout(x w^T + b + z), twice = 2 scores; a loss and a metric of scores and labels.
  Graph Trained(int64_t batch = -1) {
    GraphBuilder builder(registry_, "m");
    const ValueId labels = builder.Input("labels", DType::kI64, {batch});
    const ValueId z = builder.Input("z", DType::kF32, {batch, 2});
    const ValueId x = builder.Input("x", DType::kF32, {batch, 3});
    const ValueId w = builder.Parameter("w", DType::kF32, {2, 3}, {Initializer::kNormal, 0.1});
    const ValueId b = builder.Parameter("b", DType::kF32, {2}, {Initializer::kZeros});
    const ValueId temperature =
        builder.Parameter("temperature", DType::kF32, {2}, {Initializer::kOnes});
    const ValueId sum = builder.Op("add", {builder.Op("linear", {x, w, b}), z});
    const ValueId scores = builder.Op("dropout", {sum}, {{"rate", 0.5}});
    builder.Output("loss", builder.Op("sparse_categorical_crossentropy",
                                      {builder.Op("multiply", {scores, temperature}), labels}));
    builder.Output("accuracy", builder.Op("accuracy", {scores, labels}));
    builder.Output("twice", builder.Op("add", {scores, scores}));
    builder.Output("scores", scores);
    return *builder.Build();
  }

  // A model folder with w = [[1, 2, 3], [4, 5, 6]] and b = [0.5, -0.5].
  std::string Folder() {
    const std::string folder = ::testing::TempDir();
    const auto files = NewPosixFileSystem();
    SafetensorsWriter writer(*files, JoinPath(folder, "model.safetensors"));
    EXPECT_EQ(writer.Begin({{"b", {DType::kF32, {2}}},
                            {"temperature", {DType::kF32, {2}}},
                            {"w", {DType::kF32, {2, 3}}}},
                           {}),
              absl::OkStatus());
    const std::string data = Bytes({0.5, -0.5, 1, 1, 1, 2, 3, 4, 5, 6});
    EXPECT_EQ(writer.Append(data.data(), static_cast<int64_t>(data.size())), absl::OkStatus());
    EXPECT_EQ(writer.Finish().status(), absl::OkStatus());
    return folder;
  }

  absl::StatusOr<std::unique_ptr<BatchRunner>> Make(Graph trained, int64_t max_batch) {
    absl::StatusOr<PredictionGraph> prediction = MakePredictionGraph(registry_, std::move(trained));
    if (!prediction.ok()) return prediction.status();
    return MakeGraphRunner(registry_, *prediction, ParametersOfFolder(Folder()), max_batch,
                           NewCpuDevice({.threads = 1}));
  }

  static std::vector<float> Expected(const std::vector<float>& x, const std::vector<float>& z) {
    std::vector<float> scores;
    for (size_t i = 0; i < x.size(); i += 3) {
      scores.push_back(x[i] + 2 * x[i + 1] + 3 * x[i + 2] + 0.5f + z[i / 3 * 2]);
      scores.push_back(4 * x[i] + 5 * x[i + 1] + 6 * x[i + 2] - 0.5f + z[i / 3 * 2 + 1]);
    }
    return scores;
  }

  OpRegistry registry_;
};

TEST_F(GraphRunnerTest, TheSignatureLeavesOutLossesMetricsAndLabels) {
  const absl::StatusOr<PredictionGraph> prediction = MakePredictionGraph(registry_, Trained());
  ASSERT_TRUE(prediction.ok()) << prediction.status();
  const GraphSignature& signature = prediction->signature;
  ASSERT_EQ(signature.inputs.size(), 2u);
  EXPECT_EQ(signature.inputs[0].name, "z");
  EXPECT_EQ(signature.inputs[1].name, "x");
  EXPECT_EQ(signature.inputs[1].example, (TensorType{DType::kF32, {3}}));
  ASSERT_EQ(signature.outputs.size(), 2u);
  EXPECT_EQ(signature.outputs[0].name, "twice");
  EXPECT_EQ(signature.outputs[1].name, "scores");
  EXPECT_EQ(signature.outputs[1].example, (TensorType{DType::kF32, {2}}));
  EXPECT_EQ(prediction->fixed_batch, 0);
  EXPECT_EQ(prediction->parameters, 8);  // without the temperature, of the loss alone
}

TEST_F(GraphRunnerTest, EveryNumberOfExamplesGivesTheSameAnswers) {
  auto runner = Make(Trained(), 6);
  ASSERT_TRUE(runner.ok()) << runner.status();
  EXPECT_EQ((*runner)->max_batch(), 6);
  for (int64_t examples = 1; examples <= 6; ++examples) {
    std::vector<float> x, z;
    for (int64_t i = 0; i < 3 * examples; ++i) x.push_back(static_cast<float>(i % 7) - 2);
    for (int64_t i = 0; i < 2 * examples; ++i) z.push_back(static_cast<float>(i % 5));
    const std::vector<std::string> inputs = {Bytes(z), Bytes(x)};
    std::vector<std::string> outputs(2, std::string(static_cast<size_t>(8 * examples), '?'));
    ASSERT_EQ((*runner)->Run({{&inputs, &outputs, 0, examples}}), absl::OkStatus());
    const std::vector<float> scores = Expected(x, z);
    for (size_t i = 0; i < scores.size(); ++i) {
      EXPECT_FLOAT_EQ(Floats(outputs[1])[i], scores[i]) << examples;
      EXPECT_FLOAT_EQ(Floats(outputs[0])[i], 2 * scores[i]) << examples;
    }
  }
}

TEST_F(GraphRunnerTest, APassTakesPartsOfSeveralRequests) {
  auto runner = Make(Trained(), 4);
  ASSERT_TRUE(runner.ok()) << runner.status();
  const std::vector<float> x1 = {1, 2, 3, 4, 5, 6, 7, 8, 9}, z1 = {1, 2, 3, 4, 5, 6};
  const std::vector<float> x2 = {9, 8, 7}, z2 = {6, 5};
  const std::vector<std::string> first = {Bytes(z1), Bytes(x1)}, second = {Bytes(z2), Bytes(x2)};
  std::vector<std::string> first_out(2, std::string(24, '\0')), second_out(2, std::string(8, '\0'));
  // The first request's first example belongs to another pass.
  ASSERT_EQ((*runner)->Run({{&first, &first_out, 1, 2}, {&second, &second_out, 0, 1}}),
            absl::OkStatus());
  std::vector<float> scores = Expected(x1, z1);
  scores[0] = scores[1] = 0;
  EXPECT_EQ(Floats(first_out[1]), scores);
  EXPECT_EQ(Floats(second_out[1]), Expected(x2, z2));
}

TEST_F(GraphRunnerTest, AGraphOfOneBatchSizeRunsSmallerPassesFilled) {
  auto runner = Make(Trained(/*batch=*/5), 32);
  ASSERT_TRUE(runner.ok()) << runner.status();
  EXPECT_EQ((*runner)->max_batch(), 5);
  const std::vector<float> x = {1, 2, 3, 4, 5, 6}, z = {1, 2, 3, 4};
  const std::vector<std::string> inputs = {Bytes(z), Bytes(x)};
  std::vector<std::string> outputs(2, std::string(16, '\0'));
  ASSERT_EQ((*runner)->Run({{&inputs, &outputs, 0, 2}}), absl::OkStatus());
  EXPECT_EQ(Floats(outputs[1]), Expected(x, z));
}

TEST_F(GraphRunnerTest, ProgramsOfAllSizesTakeTheMemoryOfTheLargest) {
  const absl::StatusOr<PredictionGraph> prediction = MakePredictionGraph(registry_, Trained());
  ASSERT_TRUE(prediction.ok()) << prediction.status();
  const std::string folder = Folder();
  const auto used = [&](int64_t max_batch) {
    const auto budget = std::make_shared<MemoryBudget>(int64_t{1} << 30);
    const auto runner = MakeGraphRunner(registry_, *prediction, ParametersOfFolder(folder),
                                        max_batch, NewCpuDevice({.threads = 1, .budget = budget}));
    EXPECT_TRUE(runner.ok()) << runner.status();
    return budget->limit() - budget->left();
  };
  const absl::StatusOr<v1::Program> largest = LowerPrediction(registry_, *prediction, 1024);
  ASSERT_TRUE(largest.ok()) << largest.status();
  // What kernels need besides is less than another batch of 512.
  EXPECT_LT(used(1024), largest->arena_bytes() * 5 / 4);
  EXPECT_GT(used(1024), used(1));
}

TEST_F(GraphRunnerTest, AGraphWithoutNamedPredictionsIsRefusedWithARemedy) {
  GraphBuilder builder(registry_, "m");
  const ValueId x = builder.Input("x", DType::kF32, {-1, 3});
  const ValueId labels = builder.Input("labels", DType::kI64, {-1});
  builder.Output("loss", builder.Op("sparse_categorical_crossentropy", {x, labels}));
  const absl::Status status = MakePredictionGraph(registry_, *builder.Build()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("besides loss: give its predictions a name"));
}

TEST_F(GraphRunnerTest, AGraphThatMixesItsExamplesIsRefused) {
  const auto served = [&](const std::string& op, int64_t axis, int64_t batch) {
    GraphBuilder builder(registry_, "m");
    const ValueId z = builder.Input("z", DType::kF32, {batch, 2});
    const ValueId x = builder.Input("x", DType::kF32, {batch, 3});
    const ValueId w = builder.Parameter("w", DType::kF32, {2, 3}, {Initializer::kNormal, 0.1});
    const ValueId b = builder.Parameter("b", DType::kF32, {2}, {Initializer::kZeros});
    const ValueId scores = builder.Op("add", {builder.Op("linear", {x, w, b}), z});
    builder.Output("scores", scores);
    builder.Output("mixed", builder.Op(op, {scores}, {{"axis", axis}}));
    return Make(*builder.Build(), 8).status();
  };
  for (const int64_t batch : {-1, 3}) {
    EXPECT_EQ(served("softmax", 1, batch), absl::OkStatus());
    const absl::Status status = served("softmax", 0, batch);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("output 'mixed' depends on the other examples"));
  }
}

TEST_F(GraphRunnerTest, AGraphThatCountsItsExamplesIsRefused) {
  GraphBuilder builder(registry_, "m");
  const ValueId x = builder.Input("x", DType::kF32, {-1, 3});
  const ValueId zeros = builder.Op("multiply_scalar", {x}, {{"value", 0.0}});
  const ValueId ones = builder.Op("add_scalar", {zeros}, {{"value", 1.0}});
  builder.Output("y", builder.Op("add", {x, builder.Op("cumsum", {ones}, {{"axis", 0}})}));
  const absl::Status status = Make(*builder.Build(), 8).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("or the place among them"));
}

TEST_F(GraphRunnerTest, WhatTakesAWholeBatchIsServedForSingleExamplesOnly) {
  GraphBuilder builder(registry_, "m");
  const ValueId x = builder.Input("x", DType::kF32, {-1, 3});
  const ValueId largest =
      builder.Op("reduce_max", {x}, {{"axes", std::vector<int64_t>{0, 1}}, {"keepdims", false}});
  const ValueId beyond = builder.Op(
      "relu", {builder.Op("add_scalar", {largest}, {{"value", -1000.0}})});  // hardly ever
  builder.Output("y", builder.Op("add", {x, beyond}));
  builder.Output("largest", largest);
  const Graph graph = *builder.Build();
  const absl::StatusOr<PredictionGraph> prediction = MakePredictionGraph(registry_, graph);
  ASSERT_TRUE(prediction.ok()) << prediction.status();
  ASSERT_EQ(prediction->notes.size(), 1u);
  EXPECT_EQ(prediction->notes[0],
            "left out, as they are inputs or not computed for each example: largest");
  const absl::Status status = Make(graph, 8).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("(reduce_max) depends on the other"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("--max-batch=1"));
  EXPECT_EQ(Make(graph, 1).status(), absl::OkStatus());
  EXPECT_TRUE(MakePredictionGraph(registry_, Trained())->notes.empty());
}

TEST_F(GraphRunnerTest, ALossThatFitsOnlyTheBatchOfTheTrainingIsNoObstacle) {
  GraphBuilder builder(registry_, "m");
  const ValueId x = builder.Input("x", DType::kF32, {-1, 3});
  const ValueId target = builder.Input("target", DType::kF32, {16, 3});
  const ValueId y = builder.Op("relu", {x});
  builder.Output("loss", builder.Op("mean_squared_error", {y, target}));
  builder.Output("y", y);
  Graph graph = *builder.Build();
  const absl::StatusOr<PredictionGraph> prediction =
      MakePredictionGraph(registry_, std::move(graph));
  ASSERT_TRUE(prediction.ok()) << prediction.status();
  EXPECT_EQ(prediction->signature.inputs.size(), 1u);
}

TEST_F(GraphRunnerTest, InputsSayWhichIntegersTheyTake) {
  GraphBuilder builder(registry_, "m");
  const ValueId ids = builder.Input("ids", DType::kI64, {-1, 4});
  const ValueId table = builder.Parameter("table", DType::kF32, {7, 2}, {Initializer::kOnes});
  builder.Output("y", builder.Op("embedding", {ids, table}));
  const absl::StatusOr<PredictionGraph> prediction =
      MakePredictionGraph(registry_, *builder.Build());
  ASSERT_TRUE(prediction.ok()) << prediction.status();
  const std::vector<AcceptedIntegers>& accepted = prediction->signature.inputs[0].accepted;
  ASSERT_EQ(accepted.size(), 1u);
  EXPECT_EQ(accepted[0].low, 0);
  EXPECT_EQ(accepted[0].high, 6);
  EXPECT_THAT(accepted[0].reader, HasSubstr("embedding"));
}

TEST_F(GraphRunnerTest, AnInputWithoutTheDimensionOfTheBatchIsRefusedByName) {
  GraphBuilder builder(registry_, "m");
  const ValueId x = builder.Input("x", DType::kF32, {-1, 3});
  const ValueId table = builder.Input("table", DType::kF32, {3});
  builder.Output("y", builder.Op("add", {x, table}));
  const absl::Status status = MakePredictionGraph(registry_, *builder.Build()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("input 'table' is f32[3]"));
}

}  // namespace
}  // namespace espalier
