// Tests the import of control flow, functions and single operators: untrusted models are refused
// with the location of the error, or mean what ONNX specifies.
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "ops/onnx/export.h"
#include "ops/onnx/import_fixture.h"

namespace espalier::import_fixture {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::HasSubstr;
using ::testing::Pointwise;

// Incomplete control flow.

TEST(ImportTest, LoopWithoutStateOrOutputsIsRefused) {
  const auto loop = [](const Names& inputs, const onnx::GraphProto& body) {
    return Model({WithBody(Node("Loop", inputs, {"z"}), "body", body), kRelu},
                 {Tensor("m", {}, Int64s{2})})
        .Error();
  };
  const onnx::NodeProto same = Node("Identity", {"c"}, {"d"});
  EXPECT_THAT(loop({"m"}, Body({"i", "c"}, {}, {})), HasSubstr("1 inputs"));
  EXPECT_THAT(loop({"m"}, Body({"i", "c"}, {"d"}, {same})), HasSubstr("1 inputs"));
  EXPECT_THAT(loop({}, Body({"i", "c"}, {"d"}, {same})), HasSubstr("0 inputs"));
  EXPECT_THAT(loop({"m", ""}, Body({"i", "c"}, {}, {})), HasSubstr("too few outputs"));
  EXPECT_THAT(loop({"m", "", "x"}, Body({"i", "c", "v"}, {"d"}, {same})),
              HasSubstr("too few outputs"));
}

TEST(ImportTest, ScanOfMoreInputsThanThereAreIsRefused) {
  for (int64_t inputs : {int64_t{0}, int64_t{2}, (int64_t{1} << 32) + 1, int64_t{1} << 62}) {
    const onnx::NodeProto scan =
        WithBody(Node("Scan", {"x"}, {"y"}, "num_scan_inputs", inputs), "body",
                 Body({"c"}, {"d"}, {Node("Identity", {"c"}, {"d"})}));
    EXPECT_THAT(Model({scan}, {}, {2, 2}).Error(), HasSubstr("num_scan_inputs"));
  }
}

TEST(ImportTest, SizesThatAreNotPositiveAreRefused) {
  const onnx::TensorProto size = Tensor("s", {4}, Int64s{1, 1, 0, 4});
  EXPECT_THAT(Model({Node("AffineGrid", {"x", "s"}, {"y"})}, {size}, {1, 2, 3}).Error(),
              HasSubstr("must be positive"));
  const onnx::TensorProto large = Tensor("s", {5}, Int64s{1, 1, 1 << 24, 1 << 24, 1 << 24});
  EXPECT_THAT(Model({Node("AffineGrid", {"x", "s"}, {"y"})}, {large}, {1, 3, 4}).Error(),
              HasSubstr("points"));
}

// Functions.

onnx::FunctionProto Function(const std::string& name, const std::vector<onnx::NodeProto>& nodes) {
  onnx::FunctionProto function;
  function.set_domain("my");
  function.set_name(name);
  function.add_input("a");
  function.add_output("b");
  for (const onnx::NodeProto& node : nodes) *function.add_node() = node;
  return function;
}

TEST(ImportTest, FunctionAttributesHaveDefaults) {
  onnx::NodeProto leaky = Node("LeakyRelu", {"a"}, {"b"});
  AddAttribute(&leaky, "alpha")->set_ref_attr_name("alpha");
  onnx::FunctionProto function = Function("Leaky", {leaky});
  function.add_attribute_proto()->set_name("alpha");
  function.mutable_attribute_proto(0)->set_f(0.5f);
  onnx::NodeProto call = Node("my.Leaky", {"x"}, {"y"});
  EXPECT_THAT(Result(Model({call}).With(function), 1, Floats{-4, 1}), ElementsAre(-2, 1));
  AddAttribute(&call, "alpha")->set_f(0.25f);
  EXPECT_THAT(Result(Model({call}).With(function), 1, Floats{-4, 1}), ElementsAre(-1, 1));
}

TEST(ImportTest, FunctionOverloadsAreDistinguished) {
  onnx::FunctionProto relu = Function("F", {Node("Relu", {"a"}, {"b"})});
  onnx::FunctionProto neg = Function("F", {Node("Neg", {"a"}, {"b"})});
  relu.set_overload("A");
  neg.set_overload("B");
  onnx::NodeProto call = Node("my.F", {"x"}, {"y"});
  call.set_overload("A");
  EXPECT_THAT(Result(Model({call}).With(relu).With(neg), 1, Floats{-4, 1}), ElementsAre(0, 1));
  call.set_overload("B");
  EXPECT_THAT(Result(Model({call}).With(relu).With(neg), 1, Floats{-4, 1}), ElementsAre(4, -1));
  call.set_overload("C");
  EXPECT_THAT(Model({call}).With(relu).With(neg).Error(), HasSubstr("my.F"));
  EXPECT_EQ(
      UnsupportedOperators(Operators(), Model({call}).With(relu).proto.SerializeAsString()).size(),
      1u);
  EXPECT_THAT(Model({call}).With(relu).With(relu).Error(), HasSubstr("twice"));
}

TEST(ImportTest, FunctionOpsetsHaveModelLimits) {
  onnx::FunctionProto function = Function("F", {Node("Relu", {"a"}, {"b"})});
  function.add_opset_import()->set_version(99);
  EXPECT_THAT(Model({Node("my.F", {"x"}, {"y"})}).With(function).Error(), HasSubstr("opset 99"));
}

// Single operators.

TEST(ImportTest, RecurrentActivationsRoundTrip) {
  const auto rnn = [](const Names& activations, const Floats& alpha) {
    onnx::NodeProto node = Node("RNN", {"x", "w", "r"}, {"", "y"}, "hidden_size", 1);
    for (const std::string& name : activations) {
      if (name == activations[0]) AddAttribute(&node, "activations");
      node.mutable_attribute(1)->add_strings(name);
    }
    if (!alpha.empty()) AddAttribute(&node, "activation_alpha");
    for (float a : alpha) node.mutable_attribute(2)->add_floats(a);
    return Model({node}, {Tensor("w", {1, 1, 1}, Floats{1}), Tensor("r", {1, 1, 1}, Floats{0.5f})},
                 {2, 1, 1});
  };
  const Floats x = {0.5f, -3.0f};
  EXPECT_EQ(Result(rnn({"Tanh"}, {}), 1, x), Result(rnn({}, {}), 1, x));
  EXPECT_EQ(Result(rnn({"tanh"}, {}), 1, x), Result(rnn({}, {}), 1, x));
  EXPECT_THAT(Result(rnn({"LeakyRelu"}, {0.1f}), 1, x), ElementsAre(FloatEq(-0.275f)));
  EXPECT_THAT(Result(rnn({"LeakyRelu"}, {}), 1, x), ElementsAre(FloatEq(-0.0275f)));
  EXPECT_THAT(rnn({"Odd"}, {}).Error(), HasSubstr("LeakyRelu"));
  EXPECT_THAT(rnn({"Tanh"}, {0.1f}).Error(), HasSubstr("activation_alpha"));

  for (const Model& model : {rnn({"HardSigmoid"}, {0.3f}), rnn({"Softsign"}, {})}) {
    absl::StatusOr<Graph> graph = model.Import();
    ASSERT_TRUE(graph.ok()) << graph.status();
    absl::StatusOr<std::string> bytes = ExportOnnx(Operators(), *graph, {});
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    Model again({});
    ASSERT_TRUE(again.proto.ParseFromString(*bytes));
    EXPECT_THAT(Result(again, 1, x), Pointwise(FloatEq(), Result(model, 1, x)));
  }
}

TEST(ImportTest, NegativeGatherIndicesCountFromEnd) {
  const onnx::TensorProto table = Tensor("w", {3, 2}, Floats{0, 1, 2, 3, 4, 5});
  const Model fixed({Node("Gather", {"w", "k"}, {"row"}), Node("Add", {"x", "row"}, {"y"})},
                    {table, Tensor("k", {1}, Int64s{-1})});
  EXPECT_THAT(Result(fixed, 1, Floats{10, 20}), ElementsAre(14, 25));
  // If they may be negative, nothing is added.
  const Model fed({Node("Gather", {"w", "x"}, {"y"})}, {table}, {kBatch}, onnx::TensorProto::INT64);
  EXPECT_EQ(fed.Import()->nodes().size(), 1u);
  const Model plain({Node("Gather", {"w", "k"}, {"row"}), Node("Add", {"x", "row"}, {"y"})},
                    {table, Tensor("k", {1}, Int64s{2})});
  EXPECT_EQ(plain.Import()->nodes().size(), 2u);
}

TEST(ImportTest, OneHotIgnoresOutOfRangeIndices) {
  const Model model({Node("OneHot", {"x", "depth", "values"}, {"y"})},
                    {Tensor("depth", {}, Int64s{3}), Tensor("values", {2}, Floats{0, 1})}, {kBatch},
                    onnx::TensorProto::INT64);
  EXPECT_THAT(Result(model, 4, Int64s{-5, -3, -1, 3}),
              ElementsAre(0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0));
}

// Random numbers.

TEST(ImportTest, RandomNumbersPassNoGradientToTheirShape) {
  onnx::NodeProto noise = Node("RandomNormalLike", {"h"}, {"n"});
  AddAttribute(&noise, "scale")->set_f(0.5f);
  const Model model({Node("Mul", {"x", "w"}, {"h"}), noise, Node("Add", {"h", "n"}, {"y"})},
                    {Tensor("w", {2}, Floats{1, 2})});
  const absl::StatusOr<Graph> graph = model.Import();
  ASSERT_TRUE(graph.ok()) << graph.status();
  int drawn = 0;
  for (const espalier::Node& node : graph->nodes()) {
    if (node.op != "random_like") continue;
    ++drawn;
    EXPECT_EQ(node.attributes.String("distribution"), "normal");
    EXPECT_EQ(node.attributes.Float("b"), 0.5);
    Graph bound = *graph;
    ASSERT_TRUE(BindAndInfer(Operators(), 3, &bound).ok());
    EXPECT_EQ(bound.value(node.inputs[0]).type.dtype, DType::kBool);
  }
  EXPECT_EQ(drawn, 1);
  const Floats y = Result(model, 500, Floats(1000, 0));
  double squares = 0;
  for (float value : y) squares += value * value;
  EXPECT_NEAR(squares / 1000, 0.25, 0.06);
  EXPECT_TRUE(ExportOnnx(Operators(), *graph).ok());
}

TEST(ImportTest, BernoulliDrawsByProbability) {
  const Model model({Node("Bernoulli", {"x"}, {"y"})});
  Floats p(2000, 0.25f);
  for (size_t i = 0; i < p.size(); i += 2) p[i] = i % 4 == 0 ? 0 : 1;
  const Floats y = Result(model, 1000, p);
  int ones = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    ASSERT_TRUE(y[i] == 0 || y[i] == 1) << y[i];
    if (i % 2 == 1) {
      ones += static_cast<int>(y[i]);
    } else {
      ASSERT_EQ(y[i], p[i]) << i;
    }
  }
  EXPECT_NEAR(ones, 250, 70);
}

