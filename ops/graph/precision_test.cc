// Where mixed precision inserts casts, and what it leaves alone.
#include "ops/graph/precision.h"

#include <cstring>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/graph/autodiff.h"
#include "ops/graph/builder.h"
#include "ops/operators/register_all.h"

namespace espalier {
namespace {

using ::testing::HasSubstr;

class PrecisionTest : public ::testing::Test {
 protected:
  PrecisionTest() { RegisterAllOperators(registry_); }

  Graph Bound(GraphBuilder& b) {
    auto graph = b.Build();
    EXPECT_TRUE(graph.ok()) << graph.status();
    const absl::Status bound = BindAndInfer(registry_, 4, &*graph);
    EXPECT_TRUE(bound.ok()) << bound;
    return *std::move(graph);
  }

  Graph Cast(const Graph& graph, DType compute) {
    auto cast = WithPrecision(registry_, graph, compute);
    EXPECT_TRUE(cast.ok()) << cast.status();
    return cast.ok() ? *std::move(cast) : Graph();
  }

  static DType TypeOf(const Graph& graph, const std::string& value) {
    const ValueId v = graph.FindValue(value);
    return v == kNoValue ? DType::kInvalid : graph.value(v).type.dtype;
  }
  static int Casts(const Graph& graph) {
    int count = 0;
    for (const Node& node : graph.nodes()) count += node.op == "cast";
    return count;
  }

