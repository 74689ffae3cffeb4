#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferGroupNorm(const NodeTypes& types) {
  const InputRef x{"group_norm", "x", types.inputs[0]};
  ESPALIER_RETURN_IF_ERROR(ExpectRankAtLeast(x, 2));
  const int64_t groups = types.attributes.Int("groups"), channels = x.type.dims[1];
  ESPALIER_RETURN_IF_ERROR(ExpectPositive("group_norm", "groups", groups));
  if (channels % groups != 0) {
    return AttributeError("group_norm", "groups", std::to_string(groups),
                          absl::StrCat("a divisor of the ", channels, " channels of 'x'"));
  }
  const char* names[] = {"x", "scale", "bias"};
  for (size_t i = 1; i < 3; ++i) {
    if (!types.has_input(i)) continue;
    const InputRef input{"group_norm", names[i], types.inputs[i]};
    ESPALIER_RETURN_IF_ERROR(ExpectSameDType(input, x));
    ESPALIER_RETURN_IF_ERROR(
        ExpectShape(input, {channels}, absl::StrCat("'x' has ", channels, " channels")));
  }
  if (!(types.attributes.Float("epsilon") >= 0)) {
    return AttributeError("group_norm", "epsilon",
                          std::to_string(types.attributes.Float("epsilon")), "a number >= 0");
  }
  return std::vector<TensorType>{x.type};
}

// Groups stay whole.
SplitRule SplitGroupNorm(const NodeTypes& types) {
  const Dims& x = types.inputs[0].dims;
  SplitRule rule;
  rule.axes = {{"sample", AxisKind::kSample, x[0]},
               {"groups", AxisKind::kAttribute, types.attributes.Int("groups")}};
  std::vector<int> map(x.size(), kNotSplit);
  map[0] = 0;
  map[1] = 1;
  rule.inputs = {map};
  for (size_t i = 1; i < types.inputs.size(); ++i) {
    rule.inputs.push_back(types.has_input(i) ? std::vector<int>{1} : std::vector<int>{});
  }
  rule.outputs = {map};
  return rule;
}

}  // namespace

void RegisterGroupNorm(OpRegistry& registry) {
  OpDef def;
  def.name = "group_norm";
  def.doc =
      "x[N, C, ...], scale[C]?, bias[C]? -> (x - mean) / sqrt(variance + epsilon) * scale + bias, "
      "moments over each sample's groups of C / groups channels";
  def.inputs = {{"x"}, {"scale", /*optional=*/true}, {"bias", /*optional=*/true}};
  def.precision = Precision::kF32;
  def.types = {DType::kF32, DType::kBF16, DType::kF16};
  def.attributes = {
      {"groups", AttributeKind::kInt, std::nullopt, true, "of channels; C: instance norm"},
      {"epsilon", AttributeKind::kFloat, 1e-5, false, "added to the variance"}};
  def.infer = InferGroupNorm;
  def.split = SplitGroupNorm;
  def.cost = [](const NodeTypes& types) {
    return Cost{8.0 * static_cast<double>(types.outputs[0].num_elements()), OperandBytes(types)};
  };
  def.gradient = Gradient{.needs_inputs = {0, 1}, .needs_outputs = {}, .differentiable = {0, 1, 2}};
  registry.Add(std::move(def));
}

}  // namespace espalier
