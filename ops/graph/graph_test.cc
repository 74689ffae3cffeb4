// Graphs: building, binding, the protobuf message and its validation, differentiation.
#include "ops/graph/graph.h"

#include <google/protobuf/util/message_differencer.h>

#include <functional>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/graph/autodiff.h"
#include "ops/graph/builder.h"
#include "ops/graph/graph_proto.h"
#include "ops/operators/register_all.h"

namespace espalier {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using ::testing::AllOf;
using ::testing::HasSubstr;

class GraphTest : public ::testing::Test {
 protected:
  GraphTest() { RegisterAllOperators(registry_); }

  // labels and x -> linear -> relu -> linear -> loss; the first weight is used twice.
  Graph Mlp() {
    GraphBuilder b(registry_, "mlp");
    const ValueId x = b.Input("x", DType::kF32, {-1, 8});
    const ValueId labels = b.Input("labels", DType::kI64, {-1});
    const ValueId w = b.Parameter("w", DType::kF32, {8, 8}, {Initializer::kNormal, 0.1});
    const ValueId v = b.Parameter("v", DType::kF32, {4, 8}, {Initializer::kNormal, 0.1});
    const ValueId frozen =
        b.Parameter("frozen", DType::kF32, {8}, {Initializer::kOnes, 0}, /*trainable=*/false);
    ValueId h = b.Op("relu", {b.Op("linear", {x, w}, {}, "first")});
    h = b.Op("multiply", {b.Op("linear", {h, w}, {}, "second"), frozen});
    const ValueId logits = b.Op("linear", {h, v}, {}, "head");
    b.Output("loss", b.Op("sparse_categorical_crossentropy", {logits, labels}, {}, "loss"));
    b.Output("accuracy", b.Op("accuracy", {logits, labels}));
    auto graph = b.Build();
    EXPECT_TRUE(graph.ok()) << graph.status();
    return *std::move(graph);
  }

