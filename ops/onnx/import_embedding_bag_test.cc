// nn.EmbeddingBag as PyTorch's exporter writes it (a loop over the bags) becomes one embedding and
// a reduction.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/onnx/import_fixture.h"

namespace espalier::import_fixture {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct BagForm {
  std::string reduction = "ReduceSum";
  bool weighted = false;  // by `weights`
};

// y[b] = reduction of rows ids[offsets[b] : ends[b]] of `table`, in as many turns as there are
// ends.
std::vector<onnx::NodeProto> LoopOverBags(const BagForm& loop) {
  std::vector<onnx::NodeProto> body = {Node("Gather", {"offsets", "turn"}, {"begin"}),
                                       Node("Gather", {"ends", "turn"}, {"end"}),
                                       Node("Unsqueeze", {"begin", "zero1"}, {"begin1"}),
                                       Node("Unsqueeze", {"end", "zero1"}, {"end1"}),
                                       Node("Slice", {"ids", "begin1", "end1", "zero1"}, {"bag"}),
                                       Node("Gather", {"table", "bag"}, {"rows"})};
  if (loop.weighted) {
    body.push_back(Node("Slice", {"weights", "begin1", "end1", "zero1"}, {"shares"}));
    body.push_back(Node("Unsqueeze", {"shares", "one1"}, {"column"}));
    body.push_back(Node("Mul", {"rows", "column"}, {"weighted"}));
  }
  body.push_back(
      Node(loop.reduction, {loop.weighted ? "weighted" : "rows", "zero1"}, {"row"}, "keepdims", 0));
  body.push_back(Node("Cast", {"true"}, {"on"}, "to", onnx::TensorProto::BOOL));
  return {Node("Slice", {"offsets", "one1", "last1", "zero1"}, {"ends"}),
          Node("Shape", {"ends"}, {"count"}), Node("Gather", {"count", "zero"}, {"turns"}),
          WithBody(Node("Loop", {"turns", "true"}, {"y"}), "body",
                   Body({"turn", "condition"}, {"on", "row"}, body))};
}

// A table of 5 rows: {0, 0}, {1, 10}, {2, -20}, {3, 30}, {4, -40}.
std::vector<onnx::TensorProto> BagValues(std::vector<onnx::TensorProto> more = {}) {
  onnx::TensorProto on = Tensor("true", {}, Int64s{});
  on.set_data_type(onnx::TensorProto::BOOL);
  on.set_raw_data(std::string(1, 1));
  std::vector<onnx::TensorProto> all = {
      Tensor("table", {5, 2}, Floats{0, 0, 1, 10, 2, -20, 3, 30, 4, -40}),
      Tensor("zero", {}, Int64s{0}),
      Tensor("zero1", {1}, Int64s{0}),
      Tensor("one", {}, Int64s{1}),
      Tensor("one1", {1}, Int64s{1}),
      Tensor("minus1", {1}, Int64s{-1}),
      Tensor("last1", {1}, Int64s{INT64_MAX}),
      on};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// nn.EmbeddingBag of x [batch, length].
Model OfRows(int64_t length, const BagForm& loop, int64_t batch = kBatch) {
  std::vector<onnx::NodeProto> nodes = {
      Node("Shape", {"x"}, {"shape"}),
      Node("ReduceProd", {"shape"}, {"all"}, "keepdims", 0),
      Node("Gather", {"shape", "one"}, {"length"}),
      Node("Range", {"zero", "all", "length"}, {"begins"}),
      Node("Reshape", {"x", "minus1"}, {"ids"}),
      Node("Shape", {"ids"}, {"total"}),
      Node("Concat", {"begins", "total"}, {"offsets"}, "axis", 0)};
  for (const onnx::NodeProto& node : LoopOverBags(loop)) nodes.push_back(node);
  return Model(nodes, BagValues(), {batch, length}, onnx::TensorProto::INT64);
}

// nn.EmbeddingBag of x [ids], with offsets that include the last one.
Model BetweenOffsets(int64_t ids, const Int64s& offsets, const BagForm& loop) {
  std::vector<onnx::NodeProto> nodes = {Node("Reshape", {"x", "minus1"}, {"ids"})};
  for (const onnx::NodeProto& node : LoopOverBags(loop)) nodes.push_back(node);
  Floats weights;
  for (int64_t i = 0; i < ids; ++i) weights.push_back(static_cast<float>(i + 1));
  return Model(nodes,
               BagValues({Tensor("offsets", {static_cast<int64_t>(offsets.size())}, offsets),
                          Tensor("weights", {ids}, weights)}),
               {ids}, onnx::TensorProto::INT64);
}

TEST(ImportEmbeddingBagTest, RowsOfIdsInABatchOfAnySize) {
  const Int64s x = {1, 2, 4, 4, 0, 3};
  EXPECT_THAT(Result(OfRows(3, {"ReduceSum"}), 2, x), ElementsAre(7, -50, 7, -10));
  EXPECT_THAT(Result(OfRows(2, {"ReduceMean"}), 3, x), ElementsAre(1.5, -5, 4, -40, 1.5, 15));
  EXPECT_THAT(Result(OfRows(3, {"ReduceMax"}), 2, x), ElementsAre(4, 10, 4, 30));
  EXPECT_THAT(Result(OfRows(6, {"ReduceSum"}), 1, x), ElementsAre(14, -60));
  // arange(batch) is the offsets.
  EXPECT_THAT(Result(OfRows(1, {"ReduceMean"}), 2, Int64s{3, 1}), ElementsAre(3, 30, 1, 10));
}

// A loop of a turn for each bag would be a graph of several nodes for each.
TEST(ImportEmbeddingBagTest, TheGraphDoesNotGrowWithTheBags) {
  const absl::StatusOr<Graph> any = OfRows(3, {"ReduceSum"}).Import();
  ASSERT_TRUE(any.ok()) << any.status();
  EXPECT_LE(any->nodes().size(), 4u);
  const absl::StatusOr<Graph> fixed = OfRows(3, {"ReduceSum"}, 4000).Import();
  ASSERT_TRUE(fixed.ok()) << fixed.status();
  EXPECT_LE(fixed->nodes().size(), 4u);
}

TEST(ImportEmbeddingBagTest, BagsOfDifferentSizes) {
  const Int64s x = {1, 2, 4, 4, 0, 3};
  const Int64s offsets = {0, 1, 1, 4, 6};  // {1}, {}, {2, 4, 4}, {0, 3}
  EXPECT_THAT(Result(BetweenOffsets(6, offsets, {"ReduceSum"}), 1, x),
              ElementsAre(1, 10, 0, 0, 10, -100, 3, 30));
  EXPECT_THAT(Result(BetweenOffsets(6, {0, 1, 1, 3, 6}, {"ReduceMean"}), 1, x),
              ElementsAre(1, 10, 0, 0, 3, -30, 7.0f / 3, -10.0f / 3));
  EXPECT_THAT(Result(BetweenOffsets(6, offsets, {"ReduceMax"}), 1, x),
              ElementsAre(1, 10, 0, 0, 4, -20, 3, 30));
  EXPECT_THAT(Result(BetweenOffsets(6, offsets, {"ReduceSum", true}), 1, x),
              ElementsAre(1, 10, 0, 0, 4 + 12 + 16, -40 - 120 - 160, 18, 180));
  // Rows as long as the longest bag, not as long as all ids.
  const absl::StatusOr<Graph> graph = BetweenOffsets(6, offsets, {"ReduceSum"}).Import();
  ASSERT_TRUE(graph.ok()) << graph.status();
  Graph bound = *graph;
  ASSERT_TRUE(BindAndInfer(Operators(), 1, &bound).ok());
  for (const Value& value : bound.values()) {
    if (value.type.dims.size() == 3 && value.type.dims[2] == 2) {
      EXPECT_EQ(value.type.dims, (Dims{4, 3, 2}));
    }
  }
}

// x [9]: the first three are the offsets, the others the ids.
TEST(ImportEmbeddingBagTest, OffsetsThatAreData) {
  const auto model = [](const std::string& reduction) {
    std::vector<onnx::NodeProto> nodes = {
        Node("Slice", {"x", "zero1", "three1"}, {"begins"}),
        Node("Slice", {"x", "three1", "last1"}, {"ids"}), Node("Shape", {"ids"}, {"total"}),
        Node("Concat", {"begins", "total"}, {"offsets"}, "axis", 0)};
    for (const onnx::NodeProto& node : LoopOverBags({reduction})) nodes.push_back(node);
    return Model(nodes, BagValues({Tensor("three1", {1}, Int64s{3})}), {9},
                 onnx::TensorProto::INT64);
  };
  const Int64s all = {0, 1, 4, 1, 2, 4, 4, 0, 3}, empty = {0, 0, 6, 1, 2, 4, 4, 0, 3};
  EXPECT_THAT(Result(model("ReduceSum"), 1, all), ElementsAre(1, 10, 10, -100, 3, 30));
  EXPECT_THAT(Result(model("ReduceMean"), 1, all),
              ElementsAre(1, 10, 10.0f / 3, -100.0f / 3, 1.5, 15));
  EXPECT_THAT(Result(model("ReduceMax"), 1, all), ElementsAre(1, 10, 4, -20, 3, 30));
  EXPECT_THAT(Result(model("ReduceMax"), 1, empty), ElementsAre(0, 0, 4, 30, 0, 0));
  EXPECT_THAT(Result(model("ReduceMean"), 1, empty),
              ElementsAre(0, 0, 14.0f / 6, -60.0f / 6, 0, 0));
}

TEST(ImportEmbeddingBagTest, OffsetsOfAnyBatchAreRefused) {
  std::vector<onnx::NodeProto> nodes = {
      Node("Reshape", {"x", "minus1"}, {"ids"}),
      Node("Gather", {"x", "zero"}, {"column"}, "axis", 1), Node("Shape", {"ids"}, {"total"}),
      Node("Concat", {"column", "total"}, {"offsets"}, "axis", 0)};
  for (const onnx::NodeProto& node : LoopOverBags({})) nodes.push_back(node);
  const Model model(nodes, BagValues(), {kBatch, 3}, onnx::TensorProto::INT64);
  EXPECT_THAT(model.Error(), AllOf(HasSubstr("ONNX node 'y' (Loop)"), HasSubstr("EmbeddingBag"),
                                   HasSubstr("fixed batch size")));
}

// What is like a loop over bags, but none, keeps its meaning.
TEST(ImportEmbeddingBagTest, OtherLoopsAreNotTaken) {
  Model other = BetweenOffsets(6, {0, 2, 4, 6}, {"ReduceSum"});
  for (onnx::NodeProto& node : *other.proto.mutable_graph()->mutable_node()) {
    if (node.op_type() != "Loop") continue;
    for (onnx::NodeProto& inner : *node.mutable_attribute(0)->mutable_g()->mutable_node()) {
      if (inner.op_type() == "ReduceSum") inner.set_input(1, "one1");  // of each row
    }
  }
  EXPECT_THAT(Result(other, 1, Int64s{1, 2, 4, 4, 0, 3}), ElementsAre(11, -18, -36, -36, 0, 33));
  Model cut = BetweenOffsets(6, {0, 2, 4, 6}, {"ReduceSum"});
  for (onnx::NodeProto& node : *cut.proto.mutable_graph()->mutable_node()) {
    if (node.op_type() != "Loop") continue;
    for (onnx::NodeProto& inner : *node.mutable_attribute(0)->mutable_g()->mutable_node()) {
      if (inner.op_type() == "Slice") inner.clear_input();
    }
  }
  EXPECT_FALSE(cut.Import().ok());
}

}  // namespace
}  // namespace espalier::import_fixture
