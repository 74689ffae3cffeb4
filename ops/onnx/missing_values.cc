#include "ops/onnx/missing_values.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "ops/onnx/initializer_names.h"
#include "ops/onnx/initializer_uses.h"
#include "ops/onnx/tensor_proto.h"

namespace espalier::onnx_import {
namespace {

constexpr size_t kNamed = 8;
constexpr double kPReluSlope = 0.25;

// False unless it is a floating-point tensor of a fixed shape without empty dimensions.
bool FixedType(const onnx::ValueInfoProto& input, TensorType* type) {
  if (!input.type().has_tensor_type() || !input.type().tensor_type().has_shape()) return false;
  const int element = input.type().tensor_type().elem_type();
  type->dtype = FromOnnx(element);
  if (!IsFloat(type->dtype) || element == onnx::TensorProto::DOUBLE) return false;
  for (const auto& dim : input.type().tensor_type().shape().dim()) {
    if (!dim.has_dim_value() || dim.dim_value() <= 0) return false;
    type->dims.push_back(dim.dim_value());
  }
  return true;
}

bool IsRecurrent(const std::string& op) { return op == "LSTM" || op == "GRU" || op == "RNN"; }

// Whether `name` is input `index` of the node.
bool IsInput(const onnx::NodeProto& node, int index, const std::string& name) {
  return index < node.input_size() && node.input(index) == name;
}

// Whether any BatchNormalization reads it as its running variance.
bool IsVariance(const onnx::ModelProto& model, const std::string& name) {
  return std::any_of(model.graph().node().begin(), model.graph().node().end(),
                     [&](const onnx::NodeProto& node) {
                       return node.op_type() == "BatchNormalization" && IsInput(node, 4, name);
                     });
}

Initializer StartOf(const std::string& name, const TensorType& type, const InitializerUses& uses) {
  const onnx::NodeProto* node = uses.weight_of;
  if (node != nullptr && absl::EndsWith(node->op_type(), "Normalization")) {
    return {IsInput(*node, 1, name) ? Initializer::kOnes : Initializer::kZeros};
  }
  if (node != nullptr && node->op_type() == "PRelu") {
    return {Initializer::kConstant, 0, kPReluSlope};
  }
  if (node != nullptr && IsRecurrent(node->op_type()) && IsInput(*node, 3, name)) {
    return {Initializer::kZeros};
  }
  if (type.dims.size() > 1) return {Initializer::kGlorotUniform};
  // Scales of norms that the exporter wrote as single operators.
  const bool scale = node == nullptr && uses.elementwise && absl::EndsWith(name, "weight");
  return {scale ? Initializer::kOnes : Initializer::kZeros};
}

std::string Describe(const Initializer& initializer) {
  switch (initializer.kind) {
    case Initializer::kGlorotUniform:
      return "Glorot's uniform distribution";
    case Initializer::kOnes:
      return "1";
    case Initializer::kConstant:
      return absl::StrCat(initializer.mean);
    default:
      return "0";
  }
}

}  // namespace

MissingValues FindMissingValues(const onnx::ModelProto& model,
                                const std::function<bool(const std::string&)>& has_data,
                                const std::set<std::string>& parameters) {
  MissingValues found;
  if (has_data == nullptr) return found;
  std::set<std::string> initializers;
  for (const onnx::TensorProto& tensor : model.graph().initializer()) {
    initializers.insert(tensor.name());
  }
  const InitializerReaders readers(model);
  for (const onnx::ValueInfoProto& input : model.graph().input()) {
    const std::string& name = input.name();
    TensorType type;
    if (initializers.count(name) > 0 || !FixedType(input, &type) || has_data(name)) continue;
    const InitializerUses uses = readers.UsesOf(name);
    const bool weight = uses.weight_of != nullptr || uses.elementwise || uses.other;
    const bool statistics = uses.statistics && !weight && !uses.setting;
    const bool named = KindOfName(name) == NameKind::kParameter && weight && !uses.setting;
    if (!statistics && !named && parameters.count(name) == 0) continue;
    MissingValue& missing = found[name];
    missing.initializer =
        statistics ? Initializer{IsVariance(model, name) ? Initializer::kOnes : Initializer::kZeros}
                   : StartOf(name, type, uses);
    missing.trained = !statistics;
    missing.reason = absl::StrCat(statistics ? "running statistics"
                                  : named    ? "named like a parameter"
                                             : "named in train_only",
                                  ", without values: starts from ", Describe(missing.initializer));
    missing.type = std::move(type);
  }
  return found;
}

std::vector<std::string> NotesOnMissingValues(const MissingValues& missing) {
  std::map<std::string, std::vector<std::string>> by_start;
  for (const auto& [name, value] : missing) {
    by_start[Describe(value.initializer)].push_back(name);
  }
  std::vector<std::string> notes;
  for (auto& [start, names] : by_start) {
    const size_t count = names.size();
    names.resize(std::min(count, kNamed));
    notes.push_back(absl::StrCat(
        count == 1 ? "a parameter without a value in the file starts from "
                   : absl::StrCat(count, " parameters without values in the file start from "),
        start, ": ", absl::StrJoin(names, ", "), count > kNamed ? ", ..." : ""));
  }
  return notes;
}

}  // namespace espalier::onnx_import
