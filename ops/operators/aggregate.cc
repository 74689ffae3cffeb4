#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/operators/experts.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

constexpr int kGateValues = 0, kAssign = 1, kGateFull = 2, kExperts = 3;

absl::StatusOr<std::vector<TensorType>> InferAggregate(const std::string& op, bool rows_by_choice,
                                                       const NodeTypes& types) {
  const InputRef gates{op, "gate_values", types.inputs[kGateValues]};
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(gates));
  ESPALIER_RETURN_IF_ERROR(ExpectRank(gates, 2));
  const int64_t samples = gates.type.dims[0], k = gates.type.dims[1];
  const InputRef assign{op, "assign", types.inputs[kAssign]};
  ESPALIER_RETURN_IF_ERROR(ExpectAssign(assign, samples));
  ESPALIER_RETURN_IF_ERROR(ExpectShape(assign, {samples, k}, "'gate_values' has this shape"));
  absl::StatusOr<int64_t> capacity = ExpertCapacity(op, types.attributes, samples, k);
  if (!capacity.ok()) return capacity.status();
  const int64_t n = types.attributes.Int("n");
  const InputRef full{op, "gate_full", types.inputs[kGateFull]};
  ESPALIER_RETURN_IF_ERROR(ExpectSameDType(full, gates));
  ESPALIER_RETURN_IF_ERROR(
      ExpectShape(full, {samples, n}, absl::StrCat("there are ", n, " experts")));
  if (static_cast<int64_t>(types.inputs.size()) != kExperts + n) {
    return OpError(op, absl::StrCat("there are ", types.inputs.size() - kExperts,
                                    " outputs of experts, expected ", n, " as attribute 'n' says"));
  }
  const InputRef first{op, "expert0", types.inputs[kExperts]};
  for (int64_t e = 0; e < n; ++e) {
    const std::string name = absl::StrCat("expert", e);
    const InputRef expert{op, name, types.inputs[kExperts + e]};
    ESPALIER_RETURN_IF_ERROR(ExpectSameDType(expert, gates));
    ESPALIER_RETURN_IF_ERROR(
        ExpectShape(expert, {*capacity, "E"}, absl::StrCat("an expert's capacity is ", *capacity)));
    ESPALIER_RETURN_IF_ERROR(ExpectSameType(expert, first));
  }
  int64_t rows = samples;
  if (rows_by_choice && __builtin_mul_overflow(samples, k, &rows)) {
    return OpError(op, "there are too many choices");
  }
  return std::vector<TensorType>{{gates.type.dtype, {rows, first.type.dims[1]}}};
}

// `columns`: shards may hold columns. Not for aggregate_spec, whose gradient compares errors of
// whole rows.
SplitRule SplitAggregate(const NodeTypes& types, bool columns) {
  constexpr int kSample = 0, kColumn = 1;
  SplitRule rule;
  rule.axes = {{"sample", AxisKind::kSample, types.inputs[kGateValues].dims[0]}};
  if (columns) {
    rule.axes.push_back({"dim1", AxisKind::kAttribute, types.inputs[kExperts].dims[1]});
  }
  const int column = columns ? kColumn : kNotSplit;
  rule.inputs = {{kSample, kNotSplit}, {kNotSplit, kNotSplit}, {kSample, kNotSplit}};
  rule.inputs.resize(types.inputs.size(), {kNotSplit, column});
  rule.outputs = {{kSample, column}};
  return rule;
}

OpDef MakeAggregate(const std::string& name, const std::string& doc, bool rows_by_choice) {
  OpDef def;
  def.name = name;
  def.doc = absl::StrCat(
      "gate_values[N, k], assign[N, k], gate_full[N, n], experts' outputs n of [capacity, E] -> ",
      doc);
  def.inputs = {{"gate_values"}, {"assign"}, {"gate_full"}, {.name = "expert", .variadic = true}};
  def.attributes = ExpertAttributes();
  def.attributes.push_back(
      {"lambda_balance", AttributeKind::kFloat, 0.0, false, "weight of the load-balance loss"});
  def.infer = [=](const NodeTypes& types) { return InferAggregate(name, rows_by_choice, types); };
  def.split = [=](const NodeTypes& types) { return SplitAggregate(types, !rows_by_choice); };
  def.cost = [](const NodeTypes& types) {
    return Cost{2.0 * static_cast<double>(types.inputs[kGateValues].num_elements()) *
                    static_cast<double>(types.inputs[kExperts].dims[1]),
                OperandBytes(types)};
  };
  return def;
}

}  // namespace

void RegisterAggregate(OpRegistry& registry) {
  OpDef aggregate = MakeAggregate(
      "aggregate",
      "[N, E]: the sum over a sample's choices of gate value * row; dropped choices count as 0 "
      "(see group_by); the gradient of gate_full is that of "
      "lambda_balance * load_balance_loss(gate_full, assign)",
      /*rows_by_choice=*/false);
  aggregate.gradient = Gradient{.needs_inputs = {kGateValues, kAssign, kExperts},
                                .differentiable = {kGateValues, kGateFull, kExperts}};
  registry.Add(std::move(aggregate));

  // FlexFlow's aggregate_spec (src/ops/aggregate_spec): experts specialize, each by its own error,
  // and the gate learns which expert has the least error. Its gradient is this rule, not a
  // derivative.
  OpDef spec = MakeAggregate(
      "aggregate_spec",
      "[N * k, E]: the row of each choice, for a loss of each expert's own answer; dropped choices "
      "are 0 (see group_by). On the way back a row's gradient d reaches its expert times the gate "
      "value p; gate_full of a chosen expert gets |d|^2 / (sum of |d|^2 over the sample's "
      "choices) - (1 - p), all get the gradient of "
      "lambda_balance * load_balance_loss(gate_full, assign), less their mean over the experts",
      /*rows_by_choice=*/true);
  spec.gradient = Gradient{.needs_inputs = {kGateValues, kAssign},
                           .differentiable = {kGateFull, kExperts},
                           .constants = {kGateValues}};
  registry.Add(std::move(spec));
}

}  // namespace espalier
