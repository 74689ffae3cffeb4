#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> Infer(const NodeTypes& types) {
  const InputRef x{"rms_norm", "x", types.inputs[0]};
  const InputRef weight{"rms_norm", "weight", types.inputs[1]};
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(x));
  ESPALIER_RETURN_IF_ERROR(ExpectRankAtLeast(x, 1));
  const int64_t size = x.type.dims.back();
  ESPALIER_RETURN_IF_ERROR(ExpectSameDType(weight, x));
  ESPALIER_RETURN_IF_ERROR(ExpectShape(weight, {size}, absl::StrCat("'x' ends in ", size)));
  if (!(types.attributes.Float("epsilon") >= 0)) {
    return AttributeError("rms_norm", "epsilon", std::to_string(types.attributes.Float("epsilon")),
                          "a number >= 0");
  }
  return std::vector<TensorType>{x.type};
}

}  // namespace

void RegisterRmsNorm(OpRegistry& registry) {
  OpDef def;
  def.name = "rms_norm";
  def.doc = "x[..., E], weight[E] -> x / sqrt(mean(x^2) + epsilon) * weight";
  def.inputs = {{"x"}, {"weight"}};
  def.attributes = {{"epsilon", AttributeKind::kFloat, 1e-5, false, "added to the mean square"}};
  def.infer = Infer;
  def.split = [](const NodeTypes& types) {
    const Dims& x = types.inputs[0].dims;
    SplitRule rule;
    std::vector<int> map = AddLeadingAxes(x, x.size() - 1, &rule);
    map.push_back(kNotSplit);
    rule.inputs = {map, {kNotSplit}};
    rule.outputs = {map};
    return rule;
  };
  def.cost = [](const NodeTypes& types) {
    return Cost{4.0 * static_cast<double>(types.outputs[0].num_elements()), OperandBytes(types)};
  };
  def.gradient = Gradient{.needs_inputs = {0, 1}, .needs_outputs = {}, .differentiable = {0, 1}};
  registry.Add(std::move(def));
}

}  // namespace espalier