TEST(ImportTest, RandomNumbersOfAGivenShape) {
  onnx::NodeProto draw = Node("RandomUniform", {}, {"r"}, "dtype", onnx::TensorProto::FLOAT);
  onnx::AttributeProto* shape = AddAttribute(&draw, "shape");
  for (int64_t dim : {3, 2}) shape->add_ints(dim);
  AddAttribute(&draw, "low")->set_f(5);
  AddAttribute(&draw, "high")->set_f(6);
  const Floats y =
      Result(Model({draw, Node("Add", {"x", "r"}, {"y"})}, {}, {3, 2}), 3, Floats(6, 0));
  ASSERT_EQ(y.size(), 6u);
  for (float value : y) EXPECT_TRUE(value >= 5 && value < 6) << value;
  EXPECT_THAT(
      Model({Node("RandomUniformLike", {"x"}, {"y"}, "dtype", onnx::TensorProto::INT64)}).Error(),
      HasSubstr("floating-point"));
}

// NonZero.

// arange(n) and the indices of a tensor of ones, as opsets below 11 spell them.
TEST(ImportTest, NonZeroOfWhatIsAllAlikeFollowsTheBatch) {
  const std::vector<onnx::TensorProto> zero = {Tensor("zero1", {1}, Int64s{0}),
                                               Tensor("one1", {1}, Int64s{1})};
  const std::vector<onnx::NodeProto> indices = {Node("NonZero", {"ones"}, {"found"}),
                                                Node("Transpose", {"found"}, {"rows"}),
                                                Node("Cast", {"rows"}, {"y"}, "to", 1)};
  onnx::NodeProto ones = Node("ConstantOfShape", {"shape"}, {"ones"});
  *AddAttribute(&ones, "value")->mutable_t() = Tensor("", {1}, Int64s{1});
  std::vector<onnx::NodeProto> nodes = {Node("Shape", {"x"}, {"shape"}), ones};
  nodes.insert(nodes.end(), indices.begin(), indices.end());
  EXPECT_THAT(Result(Model(nodes, zero), 2, Floats{0, 0, 0, 0}),
              ElementsAre(0, 0, 0, 1, 1, 0, 1, 1));
  nodes[0] = Node("Shape", {"x"}, {"sizes"});
  nodes.insert(nodes.begin() + 1, Node("Slice", {"sizes", "zero1", "one1"}, {"shape"}));
  EXPECT_THAT(Result(Model(nodes, zero), 3, Floats(6)), ElementsAre(0, 1, 2));
}

