#include "ops/operators/optimizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"

namespace espalier {
namespace {

constexpr size_t kScale = 2, kHyper = 3, kBuffers = 4;

SplitRule SplitOptimizer(const NodeTypes& types) {
  SplitRule rule;
  const Dims& dims = types.inputs[0].dims;
  const std::vector<int> axes = AddLeadingAxes(dims, dims.size(), &rule);
  for (Axis& axis : rule.axes) axis.kind = AxisKind::kParameter;
  rule.inputs.assign(types.inputs.size(), axes);
  rule.inputs[kScale] = {};
  rule.inputs[kHyper] = {kNotSplit};
  for (size_t i = kBuffers; i < types.inputs.size(); ++i) {
    if (!types.has_input(i)) rule.inputs[i] = {};
  }
  rule.outputs = {axes};
  return rule;
}

}  // namespace

absl::Status ExpectInRange(absl::string_view op, const Attributes& attributes,
                           absl::string_view name, double low, double high) {
  const double value = attributes.Float(std::string(name));
  if (value >= low && value < high) return absl::OkStatus();
  return AttributeError(op, name, absl::StrCat(value),
                        absl::StrCat("a number in [", low, ", ", high, ")"));
}

std::function<std::vector<Update::State>(const Attributes&, const Dims&)> StatesLikeParameter(
    const std::vector<std::string>& names) {
  return [names](const Attributes&, const Dims&) {
    std::vector<Update::State> states;
    for (const std::string& name : names) states.push_back({name, std::nullopt});
    return states;
  };
}

OpDef MakeUpdate(const std::string& name, const std::string& doc, const std::vector<Arity>& buffers,
                 double flops_per_element) {
  OpDef def;
  def.name = name;
  def.doc = doc;
  def.inputs = {{"parameter"}, {"gradient"}, {"scale", /*optional=*/true}, {"hyper"}};
  def.inputs.insert(def.inputs.end(), buffers.begin(), buffers.end());
  def.infer = [name, inputs = def.inputs](
                  const NodeTypes& types) -> absl::StatusOr<std::vector<TensorType>> {
    const InputRef parameter{name, "parameter", types.inputs[0]};
    ESPALIER_RETURN_IF_ERROR(ExpectDType(parameter, {DType::kF32}));
    for (size_t i = 1; i < types.inputs.size(); ++i) {
      const InputRef input{name, inputs[i].name, types.inputs[i]};
      if (!types.has_input(i)) continue;
      if (i == kScale || i == kHyper) {
        ESPALIER_RETURN_IF_ERROR(ExpectDType(input, {DType::kF32}));
        ESPALIER_RETURN_IF_ERROR(ExpectShape(input, i == kScale
                                                        ? std::vector<ExpectedDim>{}
                                                        : std::vector<ExpectedDim>{int64_t{2}}));
      } else {
        ESPALIER_RETURN_IF_ERROR(ExpectSameType(input, parameter));
      }
    }
    return std::vector<TensorType>{types.inputs[0]};
  };
  def.split = SplitOptimizer;
  def.cost = [flops_per_element](const NodeTypes& types) {
    const double elements = static_cast<double>(types.inputs[0].num_elements());
    // Buffers are read (counted among the operands) and written.
    double bytes = OperandBytes(types);
    for (size_t i = kBuffers; i < types.inputs.size(); ++i) {
      if (types.has_input(i)) bytes += static_cast<double>(types.inputs[i].bytes());
    }
    return Cost{flops_per_element * elements, bytes};
  };
  return def;
}

}  // namespace espalier
