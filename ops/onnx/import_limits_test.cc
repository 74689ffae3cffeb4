// Tests that small files cannot take many resources.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/onnx/import_fixture.h"

namespace espalier::import_fixture {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ImportTest, ManyNodesOfOneNameTakeLinearTime) {
  std::vector<onnx::NodeProto> nodes = {kRelu};
  for (int i = 0; i < 60000; ++i) nodes.push_back(Node("Shape", {"x"}, {absl::StrCat("s", i)}));
  EXPECT_TRUE(Model(nodes).Import(1 << 30).ok());
}

TEST(ImportTest, BytesOfNodeConstantsAreLimited) {
  const std::vector<onnx::TensorProto> range = {
      Tensor("a", {}, Int64s{0}), Tensor("b", {}, Int64s{1 << 14}), Tensor("c", {}, Int64s{1})};
  std::vector<onnx::NodeProto> nodes = {kRelu};
  for (int i = 0; i < 4; ++i) nodes.push_back(Node("Range", {"a", "b", "c"}, {absl::StrCat(i)}));
  EXPECT_TRUE(Model(nodes, range).Import().ok());
  for (int i = 4; i < 20; ++i) nodes.push_back(Node("Range", {"a", "b", "c"}, {absl::StrCat(i)}));
  EXPECT_THAT(Model(nodes, range).Error(), HasSubstr("constants"));
}

TEST(ImportTest, BytesOfLoopConstantsAreLimited) {
  const auto loop = [](onnx::GraphProto body, int64_t turns) {
    return Model(
        {WithBody(Node("Loop", {"m", "", "x"}, {"z"}), "body", body), Node("Relu", {"z"}, {"y"})},
        {Tensor("m", {}, Int64s{turns})});
  };
  const std::vector<onnx::NodeProto> same = {Node("Identity", {"c"}, {"d"}),
                                             Node("Identity", {"v"}, {"w"})};
  const onnx::TensorProto large = Tensor("k", {1 << 14}, Floats(1 << 14));  // 64 KiB
  onnx::GraphProto attribute = Body({"i", "c", "v"}, {"d", "w"}, same);
  *attribute.add_node() = Node("Constant", {}, {"k"});
  *AddAttribute(attribute.mutable_node(2), "value")->mutable_t() = large;
  EXPECT_TRUE(loop(attribute, 8).Import().ok());
  EXPECT_THAT(loop(attribute, 4000).Error(), HasSubstr("constants"));

  onnx::GraphProto initializer = Body({"i", "c", "v"}, {"d", "w"}, same);
  *initializer.add_initializer() = large;
  *initializer.add_node() = Node("Identity", {"k"}, {"unread"});
  EXPECT_TRUE(loop(initializer, 8).Import().ok());
  EXPECT_THAT(loop(initializer, 4000).Error(), HasSubstr("constants"));
}

// Exporters write weights as Constant nodes too; what the file holds anyway is not limited.
TEST(ImportTest, FileTensorsCountFromSecondRead) {
  const onnx::TensorProto large = Tensor("w", {2, 1 << 18}, Floats(2 << 18));  // 2 MiB
  onnx::NodeProto constant = Node("Constant", {}, {"w"});
  *AddAttribute(&constant, "value")->mutable_t() = large;
  const Model as_node({constant, Node("MatMul", {"x", "w"}, {"y"})});
  EXPECT_TRUE(as_node.Import(1 << 20).ok()) << as_node.Error();

  onnx::GraphProto branch = Body({}, {"t"}, {Node("MatMul", {"x", "w"}, {"t"})});
  *branch.add_initializer() = large;
  const Model as_initializer(
      {WithBody(WithBody(Node("If", {"yes"}, {"y"}), "then_branch", branch), "else_branch",
                Body({}, {"e"}, {Node("Relu", {"x"}, {"e"})}))},
      {Tensor("yes", {1}, Int64s{1})});
  EXPECT_TRUE(as_initializer.Import(1 << 20).ok()) << as_initializer.Error();

  // A small file that reads it often.
  onnx::FunctionProto function;
  function.set_domain("my");
  function.set_name("W");
  function.add_output("w");
  *function.add_node() = constant;
  const auto calls = [&](int count) {
    std::vector<onnx::NodeProto> nodes;
    for (int i = 0; i < count; ++i) nodes.push_back(Node("my.W", {}, {absl::StrCat("w", i)}));
    nodes.push_back(Node("MatMul", {"x", "w0"}, {"y"}));
    return Model(nodes).With(function);
  };
  EXPECT_TRUE(calls(1).Import(1 << 20).ok()) << calls(1).Error();
  EXPECT_THAT(calls(2).Error(), HasSubstr("constants"));
}

