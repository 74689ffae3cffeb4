// Tests that an imported model means the same for any batch size.
#include <cstdint>
#include <string>
#include <vector>

#include "ops/onnx/import_fixture.h"

namespace espalier::import_fixture {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<onnx::NodeProto> BatchAsN() {
  return {Node("Shape", {"x"}, {"shape"}), Node("Gather", {"shape", "zero"}, {"n"})};
}

const std::vector<onnx::TensorProto>& Integers() {
  static const auto* const kIntegers = new std::vector<onnx::TensorProto>{
      Tensor("zero", {}, Int64s{0}), Tensor("one", {}, Int64s{1}), Tensor("two", {}, Int64s{2}),
      Tensor("ten", {}, Int64s{10})};
  return *kIntegers;
}

// x times the integer f, which `nodes` compute from the batch n and the number d.
Model TimesF(const std::vector<onnx::NodeProto>& nodes, int64_t d = 1) {
  std::vector<onnx::NodeProto> all = BatchAsN();
  all.insert(all.end(), nodes.begin(), nodes.end());
  all.push_back(Node("Cast", {"f"}, {"factor"}, "to", onnx::TensorProto::FLOAT));
  all.push_back(Node("Mul", {"x", "factor"}, {"y"}));
  std::vector<onnx::TensorProto> initializers = Integers();
  initializers.push_back(Tensor("d", {}, Int64s{d}));
  return Model(all, initializers);
}

TEST(ImportTest, SelectionByBatchSizeIsRefused) {
  const std::string fixed = "fixed batch size";
  EXPECT_THAT(TimesF({Node("Min", {"n", "two"}, {"f"})}).Error(), HasSubstr(fixed));
  EXPECT_THAT(TimesF({Node("Max", {"n", "two"}, {"f"})}).Error(), HasSubstr(fixed));
  EXPECT_THAT(TimesF({Node("Mod", {"n", "two"}, {"f"})}).Error(), HasSubstr(fixed));
  EXPECT_THAT(TimesF({Node("Equal", {"n", "one"}, {"f"})}).Error(), HasSubstr(fixed));
  EXPECT_THAT(TimesF({Node("Equal", {"n", "two"}, {"f"})}).Error(), HasSubstr(fixed));
  EXPECT_THAT(TimesF({Node("Less", {"n", "ten"}, {"f"})}).Error(), HasSubstr(fixed));
  EXPECT_THAT(TimesF({Node("Div", {"ten", "n"}, {"f"})}).Error(), HasSubstr("batch size"));
  std::vector<onnx::NodeProto> nodes = BatchAsN();
  nodes.push_back(Node("Equal", {"n", "one"}, {"c"}));
  nodes.push_back(WithBody(WithBody(Node("If", {"c"}, {"y"}), "then_branch",
                                    Body({}, {"t"}, {Node("Neg", {"x"}, {"t"})})),
                           "else_branch", Body({}, {"e"}, {Node("Relu", {"x"}, {"e"})})));
  EXPECT_THAT(Model(nodes, Integers()).Error(), HasSubstr(fixed));
}

// Remainders as older opsets spell them, in integers and floats, and quotients: a value for one
// batch does not hold for others, although two large batches may share it.
TEST(ImportTest, RoundingByBatchSizeIsRefused) {
  const std::string fixed = "fixed batch size";
  const auto remainder_as = [](const std::string& name) {
    return std::vector<onnx::NodeProto>{Node("Div", {"n", "d"}, {"q"}),
                                        Node("Mul", {"q", "d"}, {"m"}),
                                        Node("Sub", {"n", "m"}, {name})};
  };
  for (int64_t d : {2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 16, 30, 32, 64, 1000}) {
    EXPECT_THAT(TimesF(remainder_as("f"), d).Error(), HasSubstr(fixed)) << d;
    EXPECT_THAT(TimesF({Node("Div", {"n", "d"}, {"f"})}, d).Error(), HasSubstr(fixed)) << d;
    EXPECT_THAT(
        TimesF({Node("Add", {"n", "one"}, {"more"}), Node("Div", {"more", "d"}, {"f"})}, d).Error(),
        HasSubstr(fixed))
        << d;
  }
  for (int64_t d : {2, 3, 4, 8, 16, 64}) {
    std::vector<onnx::NodeProto> divides = remainder_as("r");
    divides.push_back(Node("Equal", {"r", "zero"}, {"f"}));
    EXPECT_THAT(TimesF(divides, d).Error(), HasSubstr(fixed)) << d;
  }
  EXPECT_THAT(TimesF({Node("Cast", {"n"}, {"a"}, "to", onnx::TensorProto::FLOAT),
                      Node("Cast", {"two"}, {"b"}, "to", onnx::TensorProto::FLOAT),
                      Node("Div", {"a", "b"}, {"c"}), Node("Floor", {"c"}, {"q"}),
                      Node("Mul", {"q", "b"}, {"m"}), Node("Sub", {"a", "m"}, {"f"})})
                  .Error(),
              HasSubstr(fixed));
}

// repeat(n, 1), x[0:n] and arange(n) follow any batch.
TEST(ImportTest, TileSliceAndRangeFollowTheBatch) {
  std::vector<onnx::NodeProto> nodes = BatchAsN();
  for (const onnx::NodeProto& node :
       {Node("Unsqueeze", {"n", "axis"}, {"n1"}),
        Node("Concat", {"n1", "one1"}, {"repeats"}, "axis", 0),
        Node("Tile", {"row", "repeats"}, {"rows"}), Node("Add", {"x", "rows"}, {"sum"}),
        Node("Slice", {"sum", "axis", "n1", "axis"}, {"whole"}),
        Node("Range", {"zero", "n", "one"}, {"index"}),
        Node("Cast", {"index"}, {"numbers"}, "to", onnx::TensorProto::FLOAT),
        Node("Unsqueeze", {"numbers", "one1"}, {"column"}),
        Node("Mul", {"whole", "column"}, {"y"})}) {
    nodes.push_back(node);
  }
  std::vector<onnx::TensorProto> initializers = Integers();
  initializers.push_back(Tensor("axis", {1}, Int64s{0}));
  initializers.push_back(Tensor("one1", {1}, Int64s{1}));
  initializers.push_back(Tensor("row", {1, 2}, Floats{10, 20}));
  const Model model(nodes, initializers);
  EXPECT_THAT(Result(model, 1, Floats{1, 2}), ElementsAre(0, 0));
  EXPECT_THAT(Result(model, 3, Floats{1, 2, 3, 4, 5, 6}), ElementsAre(0, 0, 13, 24, 30, 52));
}

// arange(0, 10 n, 10) and arange(n, n + 3): a sum of them compared with a number is not decided at
// import, by batches of a million.
TEST(ImportTest, RangesByTheBatchAreNoConstants) {
  const std::vector<onnx::NodeProto> tens = {
      Node("Mul", {"n", "ten"}, {"limit"}), Node("Range", {"zero", "limit", "ten"}, {"r"}),
      Node("ReduceSum", {"r"}, {"sum"}, "keepdims", 0), Node("Greater", {"sum", "d"}, {"f"})};
  const Model model = TimesF(tens, 25);
  EXPECT_THAT(Result(model, 2, Floats{1, 2, 3, 4}), ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(Result(model, 3, Floats{1, 2, 3, 4, 5, 6}), ElementsAre(1, 2, 3, 4, 5, 6));
  // 2 n numbers
  const Model twice =
      TimesF({Node("Mul", {"n", "two"}, {"limit"}), Node("Range", {"zero", "limit", "one"}, {"r"}),
              Node("ReduceSum", {"r"}, {"f"}, "keepdims", 0)});
  EXPECT_THAT(Result(twice, 2, Floats{1, 2, 3, 4}), ElementsAre(6, 12, 18, 24));
  EXPECT_THAT(
      TimesF({Node("Add", {"n", "two"}, {"limit"}), Node("Range", {"n", "limit", "one"}, {"r"}),
              Node("ReduceSum", {"r"}, {"sum"}, "keepdims", 0),
              Node("Greater", {"sum", "ten"}, {"f"})})
          .Error(),
      HasSubstr("fixed batch size"));
  EXPECT_THAT(TimesF({Node("Range", {"one", "n", "one"}, {"r"}),
                      Node("ReduceSum", {"r"}, {"f"}, "keepdims", 0)})
                  .Error(),
              HasSubstr("fixed batch size"));
}

// Two rows repeated: r0, r1, r0, r1, ... in twice the batch.
TEST(ImportTest, TileOfSeveralRowsRepeatsThemInOrder) {
  std::vector<onnx::NodeProto> nodes = BatchAsN();
  for (const onnx::NodeProto& node : {Node("Unsqueeze", {"n", "axis"}, {"n1"}),
                                      Node("Concat", {"n1", "one1"}, {"repeats"}, "axis", 0),
                                      Node("Tile", {"rows", "repeats"}, {"tiled"}),
                                      Node("Reshape", {"tiled", "shape4"}, {"wide"}),
                                      Node("Slice", {"wide", "axis", "two1", "one1"}, {"first"}),
                                      Node("Add", {"x", "first"}, {"y"})}) {
    nodes.push_back(node);
  }
  std::vector<onnx::TensorProto> initializers = Integers();
  initializers.push_back(Tensor("axis", {1}, Int64s{0}));
  initializers.push_back(Tensor("one1", {1}, Int64s{1}));
  initializers.push_back(Tensor("two1", {1}, Int64s{2}));
  initializers.push_back(Tensor("shape4", {2}, Int64s{-1, 4}));
  initializers.push_back(Tensor("rows", {2, 2}, Floats{10, 20, 30, 40}));
  const Model model(nodes, initializers);
  EXPECT_THAT(Result(model, 2, Floats{1, 2, 3, 4}), ElementsAre(11, 22, 13, 24));
}

TEST(ImportTest, BatchIndependentExpressionsAreImported) {
  // PyTorch's `expand`: sizes of -1 become 1.
  std::vector<onnx::NodeProto> nodes = BatchAsN();
  for (const onnx::NodeProto& node :
       {Node("Unsqueeze", {"n", "axis"}, {"n1"}),
        Node("Concat", {"n1", "minus"}, {"sizes"}, "axis", 0),
        Node("Equal", {"sizes", "minuses"}, {"open"}),
        Node("Where", {"open", "ones", "sizes"}, {"all"}), Node("Max", {"all", "one"}, {"atleast"}),
        Node("Expand", {"row", "atleast"}, {"rows"}), Node("Add", {"x", "rows"}, {"y"})}) {
    nodes.push_back(node);
  }
  std::vector<onnx::TensorProto> initializers = Integers();
  initializers.push_back(Tensor("axis", {1}, Int64s{0}));
  initializers.push_back(Tensor("minus", {1}, Int64s{-1}));
  initializers.push_back(Tensor("minuses", {2}, Int64s{-1, -1}));
  initializers.push_back(Tensor("ones", {2}, Int64s{1, 1}));
  initializers.push_back(Tensor("row", {1, 2}, Floats{10, 20}));
  const Model model(nodes, initializers);
  EXPECT_THAT(Result(model, 1, Floats{1, 2}), ElementsAre(11, 22));
  EXPECT_THAT(Result(model, 2, Floats{1, 2, 3, 4}), ElementsAre(11, 22, 13, 24));
  // Expressions of the batch that are constant: n > 0, 2 n / n.
  EXPECT_THAT(Result(TimesF({Node("Greater", {"n", "zero"}, {"f"})}), 1, Floats{3, 4}),
              ElementsAre(3, 4));
  EXPECT_THAT(Result(TimesF({Node("Add", {"n", "n"}, {"m"}), Node("Div", {"m", "n"}, {"f"})}), 1,
                     Floats{3, 4}),
              ElementsAre(6, 8));
  // 10 n / 2 / n leaves no remainder.
  EXPECT_THAT(Result(TimesF({Node("Mul", {"n", "ten"}, {"m"}), Node("Div", {"m", "two"}, {"h"}),
                             Node("Div", {"h", "n"}, {"f"})}),
                     1, Floats{3, 4}),
              ElementsAre(15, 20));
}

}  // namespace
}  // namespace espalier::import_fixture
