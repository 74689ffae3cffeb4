#include "server/jobs/prepare_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>

#include "ops/cpu/register_all.h"
#include "ops/graph/builder.h"
#include "ops/graph/graph_proto.h"
#include "ops/kernel/kernel.h"
#include "ops/operators/register_all.h"
#include "ops/rewrite/proof.h"
#include "planner/planner.h"
#include "server/jobs/add_example_weights.h"
#include "server/jobs/add_loss_and_metrics.h"
#include "storage/example_weights.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr char kSparse[] = "sparse_categorical_crossentropy";

class AddLossAndMetricsTest : public ::testing::Test {
 protected:
  AddLossAndMetricsTest() {
    RegisterAllOperators(registry_);
    RegisterCpuKernels(kernels_);
    labels_.find = [this](const std::string& input) -> std::optional<TensorType> {
      const auto found = columns_.find(input);
      if (found == columns_.end()) return std::nullopt;
      return found->second;
    };
  }

  // As the importer returns it: a dynamic batch and no loss.
  Graph Model(const std::string& output = "scores") {
    GraphBuilder builder(registry_, "m");
    const ValueId x = builder.Input("x", DType::kF32, {-1, 6});
    const ValueId w = builder.Parameter("w", DType::kF32, {3, 6}, {Initializer::kNormal, 0.1});
    builder.Output(output, builder.Op("linear", {x, w}));
    return *builder.Build();
  }
  absl::StatusOr<Graph> TwoOutputs() {
    GraphBuilder builder(registry_, "m");
    const ValueId x = builder.Input("x", DType::kF32, {-1, 3});
    builder.Output("main", builder.Op("relu", {x}));
    builder.Output("value", builder.Op("relu", {x}));
    return builder.Build();
  }
  absl::Status Add(const Objective& objective, Graph* graph) {
    auto notes = AddLossAndMetrics(registry_, objective, labels_, 8, graph);
    if (notes.ok()) notes_ = *notes;
    return notes.status();
  }
  std::string Error(const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }

  OpRegistry registry_;
  KernelRegistry kernels_;
  std::map<std::string, TensorType> columns_;  // input -> type of an example
  LabelColumns labels_;
  std::vector<std::string> notes_;
};

TEST_F(AddLossAndMetricsTest, ClassificationGetsOneLabelPerRowLossAndMetric) {
  Graph graph = Model();
  labels_.classes = DType::kI64;
  ASSERT_EQ(Add({{{kSparse}}, {{"accuracy"}}}, &graph), absl::OkStatus());
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
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("taken as logits")));
}

