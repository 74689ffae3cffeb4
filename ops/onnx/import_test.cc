// Untrusted models are refused with the location of the error, or mean what ONNX specifies, for any
// batch.
#include "ops/onnx/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "ops/onnx/cpu_evaluator.h"
#include "ops/onnx/export.h"
#include "ops/operators/register_all.h"
#include "third_party/onnx/onnx.pb.h"

namespace espalier {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

using Names = std::vector<std::string>;
using Int64s = std::vector<int64_t>;
using Floats = std::vector<float>;

constexpr int64_t kBatch = -1;

const OpRegistry& Operators() {
  static const auto* const kRegistry = [] {
    auto* made = new OpRegistry;
    RegisterAllOperators(*made);
    return made;
  }();
  return *kRegistry;
}

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

onnx::TensorProto Tensor(const std::string& name, const Int64s& dims, const Floats& values) {
  onnx::TensorProto tensor;
  tensor.set_name(name);
  tensor.set_data_type(onnx::TensorProto::FLOAT);
  for (int64_t dim : dims) tensor.add_dims(dim);
  tensor.set_raw_data(Bytes(values));
  return tensor;
}

onnx::TensorProto Tensor(const std::string& name, const Int64s& dims, const Int64s& values) {
  onnx::TensorProto tensor = Tensor(name, dims, Floats{});
  tensor.set_data_type(onnx::TensorProto::INT64);
  tensor.set_raw_data(Bytes(values));
  return tensor;
}

onnx::NodeProto Node(const std::string& op, const Names& inputs, const Names& outputs) {
  onnx::NodeProto node;
  const size_t dot = op.find('.');
  if (dot != std::string::npos) node.set_domain(op.substr(0, dot));
  node.set_op_type(dot == std::string::npos ? op : op.substr(dot + 1));
  for (const std::string& input : inputs) node.add_input(input);
  for (const std::string& output : outputs) node.add_output(output);
  return node;
}

onnx::AttributeProto* AddAttribute(onnx::NodeProto* node, const std::string& name) {
  node->add_attribute()->set_name(name);
  return node->mutable_attribute(node->attribute_size() - 1);
}

onnx::NodeProto Node(const std::string& op, const Names& inputs, const Names& outputs,
                     const std::string& attribute, int64_t value) {
  onnx::NodeProto node = Node(op, inputs, outputs);
  AddAttribute(&node, attribute)->set_i(value);
  return node;
}

void Declare(const std::string& name, int type, const Int64s& dims, onnx::ValueInfoProto* value) {
  value->set_name(name);
  auto* tensor = value->mutable_type()->mutable_tensor_type();
  tensor->set_elem_type(type);
  tensor->mutable_shape();
  for (int64_t dim : dims) {
    auto* added = tensor->mutable_shape()->add_dim();
    if (dim == kBatch) {
      added->set_dim_param("N");
    } else {
      added->set_dim_value(dim);
    }
  }
}

// A subgraph; values of any type.
onnx::GraphProto Body(const Names& inputs, const Names& outputs,
                      const std::vector<onnx::NodeProto>& nodes) {
  onnx::GraphProto graph;
  for (const std::string& input : inputs) graph.add_input()->set_name(input);
  for (const std::string& output : outputs) graph.add_output()->set_name(output);
  for (const onnx::NodeProto& node : nodes) *graph.add_node() = node;
  return graph;
}

onnx::NodeProto WithBody(onnx::NodeProto node, const std::string& name,
                         const onnx::GraphProto& body) {
  *AddAttribute(&node, name)->mutable_g() = body;
  return node;
}

// x[N, 2], unless other dimensions are given, to y.
struct Model {
  explicit Model(const std::vector<onnx::NodeProto>& nodes,
                 const std::vector<onnx::TensorProto>& initializers = {},
                 const Int64s& dims = {kBatch, 2}, int type = onnx::TensorProto::FLOAT) {
    proto.add_opset_import()->set_version(18);
    for (const onnx::NodeProto& node : nodes) *proto.mutable_graph()->add_node() = node;
    for (const onnx::TensorProto& tensor : initializers) {
      *proto.mutable_graph()->add_initializer() = tensor;
    }
    Declare("x", type, dims, proto.mutable_graph()->add_input());
    proto.mutable_graph()->add_output()->set_name("y");
  }

  Model& With(const onnx::FunctionProto& function) {
    *proto.add_functions() = function;
    return *this;
  }