  OpRegistry registry_;
};

TEST_F(GraphTest, BindingInfersTypesForTheBatchSize) {
  Graph graph = Mlp();
  ASSERT_TRUE(BindAndInfer(registry_, 32, &graph).ok());
  EXPECT_EQ(graph.value(graph.FindValue("head")).type, (TensorType{DType::kF32, {32, 4}}));
  EXPECT_EQ(graph.value(graph.FindValue("loss")).type, (TensorType{DType::kF32, {}}));
  for (const Node& node : graph.nodes()) {
    if (node.op != "sparse_categorical_crossentropy") continue;
    EXPECT_EQ(node.attributes.Int("count"), 32);
  }
  // Binding to another size starts over.
  Graph again = Mlp();
  ASSERT_TRUE(BindAndInfer(registry_, 3, &again).ok());
  EXPECT_EQ(again.value(again.FindValue("head")).type.dims[0], 3);
}

TEST_F(GraphTest, BindingNamesTheNodeThatDoesNotFit) {
  GraphBuilder b(registry_, "bad");
  const ValueId x = b.Input("x", DType::kF32, {-1, 7});
  const ValueId w = b.Parameter("w", DType::kF32, {4, 8}, {});
  b.Op("linear", {x, w}, {}, "narrow");
  Graph graph = *b.Build();
  const absl::Status status = BindAndInfer(registry_, 2, &graph);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("narrow"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("[4, 8]"));
}

TEST_F(GraphTest, ErrorsNameTheLineThatMadeTheNode) {
  v1::Graph message = ToProto(Mlp());
  for (v1::Node& node : *message.mutable_nodes()) node.set_source("train.py:" + node.name());
  Graph graph = *FromProto(registry_, message);
  graph.mutable_value(graph.FindValue("v")).type.dims = {4, 7};
  EXPECT_THAT(std::string(BindAndInfer(registry_, 2, &graph).message()),
              HasSubstr("node 'head' (linear, train.py:head): "));
  graph = *FromProto(registry_, message);
  ASSERT_EQ(BindAndInfer(registry_, 2, &graph), absl::OkStatus());
  const TrainingGraph training = *Differentiate(registry_, graph);
  for (const Node& node : training.graph.nodes()) {
    if (node.name != "head.grad") continue;
    EXPECT_EQ(node.source, "train.py:head");
  }
  message.mutable_nodes(0)->set_op("summon");
  EXPECT_THAT(std::string(FromProto(registry_, message).status().message()),
              HasSubstr("node 'first' (summon, train.py:first): unknown operator"));
  message.mutable_nodes(0)->set_source(std::string(1025, 'x'));
  EXPECT_THAT(std::string(FromProto(registry_, message).status().message()),
              AllOf(HasSubstr("'source' has 1025 bytes"), HasSubstr("at most 1024")));
}

TEST_F(GraphTest, ProtoRoundTripKeepsEverything) {
  const Graph graph = Mlp();
  const v1::Graph message = ToProto(graph);
  auto back = FromProto(registry_, message);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(MessageDifferencer::Equals(ToProto(*back), message));
  Graph a = graph, b = *back;
  ASSERT_TRUE(BindAndInfer(registry_, 5, &a).ok());
  ASSERT_TRUE(BindAndInfer(registry_, 5, &b).ok());
  EXPECT_TRUE(MessageDifferencer::Equals(ToProto(a), ToProto(b)));
}

TEST_F(GraphTest, MalformedMessagesAreRefusedWithLocation) {
  const v1::Graph good = ToProto(Mlp());
  const struct {
    const char* word;
    std::function<void(v1::Graph*)> spoil;
  } cases[] = {
      {"version", [](v1::Graph* g) { g->set_format_version(9); }},
      {"used twice", [](v1::Graph* g) { g->mutable_values(1)->set_name("x"); }},
      {"name", [](v1::Graph* g) { g->mutable_nodes(0)->clear_name(); }},
      {"unknown operator", [](v1::Graph* g) { g->mutable_nodes(0)->set_op("summon"); }},
      {"unknown operator", [](v1::Graph* g) { g->mutable_nodes(0)->set_op("linear_grad"); }},
      {"input index", [](v1::Graph* g) { g->mutable_nodes(0)->set_inputs(0, 1000); }},
      {"output index", [](v1::Graph* g) { g->mutable_nodes(0)->set_outputs(0, -1); }},
      {"topological", [](v1::Graph* g) { g->mutable_nodes()->SwapElements(0, 1); }},
      {"already", [](v1::Graph* g) { g->mutable_nodes(0)->set_outputs(0, 0); }},
      {"kind", [](v1::Graph* g) { g->mutable_values(0)->clear_kind(); }},
      {"give 'data'",
       [](v1::Graph* g) {
         g->mutable_values(1)->mutable_initializer()->set_kind(v1::Initializer::STORED);
       }},
      {"dtype", [](v1::Graph* g) { g->mutable_values(0)->mutable_type()->clear_dtype(); }},
      {"dims", [](v1::Graph* g) { g->mutable_values(0)->mutable_type()->set_dims(0, -7); }},
      {"value index", [](v1::Graph* g) { g->mutable_outputs(0)->set_value(999); }},
      {"has no value", [](v1::Graph* g) { (*g->mutable_nodes(0)->mutable_attributes())["a"]; }},
  };
  for (const auto& test : cases) {
    v1::Graph bad = good;
    test.spoil(&bad);
    const auto graph = FromProto(registry_, bad);
    ASSERT_FALSE(graph.ok()) << test.word;
    EXPECT_THAT(std::string(graph.status().message()), HasSubstr(test.word));
  }
}

TEST_F(GraphTest, OverflowingShapesAreRefused) {
  GraphBuilder b(registry_, "huge");
  const ValueId x = b.Input("x", DType::kF32, {int64_t{1} << 40, int64_t{1} << 40});
  b.Op("relu", {x}, {}, "big");
  Graph graph = *b.Build();
  EXPECT_THAT(std::string(BindAndInfer(registry_, 1, &graph).message()), HasSubstr("2^46"));
}

TEST_F(GraphTest, DifferentiationReachesEveryTrainableParameterOnce) {
  Graph graph = Mlp();
  ASSERT_TRUE(BindAndInfer(registry_, 4, &graph).ok());
  const auto training = Differentiate(registry_, graph);
  ASSERT_TRUE(training.ok()) << training.status();
  std::set<std::string> names;
  for (const auto& [parameter, gradient] : training->gradients) {
    names.insert(training->graph.value(parameter).name);
    EXPECT_EQ(training->graph.value(parameter).type, training->graph.value(gradient).type);
    EXPECT_EQ(training->gradient_of[gradient], parameter);
  }
  EXPECT_EQ(names, (std::set<std::string>{"v", "w"}));  // not "frozen"
  int sums = 0;
  std::set<ValueId> ready;
  for (size_t n = 0; n < training->graph.nodes().size(); ++n) {
    const Node& node = training->graph.node(static_cast<NodeId>(n));
    sums += node.op == "add_n";
    if (static_cast<NodeId>(n) < training->first_backward) continue;
    EXPECT_NE(node.op, "accuracy_grad");
    for (ValueId v : node.inputs) {
      if (v == kNoValue || training->gradient_of[v] == kNoValue) continue;
      EXPECT_TRUE(ready.count(v)) << node.name << " reads a gradient before it is computed";
    }
    for (ValueId v : node.outputs) ready.insert(v);
  }
  EXPECT_EQ(sums, 1);  // w, which two nodes read
}

TEST_F(GraphTest, DifferentiationRefusesGraphsWithoutALossOrAPath) {
  GraphBuilder b(registry_, "no loss");
  b.Output("y", b.Op("relu", {b.Input("x", DType::kF32, {2})}));
  Graph graph = *b.Build();
  ASSERT_TRUE(BindAndInfer(registry_, 1, &graph).ok());
  EXPECT_THAT(std::string(Differentiate(registry_, graph).status().message()), HasSubstr("'loss'"));
  graph.outputs = {{"loss", graph.FindValue("relu_1")}};
  EXPECT_THAT(std::string(Differentiate(registry_, graph).status().message()), HasSubstr("scalar"));
}

TEST_F(GraphTest, DifferentiationRefusesAGradientThatWouldBeMissing) {
  const auto refusal = [&](const std::string& reduction, bool trained_target) {
    GraphBuilder b(registry_, "g");
    const ValueId x = b.Input("x", DType::kF32, {-1, 4});
    const ValueId ids = b.Input("ids", DType::kI64, {-1, 4});
    const ValueId w = b.Parameter("w", DType::kF32, {4, 4}, {Initializer::kOnes});
    const ValueId y = b.Op("linear", {x, w});
    const ValueId moved =
        b.Op("scatter_elements", {x, ids, y}, {{"reduction", reduction}}, "moved");
    const ValueId target = trained_target ? b.Op("relu", {y}) : x;
    b.Output("loss", b.Op("categorical_crossentropy", {moved, target}, {}, "loss"));
    Graph graph = *b.Build();
    EXPECT_EQ(BindAndInfer(registry_, 4, &graph), absl::OkStatus());
    return std::string(Differentiate(registry_, graph).status().message());
  };
  EXPECT_EQ(refusal("add", false), "");
  EXPECT_EQ(refusal("none", false), "");
  EXPECT_THAT(refusal("maximum", false), AllOf(HasSubstr("'moved'"), HasSubstr("'maximum'")));
  EXPECT_THAT(refusal("multiply", false), HasSubstr("no gradient"));
  EXPECT_THAT(refusal("add", true), HasSubstr("no gradient for its input 'target'"));
}

TEST_F(GraphTest, NoGradientFlowsThroughStopGradient) {
  const auto differentiate = [&](bool direct) {
    GraphBuilder b(registry_, "g");
    const ValueId x = b.Input("x", DType::kF32, {-1, 4});
    const ValueId w = b.Parameter("w", DType::kF32, {4, 4}, {Initializer::kOnes});
    const ValueId v = b.Parameter("v", DType::kF32, {4, 4}, {Initializer::kOnes});
    const ValueId stopped = b.Op("stop_gradient", {b.Op("linear", {x, w}, {}, "of_w")});
    const ValueId scaled = b.Op("multiply", {stopped, b.Op("linear", {x, direct ? w : v})});
    b.Output("loss", b.Op("mean_squared_error", {scaled, x}, {}, "loss"));
    Graph graph = *b.Build();
    EXPECT_EQ(BindAndInfer(registry_, 4, &graph), absl::OkStatus());
    return *Differentiate(registry_, graph);
  };
  // Of w only the factor beside the stopped one is differentiated.
  for (const bool direct : {false, true}) {
    const TrainingGraph training = differentiate(direct);
    ASSERT_EQ(training.gradients.size(), 1u);
    EXPECT_EQ(training.graph.value(training.gradients[0].parameter).name, direct ? "w" : "v");
    for (NodeId n = training.first_backward; n < static_cast<NodeId>(training.graph.nodes().size());
         ++n) {
      EXPECT_NE(training.graph.node(n).name, "of_w.grad");
      EXPECT_NE(training.graph.node(n).op, "stop_gradient_grad");
    }
  }
  GraphBuilder b(registry_, "g");
  const ValueId w = b.Parameter("w", DType::kF32, {}, {Initializer::kOnes});
  b.Output("loss", b.Op("identity_loss", {b.Op("stop_gradient", {w})}));
  Graph graph = *b.Build();
  ASSERT_EQ(BindAndInfer(registry_, 1, &graph), absl::OkStatus());
  EXPECT_THAT(std::string(Differentiate(registry_, graph).status().message()),
              HasSubstr("depends on no trainable parameter"));
}

TEST_F(GraphTest, TheBuilderKeepsItsFirstError) {
  GraphBuilder b(registry_, "twice");
  b.Input("x", DType::kF32, {1});
  b.Input("x", DType::kF32, {1});
  b.Op("nothing", {});
  EXPECT_THAT(std::string(b.Build().status().message()), HasSubstr("used twice"));
}

}  // namespace
}  // namespace espalier
