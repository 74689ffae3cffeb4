#include "ops/operators/elementwise.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "ops/operators/expect.h"

namespace espalier {
namespace {

// The axes of the output's dimensions that the dimensions of a broadcast input follow.
std::vector<int> FollowBroadcast(const Dims& input, const Dims& output,
                                 const std::vector<int>& output_axes) {
  std::vector<int> axes(input.size());
  const size_t missing = output.size() - input.size();
  for (size_t d = 0; d < input.size(); ++d) {
    axes[d] = input[d] == output[missing + d] ? output_axes[missing + d] : kNotSplit;
  }
  return axes;
}

}  // namespace

std::vector<DType> ElementTypes(absl::string_view letters) {
  std::vector<DType> types;
  for (DType type : kAllDTypes) {
    const bool wide = type == DType::kI32 || type == DType::kI64;
    const char letter = IsFloat(type) ? 'F' : wide ? 'I' : IsInteger(type) ? 'S' : 'B';
    if (absl::StrContains(letters, letter)) types.push_back(type);
  }
  return types;
}

AttributeSpec FloatAttribute(const std::string& name, double default_value,
                             const std::string& doc) {
  return {.name = name, .kind = AttributeKind::kFloat, .default_value = default_value, .doc = doc};
}

std::function<Cost(const NodeTypes&)> CostPerElement(double flops) {
  return [flops](const NodeTypes& types) {
    return Cost{flops * static_cast<double>(types.outputs[0].num_elements()), OperandBytes(types)};
  };
}

SplitRule SplitBroadcast(const NodeTypes& types) {
  SplitRule rule;
  const Dims& dims = types.outputs[0].dims;
  const std::vector<int> axes = AddLeadingAxes(dims, dims.size(), &rule);
  for (const TensorType& input : types.inputs) {
    rule.inputs.push_back(FollowBroadcast(input.dims, dims, axes));
  }
  rule.outputs = {axes};
  return rule;
}

absl::Status ExpectNumber(absl::string_view op, absl::string_view name, const TensorType& type,
                          bool with_bool) {
  const InputRef input{op, name, type};
  if (with_bool) {
    return ExpectDType(
        input, {DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kI64, DType::kBool});
  }
  return ExpectDType(input, {DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kI64});
}

SplitRule SplitAlike(const NodeTypes& types) {
  SplitRule rule;
  const Dims& dims = types.inputs.empty() ? types.outputs[0].dims : types.inputs[0].dims;
  const std::vector<int> axes = AddLeadingAxes(dims, dims.size(), &rule);
  rule.inputs.assign(types.inputs.size(), axes);
  rule.outputs.assign(types.outputs.size(), axes);
  return rule;
}

SplitRule SplitIntoScalars(const NodeTypes& types, bool as_reduction) {
  SplitRule rule = SplitAlike(types);
  if (as_reduction) {
    for (Axis& axis : rule.axes) axis.kind = AxisKind::kReduction;
  }
  rule.outputs.assign(types.outputs.size(), {});
  return rule;
}

OpDef MakeUnary(const UnaryOp& op) {
  OpDef def;
  def.name = op.name;
  def.doc = op.doc;
  def.inputs = {{"x"}};
  def.attributes = op.attributes;
  def.precision = op.precision;
  if (!op.any_type) def.types = op.types;
  def.onnx = op.onnx;
  def.infer = [output =
                   op.output](const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    TensorType y = types.inputs[0];
    if (output != DType::kInvalid) y.dtype = output;
    return std::vector<TensorType>{y};
  };
  def.split = SplitAlike;
  def.cost = CostPerElement(op.flops);
  if (op.differentiable) {
    def.gradient = Gradient{.differentiable = {0}};
    if (op.saves == Saves::kInput) def.gradient->needs_inputs = {0};
    if (op.saves == Saves::kOutput) def.gradient->needs_outputs = {0};
  }
  return def;
}

OpDef MakeBinary(const BinaryOp& op) {
  OpDef def;
  def.name = op.name;
  def.doc = op.doc;
  def.inputs = {{"a"}, {"b"}};
  def.types = op.types;
  def.onnx = op.onnx;
  def.infer = [name = op.name, output = op.output](
                  const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    const InputRef a{name, "a", types.inputs[0]}, b{name, "b", types.inputs[1]};
    ESPALIER_RETURN_IF_ERROR(ExpectSameDType(b, a));
    absl::StatusOr<Dims> dims = BroadcastDims(name, a.type.dims, b.type.dims);
    if (!dims.ok()) return dims.status();
    return std::vector<TensorType>{
        {output == DType::kInvalid ? a.type.dtype : output, *std::move(dims)}};
  };
  def.split = SplitBroadcast;
  def.cost = CostPerElement(op.flops);
  if (op.differentiable) {
    def.gradient = Gradient{.differentiable = {0, 1}};
    if (op.saves_inputs) def.gradient->needs_inputs = {0, 1};
  }
  return def;
}

}  // namespace espalier
