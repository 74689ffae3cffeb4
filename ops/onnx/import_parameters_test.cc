// Tests which initializers are trained.
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ops/onnx/export.h"
#include "ops/onnx/import_fixture.h"

namespace espalier::import_fixture {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// By name: "trained", "frozen" or "constant", with a question mark if it is doubtful.
std::map<std::string, std::string> RolesIn(const Model& model,
                                           const std::set<std::string>& parameters = {}) {
  ImportOptions options;
  options.evaluator = CpuEvaluator();
  options.parameters = parameters;
  ImportReport report;
  const absl::StatusOr<Graph> graph =
      ImportOnnx(Operators(), model.proto.SerializeAsString(), options, &report);
  EXPECT_TRUE(graph.ok()) << graph.status();
  std::map<std::string, std::string> roles;
  if (!graph.ok()) return roles;
  for (const auto& [name, initializer] : report.initializers) {
    const ValueId value = graph->FindValue(name);
    const bool parameter = value != kNoValue && graph->value(value).kind == ValueKind::kParameter;
    EXPECT_EQ(parameter && graph->value(value).trainable, initializer.trained) << name;
    EXPECT_FALSE(initializer.reason.empty()) << name;
    roles[name] = initializer.trained ? "trained" : parameter ? "frozen" : "constant";
    if (initializer.doubtful) roles[name] += "?";
  }
  return roles;
}

// Multiplies each initializer to a hidden value.
Model Products(const std::vector<onnx::TensorProto>& initializers) {
  std::vector<onnx::NodeProto> nodes = {Node("Relu", {"x"}, {"h0"})};
  for (size_t i = 0; i < initializers.size(); ++i) {
    const std::string from = "h" + std::to_string(i);
    const std::string to = i + 1 == initializers.size() ? "y" : "h" + std::to_string(i + 1);
    nodes.push_back(Node("Mul", {from, initializers[i].name()}, {to}));
  }
  return Model(nodes, initializers);
}

TEST(ImportTest, NamesTellParametersFromBuffersAndLiterals) {
  const std::map<std::string, std::vector<std::string>> names = {
      {"trained",
       {"norm.weight", "norm.bias", "features.1.0.layer_scale", "logit_scale", "lstm.bias_ih_l0",
        "temperature", "positions", "mask_token", "policy.log_std", "gamma:0", "Parameter194",
        "dense/BiasAdd/ReadVariableOp:0", "dense/kernel/read:0", "fc1_bias", "conv1_b_0", "w"}},
      {"trained?", {"block.0.tau", "scales.0", "alpha", "block.unusual"}},
      {"frozen",
       {"net.running_mean", "rotary.inv_freq", "attn.masked_bias", "mean", "std", "rope.cos",
        "final_logits_bias", "scalerPreprocessor_scale", "layer.causal_mask"}},
      {"frozen?", {"unusual"}},
      {"constant?",
       {"onnx::Mul_123", "val_12", "_to_copy_1", "lifted_tensor_0", "_tensor_constant0", "12",
        "/3/Mul/0", "const_fold_opt__45", "Constant_5", "model/mul/y:0", "/m/Add_output_0"}}};
  for (const auto& [role, list] : names) {
    std::vector<onnx::TensorProto> initializers;
    for (const std::string& name : list) initializers.push_back(Tensor(name, {2}, Floats{1, 2}));
    const std::map<std::string, std::string> roles = RolesIn(Products(initializers));
    for (const std::string& name : list) {
      ASSERT_EQ(roles.count(name), 1u) << name;
      EXPECT_EQ(roles.at(name), role) << name;
    }
  }
  // A literal of one element is no doubt.
  EXPECT_EQ(RolesIn(Products({Tensor("val_0", {}, Floats{2})})).at("val_0"), "constant");
}

TEST(ImportTest, WhatIsAppliedToAnInputAloneIsNotTrained) {
  const Model model({Node("Sub", {"x", "a.shift"}, {"c"}), Node("Div", {"c", "a.scale"}, {"n"}),
                     Node("MatMul", {"n", "q"}, {"h"}), Node("Mul", {"h", "b.scale"}, {"s"}),
                     Node("Add", {"s", "a.bias"}, {"y"})},
                    {Tensor("a.shift", {2}, Floats{1, 2}), Tensor("a.scale", {1, 2}, Floats{3, 4}),
                     Tensor("q", {2, 2}, Floats{1, 0, 0, 1}), Tensor("b.scale", {2}, Floats{1, 1}),
                     Tensor("a.bias", {2}, Floats{0, 0})});
  const std::map<std::string, std::string> expected = {{"a.shift", "frozen?"},
                                                       {"a.scale", "frozen?"},
                                                       {"q", "trained"},
                                                       {"b.scale", "trained?"},
                                                       {"a.bias", "trained"}};
  EXPECT_EQ(RolesIn(model), expected);
  // What the user names is trained in any case.
  EXPECT_EQ(RolesIn(model, {"a.shift"}).at("a.shift"), "trained");
}

// torchvision's FrozenBatchNorm2d: its weight and bias are buffers.
TEST(ImportTest, ANormWhoseArithmeticIsWrittenOutIsFrozen) {
  const auto norm = [](bool written_out) {
    const std::vector<onnx::TensorProto> tensors = {
        Tensor("n.weight", {2}, Floats{1, 2}),           Tensor("n.bias", {2}, Floats{0, 1}),
        Tensor("n.running_mean", {2}, Floats{3, 4}),     Tensor("n.running_var", {2}, Floats{4, 1}),
        Tensor("fc.weight", {2, 2}, Floats{1, 2, 3, 4}), Tensor("fc.bias", {2}, Floats{1, 2})};
    std::vector<onnx::NodeProto> nodes = {Node("Gemm", {"x", "fc.weight", "fc.bias"}, {"h"}),
                                          Node("Sqrt", {"n.running_var"}, {"deviation"}),
                                          Node("Div", {"n.weight", "deviation"}, {"scale"}),
                                          Node("Mul", {"n.running_mean", "scale"}, {"mean"}),
                                          Node("Sub", {"n.bias", "mean"}, {"shift"}),
                                          Node("Mul", {"h", "scale"}, {"scaled"}),
                                          Node("Add", {"scaled", "shift"}, {"y"})};
    if (!written_out) {
      nodes = {nodes[0],
               Node("BatchNormalization",
                    {"h", "n.weight", "n.bias", "n.running_mean", "n.running_var"}, {"y"})};
    }
    return Model(nodes, tensors);
  };
  std::map<std::string, std::string> expected = {
      {"n.weight", "frozen?"},     {"n.bias", "frozen?"},    {"n.running_mean", "frozen"},
      {"n.running_var", "frozen"}, {"fc.weight", "trained"}, {"fc.bias", "trained"}};
  EXPECT_EQ(RolesIn(norm(true)), expected);
  expected["n.weight"] = expected["n.bias"] = "trained";
  EXPECT_EQ(RolesIn(norm(false)), expected);
}

// In evaluation mode PyTorch's first exporter writes equal tensors once.
TEST(ImportTest, TensorsThatWereMergedAreParametersOfTheirOwn) {
  Model model({Node("Identity", {"a.weight"}, {"b.weight"}), Node("Relu", {"x"}, {"h"}),
               Node("Mul", {"h", "a.weight"}, {"i"}), Node("Mul", {"i", "b.weight"}, {"y"})},
              {Tensor("a.weight", {2}, Floats{1, 1})});
  std::map<std::string, std::string> expected = {{"a.weight", "trained"}};
  EXPECT_EQ(RolesIn(model), expected) << "tf2onnx and others write what they mean";
  model.proto.set_producer_name("pytorch");
  expected["b.weight"] = "trained";
  EXPECT_EQ(RolesIn(model), expected);
  ImportOptions options;
  options.evaluator = CpuEvaluator();
  ImportReport report;
  const absl::StatusOr<Graph> graph =
      ImportOnnx(Operators(), model.proto.SerializeAsString(), options, &report);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(graph->value(graph->FindValue("b.weight")).constant, Bytes(Floats{1, 1}));
  EXPECT_THAT(report.notes, ::testing::Contains(AllOf(HasSubstr("merged"), HasSubstr("b.weight"))));
  // An nn.Identity of the module.
  model.proto.mutable_graph()->mutable_node(0)->set_output(0, "/0/Identity_output_0");
  model.proto.mutable_graph()->mutable_node(3)->set_input(1, "/0/Identity_output_0");
  expected.erase("b.weight");
  EXPECT_EQ(RolesIn(model), expected);
}

// The newer one leaves out small initializers that are equal to another, literals included.
TEST(ImportTest, TracedOperationsTellMergedTensorsApart) {
  const auto with = [](onnx::NodeProto node, const std::string& operation) {
    onnx::StringStringEntryProto* property = node.add_metadata_props();
    property->set_key("pkg.torch.onnx.fx_node");
    property->set_value(operation);
    return node;
  };
  // As in: n = norm0(x); m = norm1(n); u = m * table; t = (u + 1) * scale; y = fc(copied(t))
  Model model(
      {with(Node("LayerNormalization", {"x", "norm0.weight", "norm0.bias"}, {"n"}),
            "%n : [num_users=1] = call_function[target=aten.layer_norm](args = (%x, [2], "
            "%p_norm0_weight, %p_norm0_bias), kwargs = {})"),
       with(Node("LayerNormalization", {"n", "norm0.weight", "norm0.bias"}, {"m"}),
            "%m : [num_users=1] = call_function[target=aten.layer_norm](args = (%n, [2], "
            "%p_norm1_weight, %p_norm1_bias), kwargs = {})"),
       with(Node("Mul", {"m", "tied.weight"}, {"u"}), "%u : mul(args = (%m, %p_table), ...)"),
       with(Node("Mul", {"u", "tied.weight"}, {"v"}), "%v : mul(args = (%u, %p_tied_weight), ...)"),
       with(Node("Add", {"v", "scale"}, {"s"}), "%s : add(args = (%v, 1.0), ...)"),
       with(Node("Mul", {"s", "scale"}, {"t"}), "%t : mul(args = (%s, %p_scale), ...)"),
       with(Node("MatMul", {"t", "val_0"}, {"w"}),
            "%y : linear(args = (%t, %p_fc_weight, %p_fc_bias), ...)"),
       with(Node("Add", {"w", "norm0.bias"}, {"y"}),
            "%y : linear(args = (%t, %p_fc_weight, %p_fc_bias), ...)")},
      {Tensor("norm0.weight", {2}, Floats{1, 1}), Tensor("norm0.bias", {2}, Floats{0, 0}),
       Tensor("tied.weight", {2}, Floats{3, 4}), Tensor("scale", {}, Floats{1}),
       Tensor("val_0", {2, 2}, Floats{1, 2, 3, 4})});
  model.proto.set_producer_name("pytorch");
  onnx::GraphProto& graph = *model.proto.mutable_graph();
  std::string signature = "\n# inputs\n";
  for (const auto& [placeholder, target] :
       std::map<std::string, std::string>{{"p_norm0_weight", "norm0.weight"},
                                          {"p_norm0_bias", "norm0.bias"},
                                          {"p_norm1_weight", "norm1.weight"},
                                          {"p_norm1_bias", "norm1.bias"},
                                          {"p_tied_weight", "tied.weight"},
                                          {"p_table", "table"},
                                          {"p_scale", "scale"},
                                          {"p_folded", "folded"},
                                          {"p_fc_weight", "fc.weight"},
                                          {"p_fc_bias", "fc.bias"}}) {
    signature += placeholder + ": PARAMETER target='" + target + "'\n";
    onnx::ValueInfoProto* info = graph.add_value_info();
    info->set_name(target);
    onnx::StringStringEntryProto* property = info->add_metadata_props();
    property->set_key("pkg.torch.export.graph_signature.InputSpec.kind");
    property->set_value("PARAMETER");
  }
  onnx::StringStringEntryProto* property = graph.add_metadata_props();
  property->set_key("pkg.torch.export.ExportedProgram.graph_signature");
  property->set_value(signature);
  ImportOptions options;
  options.evaluator = CpuEvaluator();
  ImportReport report;
  ASSERT_TRUE(ImportOnnx(Operators(), model.proto.SerializeAsString(), options, &report).ok());
  EXPECT_THAT(report.notes, ::testing::Contains(AllOf(HasSubstr("'table' and 'tied.weight'; they"),
                                                      HasSubstr("left them out"),
                                                      HasSubstr("module: 'folded';"))));
  std::map<std::string, std::string> roles = RolesIn(model);
  EXPECT_EQ(roles.count("val_0_scale"), 1u) << "the literal 1";
  EXPECT_NE(roles["val_0_scale"], "trained");
  roles.erase("val_0_scale");
  const std::map<std::string, std::string> expected = {
      {"norm0.weight", "trained"}, {"norm0.bias", "trained"},  {"norm1.weight", "trained"},
      {"norm1.bias", "trained"},   {"tied.weight", "trained"}, {"scale", "trained"},
      {"val_0", "trained"},        {"fc.bias", "trained"}};
  EXPECT_EQ(roles, expected);
}

// PyTorch's exporter transposes the weights of linear layers and gives them new names.
TEST(ImportTest, WeightsWithoutNamesAreTrained) {
  const Floats four = {1, 2, 3, 4};
  const Model model(
      {Node("MatMul", {"x", "onnx::MatMul_7"}, {"h"}), Node("Unsqueeze", {"h", "axes"}, {"u"}),
       Node("MatMul", {"u", "onnx::MatMul_8"}, {"t"}), Node("Squeeze", {"t", "axes"}, {"s"}),
       Node("Add", {"s", "fc.bias"}, {"a"}), Node("MatMul", {"a", "var_12"}, {"b"}),
       Node("MatMul", {"b", "inv_freq"}, {"y"})},
      {Tensor("onnx::MatMul_7", {2, 2}, four), Tensor("onnx::MatMul_8", {1, 2, 2}, four),
       Tensor("fc.bias", {2}, Floats{1, 2}), Tensor("axes", {1}, Int64s{1}),
       Tensor("var_12", {2, 2}, four), Tensor("inv_freq", {2, 2}, four)});
  const std::map<std::string, std::string> expected = {{"onnx::MatMul_7", "trained"},
                                                       {"onnx::MatMul_8", "constant?"},
                                                       {"fc.bias", "trained"},
                                                       {"var_12", "trained"},
                                                       {"inv_freq", "frozen"}};
  EXPECT_EQ(RolesIn(model), expected);
}

// torch.onnx.export with dynamo=True.
TEST(ImportTest, PyTorchsSignatureWins) {
  Model model({Node("MatMul", {"x", "val_3"}, {"h"}), Node("Mul", {"h", "weight"}, {"a"}),
               Node("Add", {"a", "mean"}, {"y"})},
              {Tensor("val_3", {2, 2}, Floats{1, 2, 3, 4}), Tensor("weight", {2}, Floats{1, 1}),
               Tensor("mean", {2}, Floats{1, 1})});
  for (const auto& [name, kind] : {std::pair("weight", "BUFFER"), std::pair("mean", "PARAMETER")}) {
    onnx::ValueInfoProto* info = model.proto.mutable_graph()->add_value_info();
    info->set_name(name);
    onnx::StringStringEntryProto* property = info->add_metadata_props();
    property->set_key("pkg.torch.export.graph_signature.InputSpec.kind");
    property->set_value(kind);
  }
  std::map<std::string, std::string> expected = {
      {"val_3", "constant"}, {"weight", "frozen"}, {"mean", "trained"}};
  EXPECT_EQ(RolesIn(model), expected);
  // The weight of `fc` is no initializer: val_3 may be made from it.
  onnx::StringStringEntryProto* signature = model.proto.mutable_graph()->add_metadata_props();
  signature->set_key("pkg.torch.export.ExportedProgram.graph_signature");
  signature->set_value("\n# inputs\np_fc_weight: PARAMETER target='fc.weight'\nx: USER_INPUT\n");
  expected["val_3"] = "trained";
  EXPECT_EQ(RolesIn(model), expected);
}

TEST(ImportTest, TheListInTheFileWins) {
  Model model = Products({Tensor("fc.weight", {2}, Floats{1, 2}), Tensor("mean", {2}, Floats{1, 2}),
                          Tensor("val_0", {2}, Floats{1, 2})});
  onnx::StringStringEntryProto* list = model.proto.add_metadata_props();
  list->set_key("espalier.trainable");
  list->set_value("[\"mean\"]");
  const std::map<std::string, std::string> expected = {
      {"fc.weight", "frozen"}, {"mean", "trained"}, {"val_0", "constant"}};
  EXPECT_EQ(RolesIn(model), expected);
  for (const char* wrong : {"mean", "{}", "[1]"}) {
    list->set_value(wrong);
    EXPECT_THAT(model.Error(), HasSubstr("espalier.trainable")) << wrong;
  }
  list->set_value("[\"mean\", \"men\"]");
  EXPECT_THAT(model.Error(), AllOf(HasSubstr("'men'"), HasSubstr("no initializer")));
}

TEST(ImportTest, SinesAndCosinesOfPositionsAreNotTrained) {
  constexpr int64_t kRows = 6, kWidth = 8;
  const auto table = [&](const std::string& name, auto column) {
    Floats values;
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = 0; i < kWidth; ++i) {
        values.push_back(static_cast<float>(column(static_cast<double>(row), i)));
      }
    }
    return Tensor(name, {1, kRows, kWidth}, values);
  };
  const auto angle = [](double row, int64_t pair) { return row / std::pow(100.0, pair / 4.0); };
  const auto in_turn = [&](double row, int64_t i) {
    return i % 2 == 0 ? std::sin(angle(row, i / 2)) : std::cos(angle(row, i / 2));
  };
  const auto by_halves = [&](double row, int64_t i) {
    return i < 4 ? std::sin(angle(row, i)) : std::cos(angle(row, i - 4));
  };
  const auto learned = [](double row, int64_t i) { return std::sin(row * 7 + i * i); };
  const auto role = [&](const onnx::TensorProto& tensor) {
    return RolesIn(Model({Node("Relu", {"x"}, {"h"}), Node("Add", {"h", tensor.name()}, {"y"})},
                         {tensor}, {kBatch, kRows, kWidth}))
        .at(tensor.name());
  };
  EXPECT_EQ(role(table("pos_embed", in_turn)), "frozen");
  EXPECT_EQ(role(table("embed_positions.weight", by_halves)), "frozen");
  EXPECT_EQ(role(table("unusual", in_turn)), "frozen");
  EXPECT_EQ(role(table("onnx::Add_16", by_halves)), "frozen");
  EXPECT_EQ(role(table("pos_embed", learned)), "trained");
  EXPECT_EQ(role(table("pe", learned)), "trained");
  EXPECT_EQ(role(table("fc.weight", in_turn)), "trained");
}

TEST(ImportTest, ExportedFilesSayWhatIsTrained) {
  const Model model =
      Products({Tensor("fc.weight", {2}, Floats{1, 2}), Tensor("unusual", {2}, Floats{1, 2}),
                Tensor("mean", {2}, Floats{1, 2})});
  ImportOptions options;
  options.evaluator = CpuEvaluator();
  options.parameters = {"unusual"};
  const absl::StatusOr<Graph> graph =
      ImportOnnx(Operators(), model.proto.SerializeAsString(), options);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const absl::StatusOr<std::string> bytes = ExportOnnx(Operators(), *graph);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  Model again({}, {});
  ASSERT_TRUE(again.proto.ParseFromString(*bytes));
  const std::map<std::string, std::string> expected = {
      {"fc.weight", "trained"}, {"unusual", "trained"}, {"mean", "frozen"}};
  EXPECT_EQ(RolesIn(again), expected);
}

}  // namespace
}  // namespace espalier::import_fixture