  OpRegistry registry_;
};

TEST_F(PrecisionTest, MatmulsRunIn16BitsLossesAndNormsInF32) {
  GraphBuilder b(registry_, "block");
  const ValueId x = b.Input("x", DType::kF32, {-1, 8});
  const ValueId labels = b.Input("labels", DType::kI64, {-1});
  const ValueId w = b.Parameter("w", DType::kF32, {8, 8}, {});
  const ValueId bias = b.Parameter("bias", DType::kF32, {8}, {});
  const ValueId h = b.Op("relu", {b.Op("linear", {x, w, bias}, {}, "first")}, {}, "relu");
  const ValueId n = b.Op("layer_norm", {h}, {}, "norm");
  const ValueId logits = b.Op("linear", {n, w}, {}, "second");
  b.Output("logits", logits);
  b.Output("loss", b.Op("sparse_categorical_crossentropy", {logits, labels}, {}, "loss"));
  const Graph graph = Cast(Bound(b), DType::kBF16);
  EXPECT_EQ(TypeOf(graph, "first"), DType::kBF16);
  EXPECT_EQ(TypeOf(graph, "relu"), DType::kBF16);
  EXPECT_EQ(TypeOf(graph, "norm"), DType::kF32);
  EXPECT_EQ(TypeOf(graph, "second"), DType::kBF16);
  EXPECT_EQ(TypeOf(graph, "loss"), DType::kF32);
  EXPECT_EQ(TypeOf(graph, "labels"), DType::kI64);
  // x, h, n and the logits change type; parameters are read as they are.
  EXPECT_EQ(Casts(graph), 4);
  EXPECT_EQ(graph.value(graph.FindOutput("logits")).type.dtype, DType::kF32);
  // Gradients of parameters are f32.
  auto training = Differentiate(registry_, graph);
  ASSERT_TRUE(training.ok()) << training.status();
  ASSERT_EQ(training->gradients.size(), 2u);
  for (const auto& g : training->gradients) {
    EXPECT_EQ(training->graph.value(g.gradient).type.dtype, DType::kF32);
  }
}

TEST_F(PrecisionTest, MixedOperandsRunInF32ButLiteralsFollow) {
  GraphBuilder b(registry_, "mixed");
  const ValueId x = b.Input("x", DType::kF32, {-1, 8});
  const ValueId w = b.Parameter("w", DType::kF32, {8, 8}, {});
  const ValueId offset = b.Parameter("offset", DType::kF32, {8}, {});
  const auto number = [&](const char* name, float value) {
    return b.Constant(name, DType::kF32, {}, std::string(reinterpret_cast<char*>(&value), 4));
  };
  const ValueId y = b.Op("linear", {x, w}, {}, "product");
  b.Output("a", b.Op("multiply", {y, number("half", 0.5f)}, {}, "halved"));
  b.Output("b", b.Op("add", {y, offset}, {}, "moved"));
  b.Output("c", b.Op("add", {y, number("huge", -3e38f)}, {}, "masked"));
  const Graph graph = Cast(Bound(b), DType::kF16);
  EXPECT_EQ(TypeOf(graph, "halved"), DType::kF16);
  EXPECT_EQ(TypeOf(graph, "moved"), DType::kF32);
  EXPECT_EQ(TypeOf(graph, "masked"), DType::kF32);  // -3e38 would be infinite
}

TEST_F(PrecisionTest, F32AttentionMaskStaysF32) {
  GraphBuilder b(registry_, "attention");
  const ValueId q = b.Input("q", DType::kF32, {-1, 4, 8});
  const ValueId mask = b.Input("mask", DType::kF32, {4, 4});
  b.Output("y", b.Op("attention", {q, q, q, mask}, {{"head_dim", int64_t{4}}}, "attend"));
  const Graph graph = Cast(Bound(b), DType::kBF16);
  for (const Node& node : graph.nodes()) {
    if (node.op != "attention") continue;
    EXPECT_EQ(graph.value(node.inputs[0]).type.dtype, DType::kBF16);
    EXPECT_EQ(graph.value(node.inputs[3]).type.dtype, DType::kF32);
  }
}

TEST_F(PrecisionTest, Parameters16BitGetF32MasterWeights) {
  GraphBuilder b(registry_, "f16");
  const ValueId x = b.Input("x", DType::kF16, {-1, 2});
  const ValueId w = b.Parameter("w", DType::kF16, {1, 2}, {});
  const ValueId scale = b.Parameter("scale", DType::kF16, {1}, {});
  const ValueId fixed = b.Parameter("fixed", DType::kF16, {1}, {}, /*trainable=*/false);
  const ValueId y = b.Op("multiply", {b.Op("linear", {x, w}, {}, "product"), scale}, {}, "scaled");
  b.Output("y", b.Op("add", {y, fixed}, {}, "sum"));
  Graph graph = Bound(b);
  const uint16_t bits[2] = {0x3c01, 0xc000};  // 1 + 2^-10, -2
  graph.mutable_value(graph.FindValue("w")).constant.assign(reinterpret_cast<const char*>(bits), 4);
  const Graph cast = Cast(graph, DType::kF32);
  const Value& master = cast.value(cast.FindValue("w"));
  ASSERT_EQ(master.type.dtype, DType::kF32);
  float elements[2];
  ASSERT_EQ(master.constant.size(), sizeof(elements));
  std::memcpy(elements, master.constant.data(), sizeof(elements));
  EXPECT_EQ(elements[0], 1 + 0x1p-10f);
  EXPECT_EQ(elements[1], -2.0f);
  EXPECT_EQ(TypeOf(cast, "scale"), DType::kF32);
  EXPECT_EQ(TypeOf(cast, "fixed"), DType::kF16);
  // The graph computes in its own types: only `scale`, which multiply cannot read in another type,
  // is cast.
  EXPECT_EQ(TypeOf(cast, "product"), DType::kF16);
  EXPECT_EQ(TypeOf(cast, "sum"), DType::kF16);
  EXPECT_EQ(Casts(cast), 1);
}

TEST_F(PrecisionTest, F32GraphInF32IsUnchanged) {
  GraphBuilder b(registry_, "plain");
  const ValueId x = b.Input("x", DType::kF32, {-1, 2});
  b.Output("y", b.Op("exp", {b.Op("linear", {x, b.Parameter("w", DType::kF32, {3, 2}, {})})}));
  const Graph graph = Bound(b), same = Cast(graph, DType::kF32);
  ASSERT_EQ(same.nodes().size(), graph.nodes().size());
  for (size_t v = 0; v < graph.values().size(); ++v) {
    EXPECT_EQ(same.value(static_cast<ValueId>(v)).type, graph.value(static_cast<ValueId>(v)).type);
  }
}

TEST_F(PrecisionTest, IntegerComputeTypeIsRefused) {
  GraphBuilder b(registry_, "plain");
  b.Output("y", b.Op("relu", {b.Input("x", DType::kF32, {-1, 2})}));
  const auto refused = WithPrecision(registry_, Bound(b), DType::kI32);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("f32, bf16, f16"));
}

// One cast per node, each with a unique name. A linear search over all names for each would not
// finish in time.
TEST_F(PrecisionTest, ManyCastsTakeLinearTime) {
  constexpr int kLayers = 40000;
  Graph graph;
  const TensorType rows{DType::kF32, {-1, 2}}, square{DType::kF32, {2, 2}};
  ValueId x = graph.AddValue({.name = "x", .type = rows, .kind = ValueKind::kInput});
  const ValueId w = graph.AddValue({.name = "w", .type = square, .kind = ValueKind::kParameter});
  for (int i = 0; i < kLayers; ++i) {
    for (const char* op : {"linear", "softmax"}) {
      Node node{.name = std::string(op) + std::to_string(i), .op = op, .inputs = {x}};
      if (node.op == "linear") node.inputs.push_back(w);
      x = graph.AddValue({.name = node.name, .type = rows});
      node.outputs = {x};
      graph.AddNode(std::move(node));
    }
  }
  graph.outputs.emplace_back("y", x);
  ASSERT_TRUE(BindAndInfer(registry_, 4, &graph).ok());
  EXPECT_EQ(Casts(Cast(graph, DType::kBF16)), 2 * kLayers);
}

}  // namespace
}  // namespace espalier