  absl::StatusOr<Graph> Import(int64_t max_constant_bytes = 1 << 20) const {
    ImportOptions options;
    options.evaluator = CpuEvaluator();
    options.max_constant_bytes = max_constant_bytes;
    return ImportOnnx(Operators(), proto.SerializeAsString(), options);
  }

  std::string Error() const { return std::string(Import().status().message()); }

  onnx::ModelProto proto;
};

// The bytes of y for those of x.
absl::StatusOr<std::string> Run(Graph graph, int64_t batch, const std::string& x) {
  absl::Status status = BindAndInfer(Operators(), batch, &graph);
  if (!status.ok()) return status;
  std::vector<std::string> values;
  for (const Value& value : graph.values()) {
    values.push_back(value.kind == ValueKind::kInput ? x : value.constant);
  }
  for (size_t n = 0; n < graph.nodes().size(); ++n) {
    std::vector<const std::string*> inputs;
    for (ValueId v : graph.nodes()[n].inputs) {
      inputs.push_back(v == kNoValue ? nullptr : &values[v]);
    }
    absl::StatusOr<std::vector<std::string>> outputs =
        CpuEvaluator()(graph.nodes()[n].op, graph.TypesOf(static_cast<NodeId>(n)), inputs);
    if (!outputs.ok()) return outputs.status();
    for (size_t k = 0; k < outputs->size(); ++k) {
      values[graph.nodes()[n].outputs[k]] = (*outputs)[k];
    }
  }
  return values[graph.FindOutput("y")];
}

template <typename T>
Floats Result(const Model& model, int64_t batch, const std::vector<T>& x) {
  absl::StatusOr<Graph> graph = model.Import();
  EXPECT_TRUE(graph.ok()) << graph.status();
  if (!graph.ok()) return {};
  absl::StatusOr<std::string> bytes = Run(*std::move(graph), batch, Bytes(x));
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  if (!bytes.ok()) return {};
  Floats y(bytes->size() / sizeof(float));
  std::memcpy(y.data(), bytes->data(), bytes->size());
  return y;
}

const onnx::NodeProto kRelu = Node("Relu", {"x"}, {"y"});

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

// Resource limits for small files.

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

// Any batch size.

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

// Exporters merge equal initializers: the initial scale and variance, bias and mean.
TEST(ImportTest, RunningStatisticsAreNotShared) {
  const Model model({Node("BatchNormalization", {"x", "one", "zero", "zero", "one"}, {"h"}),
                     Node("BatchNormalization", {"h", "scale", "bias", "mean", "one"}, {"y"})},
                    {Tensor("one", {2}, Floats{1, 1}), Tensor("zero", {2}, Floats{0, 0}),
                     Tensor("scale", {2}, Floats{2, 2}), Tensor("bias", {2}, Floats{1, 1}),
                     Tensor("mean", {2}, Floats{0, 0})});
  absl::StatusOr<Graph> graph = model.Import();
  ASSERT_TRUE(graph.ok()) << graph.status();
  std::map<ValueId, int> readers;
  for (const espalier::Node& node : graph->nodes()) {
    for (ValueId v : node.inputs) ++readers[v];
  }
  int layers = 0;
  for (const espalier::Node& node : graph->nodes()) {
    if (node.op != "batch_norm") continue;
    ++layers;
    for (int i : {1, 2}) EXPECT_TRUE(graph->value(node.inputs[i]).trainable) << i;
    for (int i : {3, 4}) {
      EXPECT_EQ(graph->value(node.inputs[i]).kind, ValueKind::kParameter);
      EXPECT_FALSE(graph->value(node.inputs[i]).trainable) << i;
      EXPECT_EQ(readers[node.inputs[i]], 1) << i;
    }
  }
  EXPECT_EQ(layers, 2);
  for (const char* name : {"one", "zero", "scale", "bias"}) {
    const ValueId value = graph->FindValue(name);
    ASSERT_NE(value, kNoValue) << name;
    EXPECT_TRUE(graph->value(value).trainable) << name;
  }
  // A parameter with one reader keeps its name.
  ASSERT_NE(graph->FindValue("mean"), kNoValue);
  EXPECT_FALSE(graph->value(graph->FindValue("mean")).trainable);
  const float unit = 1 / std::sqrt(1 + 1e-5f);
  EXPECT_THAT(Result(model, 1, Floats{1, 2}), ElementsAre(FloatNear(2 * unit * unit + 1, 1e-5f),
                                                          FloatNear(4 * unit * unit + 1, 1e-5f)));
}

// Names of the running mean and variance of each norm.
std::vector<Names> RunningStatistics(const Model& model) {
  const absl::StatusOr<Graph> graph = model.Import();
  EXPECT_TRUE(graph.ok()) << graph.status();
  std::vector<Names> found;
  if (!graph.ok()) return found;
  for (const espalier::Node& node : graph->nodes()) {
    if (node.op != "batch_norm") continue;
    found.emplace_back();
    for (int i : {3, 4}) {
      const Value& value = graph->value(node.inputs[i]);
      EXPECT_EQ(value.kind, ValueKind::kParameter) << value.name;
      EXPECT_FALSE(value.trainable) << value.name;
      found.back().push_back(value.name);
    }
  }
  return found;
}

std::set<std::string> Different(const std::vector<Names>& lists) {
  std::set<std::string> names;
  for (const Names& list : lists) names.insert(list.begin(), list.end());
  return names;
}

// All new layers with the same number of channels have equal values; sharing merged values does not
// make them one layer.
TEST(ImportTest, LayersWithMergedValuesHaveOwnStatistics) {
  const std::vector<onnx::TensorProto> merged = {
      Tensor("one", {2}, Floats{1, 1}), Tensor("zero", {2}, Floats{0, 0}),
      Tensor("mean", {2}, Floats{0, 0}), Tensor("var", {2}, Floats{1, 1})};
  const auto two_that_read = [&](const Names& layer) {
    std::vector<onnx::NodeProto> nodes;
    for (const auto& [from, to] : {std::pair("x", "h"), std::pair("h", "y")}) {
      nodes.push_back(Node("BatchNormalization", {from}, {to}));
      for (const std::string& name : layer) nodes.back().add_input(name);
    }
    return nodes;
  };
  // In the last two only one pair was equal.
  for (const Names& layer :
       {Names{"one", "zero", "zero", "one"}, Names{"one", "zero", "mean", "one"},
        Names{"one", "zero", "zero", "var"}}) {
    const std::vector<Names> found = RunningStatistics(Model(two_that_read(layer), merged));
    EXPECT_EQ(found.size(), 2u);
    EXPECT_EQ(Different(found).size(), 4u) << layer[2] << ", " << layer[3];
  }
  // Layers without scale and bias, whose constants do not identify them.
  std::vector<onnx::NodeProto> nodes;
  for (const auto& [name, number] : {std::pair("c1", 1.0f), std::pair("c0", 0.0f)}) {
    nodes.push_back(Node("Constant", {}, {name}));
    *AddAttribute(&nodes.back(), "value")->mutable_t() = Tensor("", {2}, Floats{number, number});
  }
  for (const onnx::NodeProto& norm : two_that_read({"c1", "c0", "mean", "var"})) {
    nodes.push_back(norm);
  }
  const std::vector<Names> found = RunningStatistics(Model(nodes, merged));
  EXPECT_EQ(found.size(), 2u);
  EXPECT_EQ(Different(found).size(), 4u);
}

// A siamese network, applied to two inputs, has one running mean, which both update.
TEST(ImportTest, LayerAppliedTwiceSharesItsStatistics) {
  const auto inputs_of_norms = [](const std::string& scale_of_second) {
    return RunningStatistics(
        Model({Node("BatchNormalization", {"x", "scale", "bias", "mean", "var"}, {"a"}),
               Node("BatchNormalization", {"a", scale_of_second, "bias", "mean", "var"}, {"y"})},
              {Tensor("scale", {2}, Floats{2, 2}), Tensor("other", {2}, Floats{3, 3}),
               Tensor("bias", {2}, Floats{1, 1}), Tensor("mean", {2}, Floats{0, 0}),
               Tensor("var", {2}, Floats{1, 1})}));
  };
  EXPECT_THAT(inputs_of_norms("scale"),
              ElementsAre(ElementsAre("mean", "var"), ElementsAre("mean", "var")));
  const std::vector<Names> apart = inputs_of_norms("other");
  ASSERT_EQ(apart.size(), 2u);
  EXPECT_THAT(apart[0], ElementsAre("mean", "var"));
  EXPECT_NE(apart[1][0], "mean");
  EXPECT_NE(apart[1][1], "var");
}

}  // namespace
}  // namespace espalier
