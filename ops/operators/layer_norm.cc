#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> Infer(const NodeTypes& types) {
  const InputRef x{"layer_norm", "x", types.inputs[0]};
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(x));
  ESPALIER_RETURN_IF_ERROR(ExpectRankAtLeast(x, 1));
  const int64_t size = x.type.dims.back();
  const char* names[] = {"x", "scale", "bias"};
  for (size_t i = 1; i < 3; ++i) {
    if (!types.has_input(i)) continue;
    const InputRef input{"layer_norm", names[i], types.inputs[i]};
    ESPALIER_RETURN_IF_ERROR(ExpectSameDType(input, x));
    ESPALIER_RETURN_IF_ERROR(ExpectShape(input, {size}, absl::StrCat("'x' ends in ", size)));
  }
  if (!(types.attributes.Float("epsilon") >= 0)) {
    return AttributeError("layer_norm", "epsilon",
                          std::to_string(types.attributes.Float("epsilon")), "a number >= 0");
  }
  return std::vector<TensorType>{x.type};
}

SplitRule Split(const NodeTypes& types) {
  const Dims& x = types.inputs[0].dims;
  SplitRule rule;
  std::vector<int> map = AddLeadingAxes(x, x.size() - 1, &rule);
  map.push_back(kNotSplit);
  rule.inputs = {map};
  for (size_t i = 1; i < types.inputs.size(); ++i) {
    rule.inputs.emplace_back(types.inputs[i].dims.size(), kNotSplit);
  }
  rule.outputs = {map};
  return rule;
}

}  // namespace

void RegisterLayerNorm(OpRegistry& registry) {
  OpDef def;
  def.name = "layer_norm";
  def.doc =
      "x[..., E], scale[E]?, bias[E]? -> (x - mean) / sqrt(variance + epsilon) * scale + bias";
  def.inputs = {{"x"}, {"scale", /*optional=*/true}, {"bias", /*optional=*/true}};
  def.attributes = {{"epsilon", AttributeKind::kFloat, 1e-5, false, "added to the variance"}};
  def.infer = Infer;
  def.split = Split;
  def.cost = [](const NodeTypes& types) {
    return Cost{8.0 * static_cast<double>(types.outputs[0].num_elements()), OperandBytes(types)};
  };
  def.gradient = Gradient{.needs_inputs = {0, 1}, .needs_outputs = {}, .differentiable = {0, 1, 2}};
  registry.Add(std::move(def));
}

}  // namespace espalier
