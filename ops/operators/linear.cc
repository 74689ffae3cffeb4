#include "absl/strings/str_cat.h"
#include "ops/operators/activation.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferLinear(const NodeTypes& types) {
  const InputRef x{"linear", "x", types.inputs[0]};
  const InputRef weight{"linear", "weight", types.inputs[1]};
  ESPALIER_RETURN_IF_ERROR(ExpectActivation("linear", types.attributes));
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(x));
  ESPALIER_RETURN_IF_ERROR(ExpectRankAtLeast(x, 1));
  ESPALIER_RETURN_IF_ERROR(ExpectSameDType(weight, x));
  const int64_t in = x.type.dims.back();
  ESPALIER_RETURN_IF_ERROR(ExpectShape(weight, {"out", in}, absl::StrCat("'x' ends in ", in)));
  const int64_t out = weight.type.dims[0];
  if (types.has_input(2)) {
    const InputRef bias{"linear", "bias", types.inputs[2]};
    ESPALIER_RETURN_IF_ERROR(ExpectSameDType(bias, x));
    ESPALIER_RETURN_IF_ERROR(ExpectShape(bias, {out}, absl::StrCat("'weight' has ", out, " rows")));
  }
  TensorType y = x.type;
  y.dims.back() = out;
  return std::vector<TensorType>{y};
}

SplitRule SplitLinear(const NodeTypes& types) {
  const Dims& x = types.inputs[0].dims;
  const Dims& weight = types.inputs[1].dims;
  const bool bias = types.has_input(2);
  SplitRule rule;
  std::vector<int> x_map = AddLeadingAxes(x, x.size() - 1, &rule);
  std::vector<int> y_map = x_map;
  const int out = static_cast<int>(rule.axes.size());
  rule.axes.push_back({"out", AxisKind::kParameter, weight[0]});
  // Each shard of a split reduction would add the bias, and an activation is not linear.
  const bool sums = !bias && !HasActivation(types.attributes);
  const int in = sums ? out + 1 : kNotSplit;
  if (sums) rule.axes.push_back({"in", AxisKind::kReduction, weight[1]});
  x_map.push_back(in);
  y_map.push_back(out);
  rule.inputs = {x_map, {out, in}};
  if (types.inputs.size() > 2)
    rule.inputs.push_back(bias ? std::vector<int>{out} : std::vector<int>{});
  rule.outputs = {y_map};
  return rule;
}

}  // namespace

void RegisterLinear(OpRegistry& registry) {
  OpDef def;
  def.name = "linear";
  def.doc = "x[..., in], weight[out, in], bias[out]? -> activation of x weight^T + bias [..., out]";
  def.attributes = {ActivationAttribute()};
  def.inputs = {
      {"x"}, {.name = "weight", .wide = true}, {.name = "bias", .optional = true, .wide = true}};
  def.precision = Precision::kNarrow;
  def.infer = InferLinear;
  def.split = SplitLinear;
  def.cost = [](const NodeTypes& types) {
    const double in = static_cast<double>(types.inputs[1].dims[1]);
    return Cost{2.0 * static_cast<double>(types.outputs[0].num_elements()) * in,
                OperandBytes(types)};
  };
  def.gradient = Gradient{.needs_inputs = {0, 1, 2},
                          .needs_outputs = {0},
                          .differentiable = {0, 1, 2},
                          .is_needed = ActivationNeeds};
  registry.Add(std::move(def));
}

}  // namespace espalier