TEST_F(AddLossAndMetricsTest, RegressionLabelsHaveTheShapeOfTheOutput) {
  Graph graph = Model("loss");  // a reserved name
  ASSERT_EQ(Add({{{"mean_squared_error"}}, {}}, &graph), absl::OkStatus());
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

// What was planned is what is trained.
TEST_F(AddExampleWeightsTest, PlansAreForTheGraphWithAndWithoutThem) {
  // The user's model may have a tensor of that name.
  const auto fingerprints = [this](int64_t size) {
    GraphBuilder builder(registry_, "m");
    const ValueId x = builder.Input("x", DType::kF32, {-1, size});
    const ValueId own = builder.Input("example_weights", DType::kF32, {-1, size});
    const ValueId labels = builder.Input("labels", DType::kI64, {-1});
    const ValueId w = builder.Parameter("w", DType::kF32, {3, size}, {Initializer::kNormal, 0.1});
    const ValueId scores = builder.Op("linear", {builder.Op("multiply", {x, own}), w});
    builder.Output("loss", builder.Op(kSparse, {scores, labels}));
    graph_ = *builder.Build();
    EXPECT_EQ(BindAndInfer(registry_, 8, &graph_), absl::OkStatus());
    const std::string before = GraphFingerprint(graph_);
    columns_ = {{"x", "x"}, {"example_weights", "w"}, {"labels", "y"}};
    AddExampleWeights(registry_, 8, &graph_, &columns_);
    EXPECT_EQ(columns_.at("example_weights"), "w");
    EXPECT_TRUE(ExampleWeightsColumn::Parse(columns_.at("example_weights.2")).has_value());
    return std::pair(before, GraphFingerprint(graph_));
  };
  const auto [planned, trained] = fingerprints(6);
  EXPECT_EQ(planned, trained);
  EXPECT_NE(planned, fingerprints(7).first);
}

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

TEST_F(AddExampleWeightsTest, WeightsOfClassesAreInTheDivisorIfTheyAreKnown) {
  const auto add = [this](const std::function<ValueId(GraphBuilder&)>& weights) {
    return Add([&](GraphBuilder& b, ValueId scores, ValueId labels) {
      return b.Op(kSparse, {scores, labels, weights(b)}, {{"mean_over", std::string("counted")}});
    });
  };
  const auto constant = [](std::vector<float> elements) {
    return [elements](GraphBuilder& b) {
      std::string bytes(reinterpret_cast<const char*>(elements.data()), elements.size() * 4);
      return b.Constant("c", DType::kF32, {3}, std::move(bytes));
    };
  };
  EXPECT_TRUE(add(constant({0.5, 0, 2})).all);
  const auto column = ExampleWeightsColumn::Parse(columns_["example_weights"]);
  ASSERT_TRUE(column.has_value());
  EXPECT_THAT(column->class_weights, ElementsAre(0.5, 0, 2));
  EXPECT_EQ(column->labels, "y");
  EXPECT_EQ(column->ignore_index, -100);
  EXPECT_EQ(Head().attributes.String("mean_over"), "all");
  EXPECT_NE(Head().inputs[2], kNoValue) << "the loss multiplies with them as before";
  for (const auto& unknown : {std::function<ValueId(GraphBuilder&)>(constant({0.5, -1, 2})),
                              std::function<ValueId(GraphBuilder&)>([](GraphBuilder& b) {
                                return b.Parameter("c", DType::kF32, {3}, {Initializer::kOnes});
                              })}) {
    EXPECT_FALSE(add(unknown).all);
    EXPECT_EQ(columns_.count("example_weights"), 0u);
    EXPECT_EQ(Head().attributes.String("mean_over"), "counted");
  }
}

TEST_F(AddExampleWeightsTest, SumOfLossesIsWeighted) {
  const WeightedHeads heads = Add([](GraphBuilder& b, ValueId scores, ValueId labels) {
    const ValueId loss = b.Op("sparse_categorical_crossentropy", {scores, labels});
    return b.Op("add", {loss, b.Op("mean_squared_error", {scores, scores})});
  });
  EXPECT_TRUE(heads.all);
}

TEST_F(AddExampleWeightsTest, LossOfSeveralOperatorsIsNotWeighted) {
  const WeightedHeads heads = Add([](GraphBuilder& b, ValueId scores, ValueId labels) {
    const ValueId loss = b.Op("sparse_categorical_crossentropy", {scores, labels});
    return b.Op("add",
                {loss, b.Op("reduce_sum", {scores}, {{"axes", std::vector<int64_t>{0, 1}}})});
  });
  EXPECT_FALSE(heads.all);
  EXPECT_EQ(heads.unweighted, "loss");
}

TEST_F(AddLossAndMetricsTest, WeightsOfClassesAreAnInputOfTheLoss) {
  const auto loss = [this](LossOrMetric head, Graph* graph) -> const Node& {
    EXPECT_EQ(Add({{std::move(head)}, {{"accuracy"}}}, graph), absl::OkStatus());
    EXPECT_EQ(BindAndInfer(registry_, 8, graph), absl::OkStatus());
    return graph->node(graph->value(graph->FindOutput("loss")).producer);
  };
  Graph graph = Model();
  const Node& plain = loss({.op = kSparse, .class_weights = {0.5, 0, 2}}, &graph);
  ASSERT_EQ(plain.inputs.size(), 3u);
  const Value& weights = graph.value(plain.inputs[2]);
  EXPECT_EQ(weights.kind, ValueKind::kConstant);
  float elements[3];
  ASSERT_EQ(weights.constant.size(), sizeof(elements));
  std::memcpy(elements, weights.constant.data(), sizeof(elements));
  EXPECT_THAT(elements, ElementsAre(0.5, 0, 2));
  EXPECT_EQ(plain.attributes.String("mean_over"), "counted") << "as PyTorch";
  Graph other = Model();
  EXPECT_EQ(loss({.op = kSparse,
                  .attributes = {{"mean_over", std::string("all")}},
                  .class_weights = {0.5, 0, 2}},
                 &other)
                .attributes.String("mean_over"),
            "all")
      << "as Keras, if the user says so";
  Graph refused = Model();
  EXPECT_THAT(Error(Add({{{.op = kSparse, .class_weights = {1, 2}}}, {}}, &refused)),
              AllOf(HasSubstr("2 class_weights"), HasSubstr("output 'scores'"),
                    HasSubstr("3 classes in dimension 1; give one for each class")));
  EXPECT_THAT(Error(Add({{{.op = kSparse, .class_weights = {1, 2, 3, 4, 5}}}, {}}, &refused)),
              HasSubstr("3 classes in dimension 1; there is no class 4; give one for each class"));
  EXPECT_THAT(
      Error(Add({{{.op = "mean_squared_error", .class_weights = {1, 2, 3}}}, {}}, &refused)),
      AllOf(HasSubstr("takes no class_weights"), HasSubstr(kSparse)));
}

TEST(ObjectiveFromProto, WeightsOfClassesAreNumbersOfWhichOneCounts) {
  const auto read = [](std::vector<float> weights, bool of_metric = false) {
    v1::Objective objective;
    v1::Head* head = objective.add_losses();
    head->set_op(kSparse);
    if (of_metric) head = objective.add_metrics();
    head->set_op(kSparse);
    head->mutable_class_weights()->Assign(weights.begin(), weights.end());
    return ObjectiveFromProto(objective, "", {});
  };
  ASSERT_TRUE(read({0, 2}).ok());
  EXPECT_THAT(read({0, 2})->losses[0].class_weights, ElementsAre(0, 2));
  for (const auto& [weights, message] :
       {std::pair(std::vector<float>{1, NAN}, "losses[0].class_weights[1] is nan"),
        std::pair(std::vector<float>{INFINITY, 1}, "class_weights[0] is inf"),
        std::pair(std::vector<float>{1, -1}, "class_weights[1] is -1; accepted"),
        std::pair(std::vector<float>{0, 0}, "all are 0")}) {
    EXPECT_THAT(std::string(read(weights).status().message()), HasSubstr(message));
  }
  EXPECT_THAT(std::string(read({1, 2}, true).status().message()),
              HasSubstr("metrics[0].class_weights: only losses have some"));
}

TEST_F(AddLossAndMetricsTest, ErrorsNameWhatIsWrongAndWhatThereIs) {
  Graph graph = Model();
  EXPECT_THAT(Error(Add({{{"hinge"}}, {}}, &graph)),
              AllOf(HasSubstr("hinge"), HasSubstr("mean_squared_error")));
  EXPECT_THAT(Error(Add({{{"mean_squared_error"}}, {{"f1"}}}, &graph)),
              AllOf(HasSubstr("f1"), HasSubstr("accuracy")));
  EXPECT_THAT(Error(Add({{{"sparse_categorical_cross_entropy"}}, {}}, &graph)),
              EndsWith("did you mean 'sparse_categorical_crossentropy'?"));
  EXPECT_THAT(Error(Add({{{"mean_squared_error"}}, {{"acuracy"}}}, &graph)),
              EndsWith("did you mean 'accuracy'?"));
  EXPECT_THAT(Error(Add({{{kSparse, "logits"}}, {}}, &graph)),
              AllOf(HasSubstr("'logits'"), HasSubstr("scores")));
  GraphBuilder builder(registry_, "fixed");
  builder.Output("y", builder.Op("relu", {builder.Input("x", DType::kF32, {1, 6})}));
  Graph fixed = *builder.Build();
  EXPECT_THAT(Error(Add({{{"mean_squared_error"}}, {}}, &fixed)),
              HasSubstr("dynamic first dimension"));
}

TEST_F(AddLossAndMetricsTest, TheWeightedSumOfSeveralLossesIsMinimized) {
  GraphBuilder builder(registry_, "m");
  const ValueId x = builder.Input("x", DType::kF32, {-1, 6});
  for (const char* name : {"main", "aux", "value"}) {
    const int64_t outputs = std::string(name) == "value" ? 1 : 3;
    const ValueId w = builder.Parameter(name, DType::kF32, {outputs, 6}, {Initializer::kNormal, 1});
    builder.Output(name, builder.Op("linear", {x, w}));
  }
  columns_["labels"] = {DType::kI64, {}};
  columns_["labels.value"] = {DType::kF32, {}};
  Graph graph = *builder.Build();
  ASSERT_EQ(Add({{{kSparse}, {kSparse, "aux", 0.3}, {"mean_squared_error", "value", 2}},
                 {{"accuracy"}, {"accuracy", "aux"}}},
                &graph),
            absl::OkStatus());
  ASSERT_TRUE(BindAndInfer(registry_, 8, &graph).ok());
  const auto value = [&](const std::string& output) {
    auto bytes = Evaluate(kernels_, graph, 1);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    const ValueId v = graph.FindOutput(output);
    EXPECT_NE(v, kNoValue) << output;
    float number = 0;
    if (bytes.ok() && v != kNoValue) std::memcpy(&number, (*bytes)[v].data(), sizeof(number));
    return number;
  };
  EXPECT_GT(value("loss.aux"), 0);
  EXPECT_GT(value("loss.value"), 0);
  EXPECT_NEAR(value("loss"), value("loss.main") + 0.3 * value("loss.aux") + 2 * value("loss.value"),
              1e-5);
  EXPECT_NE(graph.FindOutput("accuracy.aux"), kNoValue);
  EXPECT_EQ(graph.value(graph.FindValue("labels.value")).type, (TensorType{DType::kF32, {8}}))
      << "a column of one number for each example, for an output [batch, 1]";
  // Labels of one shape for two outputs are shared, of two shapes are not.
  columns_.erase("labels.value");
  Graph shared = *TwoOutputs();
  EXPECT_THAT(Error(Add({{{kSparse}, {"mean_squared_error", "value"}}, {}}, &shared)),
              HasSubstr("labels.OUTPUT"));
}

TEST_F(AddLossAndMetricsTest, ClassesAreWhereTheLabelsOrASoftmaxSay) {
  const auto logits = [&](bool softmax, Dims dims) {
    GraphBuilder builder(registry_, "m");
    ValueId y = builder.Op("relu", {builder.Input("x", DType::kF32, std::move(dims))});
    if (softmax) y = builder.Op("softmax", {y}, {{"axis", int64_t{1}}});
    builder.Output("y", y);
    return *builder.Build();
  };
  const auto loss_reads = [&](Graph graph, LossOrMetric loss) -> std::string {
    const absl::Status added = Add({{std::move(loss)}, {}}, &graph);
    if (!added.ok()) return std::string(added.message());
    const absl::Status bound = BindAndInfer(registry_, 2, &graph);
    if (!bound.ok()) return std::string(bound.message());
    const Node& node = graph.node(graph.value(graph.FindOutput("loss")).producer);
    return ToString(graph.value(node.inputs[0]).type.dims);
  };
  columns_["labels"] = {DType::kI64, {5, 7}};
  EXPECT_EQ(loss_reads(logits(false, {-1, 3, 5, 7}), {kSparse}), "[2, 5, 7, 3]");
  EXPECT_EQ(loss_reads(logits(true, {-1, 3, 5, 7}), {kSparse}), "[2, 5, 7, 3]");
  EXPECT_EQ(loss_reads(logits(false, {-1, 5, 7, 3}), {kSparse}), "[2, 5, 7, 3]");
  EXPECT_EQ(loss_reads(logits(false, {-1, 5, 7, 3}), {"negative_log_likelihood"}), "[2, 3, 5, 7]");
  columns_["labels"] = {DType::kI64, {4, 4}};
  EXPECT_THAT(loss_reads(logits(false, {-1, 4, 4, 4}), {kSparse}), HasSubstr("axis=1"));
  EXPECT_EQ(loss_reads(logits(false, {-1, 4, 4, 4}), {kSparse, "", 1, {{"axis", int64_t{1}}}}),
            "[2, 4, 4, 4]");
}

TEST_F(AddLossAndMetricsTest, OneClassIsNoClassification) {
  GraphBuilder builder(registry_, "m");
  builder.Output("y", builder.Op("sigmoid", {builder.Input("x", DType::kF32, {-1, 1})}));
  Graph graph = *builder.Build();
  EXPECT_THAT(Error(Add({{{kSparse}}, {}}, &graph)), HasSubstr("binary_crossentropy"));
}

TEST_F(AddLossAndMetricsTest, LabelsMayHaveDimensionsOfOne) {
  columns_["labels"] = {DType::kI32, {1}};
  Graph graph = Model();
  ASSERT_EQ(Add({{{kSparse}}, {{"accuracy"}}}, &graph), absl::OkStatus());
  ASSERT_EQ(BindAndInfer(registry_, 8, &graph), absl::OkStatus());
  EXPECT_EQ(graph.value(graph.FindValue(kLabelsInput)).type, (TensorType{DType::kI32, {8, 1}}));
}

TEST_F(AddLossAndMetricsTest, AModelMayComputeItsLossItself) {
  GraphBuilder builder(registry_, "m");
  const ValueId x = builder.Input("x", DType::kF32, {-1, 6});
  const ValueId labels = builder.Input("labels", DType::kI64, {-1});
  const ValueId w = builder.Parameter("w", DType::kF32, {3, 6}, {Initializer::kNormal, 0.1});
  const ValueId scores = builder.Op("linear", {x, w});
  const ValueId log = builder.Op("log_softmax", {scores}, {{"axis", int64_t{1}}});
  builder.Output("nll", builder.Op("negative_log_likelihood", {log, labels}));
  builder.Output("scores", scores);
  Graph graph = *builder.Build();
  ASSERT_EQ(Add({{{"identity_loss"}}, {{"accuracy", "scores"}}}, &graph), absl::OkStatus());
  EXPECT_EQ(BindAndInfer(registry_, 8, &graph), absl::OkStatus());
  EXPECT_THAT(Error(Add({{{kSparse, "nll"}}, {}}, &graph)), HasSubstr("identity_loss"));
}

// FlexFlow's own example: the model ends in a softmax, and the loss is named behind it.
TEST(ReadSubmittedGraph, ASoftmaxBeforeTheLossCountsOnce) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  KernelRegistry kernels;
  RegisterCpuKernels(kernels);
  const auto loss = [&](bool softmax) {
    GraphBuilder b(registry, "m");
    const ValueId x = b.Input("x", DType::kF32, {-1, 6});
    const ValueId labels = b.Input("labels", DType::kI64, {-1});
    const ValueId w = b.Parameter("w", DType::kF32, {3, 6}, {Initializer::kNormal, 1});
    ValueId y = b.Op("linear", {x, w});
    if (softmax) y = b.Op("softmax", {y});
    b.Output("loss", b.Op(kSparse, {y, labels}));
    auto model = ReadSubmittedGraph(registry, ToProto(*b.Build()), 8);
    EXPECT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->notes.size(), softmax ? 1u : 0u);
    EXPECT_EQ(BindAndInfer(registry, 8, &model->graph), absl::OkStatus());
    auto bytes = Evaluate(kernels, model->graph, 5);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    float value = 0;
    std::memcpy(&value, (*bytes)[model->graph.FindOutput("loss")].data(), sizeof(value));
    return value;
  };
  EXPECT_FLOAT_EQ(loss(true), loss(false));
}