// A mask in a buffer is known; one that is trained, or data, is not.
TEST(ImportTest, NonZeroOfAFrozenMaskIsKnown) {
  Model model(
      {Node("Greater", {"mask", "zero"}, {"chosen"}), Node("NonZero", {"chosen"}, {"found"}),
       Node("Reshape", {"found", "all"}, {"columns"}),
       Node("Gather", {"x", "columns"}, {"y"}, "axis", 1)},
      {Tensor("mask", {3}, Floats{0.5, 0, 2}), Tensor("zero", {}, Floats{0}),
       Tensor("all", {1}, Int64s{-1})},
      {kBatch, 3});
  onnx::StringStringEntryProto* trained = model.proto.add_metadata_props();
  trained->set_key(kTrainableKey);
  trained->set_value("[]");
  EXPECT_THAT(Result(model, 2, Floats{1, 2, 3, 4, 5, 6}), ElementsAre(1, 3, 4, 6));
  trained->set_value(R"(["mask"])");
  EXPECT_THAT(model.Error(), HasSubstr("ONNX node 'found' (NonZero)"));
  EXPECT_THAT(Model({Node("NonZero", {"x"}, {"y"})}).Error(),
              AllOf(HasSubstr("ONNX node 'y' (NonZero)"), HasSubstr("depends on the data"),
                    HasSubstr("masked_fill")));
}

