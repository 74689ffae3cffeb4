#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/operators/experts.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::StatusOr<std::vector<TensorType>> InferLoadBalanceLoss(const NodeTypes& types) {
  const InputRef gates{"load_balance_loss", "gate_full", types.inputs[0]};
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(gates));
  ESPALIER_RETURN_IF_ERROR(ExpectRank(gates, 2));
  const InputRef assign{"load_balance_loss", "assign", types.inputs[1]};
  ESPALIER_RETURN_IF_ERROR(ExpectAssign(assign, gates.type.dims[0]));
  return std::vector<TensorType>{{DType::kF32, {}}};
}

}  // namespace

void RegisterLoadBalanceLoss(OpRegistry& registry) {
  OpDef def;
  def.name = "load_balance_loss";
  def.doc =
      "gate_full[N, n], assign[N, k] -> scalar n * sum over experts of (their fraction of all "
      "choices * their mean gate); 1 where both are even";
  def.inputs = {{"gate_full"}, {"assign"}};
  def.precision = Precision::kF32;
  def.attributes = {
      {"count", AttributeKind::kInt, int64_t{0}, false, "samples in the whole batch; filled in"}};
  def.infer = InferLoadBalanceLoss;
  def.canonicalize = [](const NodeTypes& types, Attributes* attributes) {
    if (attributes->Int("count") == 0) attributes->Set("count", types.inputs[0].dims[0]);
  };
  def.split = [](const NodeTypes& types) {
    SplitRule rule;
    rule.axes = {{"sample", AxisKind::kSample, types.inputs[0].dims[0]}};
    rule.inputs = {{0, kNotSplit}, {kNotSplit, kNotSplit}};
    rule.outputs = {{}};
    return rule;
  };
  def.cost = [](const NodeTypes& types) {
    return Cost{2.0 * static_cast<double>(types.inputs[0].num_elements()), OperandBytes(types)};
  };
  def.gradient = Gradient{.needs_inputs = {0, 1}, .differentiable = {0}};
  def.is_loss = true;
  registry.Add(std::move(def));
}

}  // namespace espalier