TEST(ReadSubmittedGraph, NoOutputIsDroppedWithoutAWord) {
  OpRegistry registry;
  RegisterAllOperators(registry);
  const auto read = [&](const std::string& extra) {
    GraphBuilder b(registry, "m");
    const ValueId x = b.Input("x", DType::kF32, {-1, 6});
    const ValueId w = b.Parameter("w", DType::kF32, {3, 6}, {Initializer::kNormal, 0.1});
    const ValueId unused = b.Parameter("unused", DType::kF32, {3, 6}, {Initializer::kOnes});
    const ValueId y = b.Op("linear", {x, w});
    const ValueId largest = b.Op("reduce_max", {y});
    const ValueId other = b.Op("linear", {x, unused});
    b.Output("loss", b.Op("mean_squared_error", {y, b.Op("stop_gradient", {other})}));
    b.Output("probabilities", b.Op("softmax", {y}));
    b.Output("other", other);
    b.Output("largest", largest);
    b.Output("on_purpose", b.Op("relu", {y}));
    b.Metadata(kModelOutputsMetadata, "predictions,on_purpose");
    if (!extra.empty()) b.Output(extra, b.Op("cast", {largest}, {{"to", extra}}));
    return ReadSubmittedGraph(registry, ToProto(*b.Build()), 8);
  };
  auto model = read("");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(model->notes, ElementsAre(HasSubstr("'probabilities'"), HasSubstr("'other'")));
  Graph& graph = model->graph;
  const Node& report = graph.node(graph.value(graph.FindOutput("largest")).producer);
  EXPECT_TRUE(registry.Find(report.op)->is_loss) << report.op << " is not reported";
  EXPECT_EQ(BindAndInfer(registry, 8, &graph), absl::OkStatus());
  std::vector<std::string> notes;
  NoteUnreached(registry, graph, &notes);
  EXPECT_THAT(notes, ElementsAre(AllOf(HasSubstr("1 parameter"), HasSubstr("unused"))));
  EXPECT_THAT(std::string(read("i64").status().message()),
              AllOf(HasSubstr("'i64'"), HasSubstr("f32 scalar")));
}

}  // namespace
}  // namespace espalier