// Pools.

// As PyTorch's AvgPool3d(2, stride=2, padding=1, ceil_mode=True, count_include_pad=True).
TEST(ImportTest, AveragePoolOfThreeDimensionsCountsItsPadding) {
  onnx::NodeProto pool = Node("AveragePool", {"x"}, {"y"}, "ceil_mode", 1);
  AddAttribute(&pool, "count_include_pad")->set_i(1);
  const auto list = [&](const std::string& name, const Int64s& values) {
    onnx::AttributeProto* attribute = AddAttribute(&pool, name);
    for (int64_t value : values) attribute->add_ints(value);
  };
  list("kernel_shape", {2, 2, 2});
  list("strides", {2, 2, 2});
  list("pads", {1, 1, 1, 1, 1, 1});
  Floats x(27);
  std::iota(x.begin(), x.end(), 1);
  EXPECT_THAT(Result(Model({pool}, {}, {kBatch, 1, 3, 3, 3}), 1, x),
              ElementsAre(0.125, 0.625, 1.375, 3.5, 3.625, 8, 9.5, 20.5));
  list("dilations", {2, 2, 2});
  EXPECT_THAT(Model({pool}, {}, {kBatch, 1, 3, 3, 3}).Error(), HasSubstr("'dilations'"));
}

}  // namespace
}  // namespace espalier::import_fixture
