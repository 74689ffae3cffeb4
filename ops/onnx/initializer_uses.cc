#include "ops/onnx/initializer_uses.h"

#include <map>
#include <unordered_set>

namespace espalier::onnx_import {
namespace {

using InputsByOperator = std::map<std::string, std::set<int>>;
using OperatorNames = std::set<std::string>;

constexpr size_t kMaxBehindInitializer = 1000;  // values behind one initializer

const InputsByOperator& WeightInputs() {
  static const auto* const kInputs = new InputsByOperator{{"BatchNormalization", {1, 2}},
                                                          {"Conv", {1, 2}},
                                                          {"ConvTranspose", {1, 2}},
                                                          {"DeformConv", {1, 3}},
                                                          {"Einsum", {0, 1, 2, 3}},
                                                          {"GRU", {1, 2, 3}},
                                                          {"Gather", {0}},
                                                          {"Gemm", {0, 1, 2}},
                                                          {"GroupNormalization", {1, 2}},
                                                          {"InstanceNormalization", {1, 2}},
                                                          {"LSTM", {1, 2, 3, 7}},
                                                          {"LayerNormalization", {1, 2}},
                                                          {"MatMul", {0, 1}},
                                                          {"PRelu", {1}},
                                                          {"RNN", {1, 2, 3}}};
  return *kInputs;
}

const InputsByOperator& SettingInputs() {
  static const auto* const kInputs = new InputsByOperator{
      {"Clip", {1, 2}}, {"DequantizeLinear", {1, 2}}, {"Dropout", {1}},     {"OneHot", {2}},
      {"Pad", {2}},     {"QuantizeLinear", {1, 2}},   {"Range", {0, 1, 2}}, {"Resize", {1, 2}},
      {"Upsample", {1}}};
  return *kInputs;
}

// Nodes that only change the shape or type of input 0.
const OperatorNames& ShapeChanges() {
  static const auto* const kNames =
      new OperatorNames{"Cast",  "CastLike", "Expand",  "Flatten", "Identity",  "Reshape",
                        "Slice", "Split",    "Squeeze", "Tile",    "Transpose", "Unsqueeze"};
  return *kNames;
}

// Functions of each element of one value.
const OperatorNames& UnaryFunctions() {
  static const auto* const kNames = new OperatorNames{
      "Abs", "Exp", "Log", "Neg", "Reciprocal", "Relu", "Sigmoid", "Softplus", "Sqrt", "Tanh"};
  return *kNames;
}

const OperatorNames& BinaryFunctions() {
  static const auto* const kNames =
      new OperatorNames{"Add",  "Div",         "Equal", "Greater", "GreaterOrEqual",
                        "Less", "LessOrEqual", "Max",   "Mean",    "Min",
                        "Mod",  "Mul",         "Pow",   "Sub",     "Sum",
                        "Where"};
  return *kNames;
}

bool IsIn(const InputsByOperator& table, const onnx::NodeProto& node, int input) {
  const auto found = table.find(node.op_type());
  return found != table.end() && found->second.count(input) > 0;
}

}  // namespace

InitializerReaders::InitializerReaders(const onnx::ModelProto& model) {
  for (const onnx::FunctionProto& function : model.functions()) {
    functions_.emplace(function.domain(), function.name());
  }
  AddNodes(model.graph().node());
  FindRawInputs(model.graph());
}

void InitializerReaders::AddNodes(
    const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes) {
  for (const onnx::NodeProto& node : nodes) {
    for (int i = 0; i < node.input_size(); ++i) readers_[node.input(i)].emplace_back(&node, i);
    for (const onnx::AttributeProto& attribute : node.attribute()) {
      if (attribute.has_g()) AddNodes(attribute.g().node());
      for (const onnx::GraphProto& body : attribute.graphs()) AddNodes(body.node());
    }
  }
}

void InitializerReaders::FindRawInputs(const onnx::GraphProto& graph) {
  std::unordered_set<std::string> constant;
  for (const onnx::TensorProto& tensor : graph.initializer()) constant.insert(tensor.name());
  for (const onnx::ValueInfoProto& input : graph.input()) {
    if (constant.count(input.name()) == 0) raw_[input.name()] = input.name();
  }
  static const auto* const kArithmetic = new OperatorNames{"Add", "Div", "Mul", "Sub"};
  for (const onnx::NodeProto& node : graph.node()) {
    if (node.output_size() == 0) continue;
    const bool binary = kArithmetic->count(node.op_type()) > 0;
    const bool unary =
        ShapeChanges().count(node.op_type()) > 0 || UnaryFunctions().count(node.op_type()) > 0;
    const int operands = binary ? 2 : unary ? 1 : 0;
    std::string from;
    bool known = node.op_type() == "Constant" || operands > 0;
    for (int i = 0; i < operands && known; ++i) {
      if (i >= node.input_size()) {
        known = false;
      } else if (const auto raw = raw_.find(node.input(i)); raw != raw_.end()) {
        from = raw->second;
      } else {
        known = constant.count(node.input(i)) > 0;
      }
    }
    if (!known) continue;
    if (from.empty()) {
      constant.insert(node.output(0));
    } else if (binary || ShapeChanges().count(node.op_type()) > 0) {
      raw_[node.output(0)] = from;
    }
  }
}

InitializerUses InitializerReaders::UsesOf(const std::string& name) const {
  InitializerUses uses;
  bool only_normalizes = true;
  std::set<std::string> seen = {name};
  std::vector<std::string> open = {name};
  while (!open.empty()) {
    const std::string value = std::move(open.back());
    open.pop_back();
    const auto found = readers_.find(value);
    if (found == readers_.end()) continue;
    for (const auto& [node, input] : found->second) {
      if (functions_.count({node->domain(), node->op_type()}) > 0) {
        uses.other = true;
      } else if (IsIn(WeightInputs(), *node, input)) {
        uses.weight_of = node;
      } else if (IsIn(SettingInputs(), *node, input)) {
        uses.setting = true;
      } else if (node->op_type() == "BatchNormalization" && input > 2) {
        uses.statistics = true;
      } else if (BinaryFunctions().count(node->op_type()) > 0) {
        uses.elementwise = true;
        std::string with;
        for (const std::string& operand : node->input()) {
          const auto raw = raw_.find(operand);
          if (operand != value && raw != raw_.end()) with = raw->second;
        }
        only_normalizes = only_normalizes && !with.empty();
        if (!with.empty()) uses.normalizes = with;
      } else if (input == 0 && (ShapeChanges().count(node->op_type()) > 0 ||
                                UnaryFunctions().count(node->op_type()) > 0)) {
        for (const std::string& output : node->output()) {
          if (seen.size() >= kMaxBehindInitializer) {
            uses.other = true;
          } else if (seen.insert(output).second) {
            open.push_back(output);
          }
        }
      } else {
        uses.other = true;
      }
    }
  }
  if (!only_normalizes) uses.normalizes.clear();
  return uses;
}

}  // namespace espalier::onnx_import