TEST(ImportTest, NestedEmptyLoopsAreLimited) {
  onnx::GraphProto body = Body({"i", "c", "v"}, {"c", "v"}, {});
  for (int deep = 0; deep < 4; ++deep) {
    body = Body({"i", "c", "v"}, {"c", "w"},
                {WithBody(Node("Loop", {"m", "", "v"}, {"w"}), "body", body)});
  }
  const Model model({WithBody(Node("Loop", {"m", "", "x"}, {"y"}), "body", body)},
                    {Tensor("m", {}, Int64s{4000})});
  EXPECT_THAT(model.Error(), HasSubstr("more than"));
}

TEST(ImportTest, HugeShapesAreRefused) {
  const int64_t large = int64_t{1} << 32;
  EXPECT_THAT(Model({Node("EyeLike", {"x"}, {"y"})}, {}, {large, large}).Error(),
              HasSubstr("2^46"));
  EXPECT_THAT(Model({Node("EyeLike", {"x"}, {"y"})}, {}, {int64_t{1} << 23, 4}).Error(),
              HasSubstr("matrix"));
  const std::vector<onnx::TensorProto> sizes = {Tensor("image", {2}, Int64s{64, 64}),
                                                Tensor("block", {2}, Int64s{64, 64})};
  const auto overlapping = [&](int64_t rows) {
    return Model({Node("Col2Im", {"x", "image", "block"}, {"y"})}, sizes, {1, rows, 1});
  };
  EXPECT_THAT(overlapping(int64_t{1} << 30).Error(), HasSubstr("constants"));
  EXPECT_THAT(overlapping(int64_t{1} << 45).Error(), HasSubstr("kernel"));
}

// Its identity kernel is limited like constants: here two channels, 128 MiB.
TEST(ImportTest, Col2ImKernelBytesAreLimited) {
  const Model model({Node("Col2Im", {"x", "image", "block"}, {"y"})},
                    {Tensor("image", {2}, Int64s{64, 64}), Tensor("block", {2}, Int64s{64, 64})},
                    {1, 2 << 12, 1});
  const absl::StatusOr<Graph> graph = model.Import(int64_t{1} << 28);
  EXPECT_TRUE(graph.ok()) << graph.status();
  EXPECT_THAT(std::string(model.Import(int64_t{1} << 26).status().message()),
              HasSubstr("more than 67108864 bytes"));
}

TEST(ImportTest, LargeSamplesOfSymbolicBatchAreRefused) {
  EXPECT_THAT(Model({kRelu}, {}, {kBatch, 3, 64, 1024, 1024}).Error(),
              AllOf(HasSubstr("'x'"), HasSubstr("more than 70 million elements a sample"),
                    HasSubstr("fixed batch size")));
  const absl::StatusOr<Graph> fixed = Model({kRelu}, {}, {1, 3, 64, 1024, 1024}).Import();
  EXPECT_TRUE(fixed.ok()) << fixed.status();
}

TEST(ImportTest, SliceOfAnAxisThatIsNotThereIsRefused) {
  const Model model(
      {Node("ReduceMean", {"x"}, {"m"}, "keepdims", 0),
       Node("Slice", {"m", "zero", "one", "zero"}, {"s"}), Node("Add", {"x", "s"}, {"y"})},
      {Tensor("zero", {1}, Int64s{0}), Tensor("one", {1}, Int64s{1})});
  EXPECT_THAT(model.Error(), HasSubstr("axis 0"));
}

}  // namespace
}  // namespace espalier::import_fixture
