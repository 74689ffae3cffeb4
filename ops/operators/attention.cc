#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

absl::Status CheckAttentionMask(const InputRef& mask, int64_t batch, int64_t heads, int64_t rows,
                                int64_t columns) {
  ESPALIER_RETURN_IF_ERROR(ExpectDType(mask, {DType::kBool, DType::kF32}));
  const Dims& dims = mask.type.dims;
  if (dims == Dims{rows, columns} || dims == Dims{batch, rows, columns} ||
      dims == Dims{batch, heads, rows, columns}) {
    return absl::OkStatus();
  }
  return OpError("attention", absl::StrCat("input 'mask' has shape ", ToString(dims), ", expected ",
                                           ToString(Dims{rows, columns}), ", ",
                                           ToString(Dims{batch, rows, columns}), " or ",
                                           ToString(Dims{batch, heads, rows, columns})));
}

absl::StatusOr<std::vector<TensorType>> InferAttention(const NodeTypes& types) {
  const InputRef q{"attention", "q", types.inputs[0]};
  const InputRef k{"attention", "k", types.inputs[1]};
  const InputRef v{"attention", "v", types.inputs[2]};
  const int64_t head_dim = types.attributes.Int("head_dim");
  ESPALIER_RETURN_IF_ERROR(ExpectPositive("attention", "head_dim", head_dim));
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(q));
  ESPALIER_RETURN_IF_ERROR(ExpectRank(q, 3));
  ESPALIER_RETURN_IF_ERROR(ExpectSameDType(k, q));
  const int64_t batch = q.type.dims[0];
  ESPALIER_RETURN_IF_ERROR(ExpectShape(k, {batch, "T", "heads * head_dim"},
                                       absl::StrCat("'q' holds ", batch, " sequences")));
  ESPALIER_RETURN_IF_ERROR(ExpectSameType(v, k));
  for (const InputRef* input : {&q, &k}) {
    if (input->type.dims[2] % head_dim == 0 && input->type.dims[2] > 0) continue;
    return AttributeError("attention", "head_dim", std::to_string(head_dim),
                          absl::StrCat("a divisor of the last dimension of '", input->name, "', ",
                                       input->type.dims[2]));
  }
  const int64_t heads = q.type.dims[2] / head_dim, kv_heads = k.type.dims[2] / head_dim;
  if (heads % kv_heads != 0) {
    return OpError("attention", absl::StrCat("'q' has ", heads, " heads and 'k' ", kv_heads,
                                             ", expected a multiple of the heads of 'k'"));
  }
  if (types.has_input(3)) {
    const InputRef mask{"attention", "mask", types.inputs[3]};
    ESPALIER_RETURN_IF_ERROR(
        CheckAttentionMask(mask, batch, heads, q.type.dims[1], k.type.dims[1]));
  }
  const double scale = types.attributes.Float("scale");
  if (!(scale >= 0)) {
    return AttributeError("attention", "scale", std::to_string(scale),
                          "a positive number, or 0 for 1/sqrt(head_dim)");
  }
  return std::vector<TensorType>{q.type};
}

SplitRule SplitAttention(const NodeTypes& types) {
  const Dims& q = types.inputs[0].dims;
  const Dims& k = types.inputs[1].dims;
  SplitRule rule;
  rule.axes = {{"sample", AxisKind::kSample, q[0]},
               {"query", AxisKind::kAttribute, q[1]},
               {"heads", AxisKind::kParameter, k[2] / types.attributes.Int("head_dim")}};
  rule.inputs = {{0, 1, 2}, {0, kNotSplit, 2}, {0, kNotSplit, 2}};
  if (types.inputs.size() > 3) {
    switch (types.has_input(3) ? types.inputs[3].dims.size() : 0) {
      case 2:
        rule.inputs.push_back({1, kNotSplit});
        break;
      case 3:
        rule.inputs.push_back({0, 1, kNotSplit});
        break;
      case 4:
        rule.inputs.push_back({0, 2, 1, kNotSplit});
        break;
      default:
        rule.inputs.push_back({});
    }
  }
  rule.outputs = {{0, 1, 2}};
  return rule;
}

Cost AttentionCost(const NodeTypes& types) {
  const double pairs = static_cast<double>(types.inputs[0].num_elements()) *
                       static_cast<double>(types.inputs[1].dims[1]);
  return {(types.attributes.Bool("causal") ? 2.0 : 4.0) * pairs, OperandBytes(types)};
}

}  // namespace

void RegisterAttention(OpRegistry& registry) {
  OpDef def;
  def.name = "attention";
  def.doc =
      "q[B, S, Hq*D], k[B, T, Hk*D], v[B, T, Hk*D], mask? -> softmax(scale * q k^T + mask) v, like "
      "q; "
      "head h of q reads head h * Hk / Hq of k and v. causal: row s sees columns t <= s. mask: "
      "bool "
      "(true = visible) or f32 (added), [S, T], [B, S, T] or [B, Hq, S, T]. A row that sees "
      "nothing "
      "is zero";
  def.inputs = {{"q"}, {"k"}, {"v"}, {.name = "mask", .optional = true, .own_type = true}};
  def.precision = Precision::kNarrow;
  def.attributes = {{"head_dim", AttributeKind::kInt, std::nullopt, true, "D"},
                    {"causal", AttributeKind::kBool, false, false, "row s sees columns t <= s"},
                    {"scale", AttributeKind::kFloat, 0.0, false, "0: 1/sqrt(D)"}};
  def.infer = InferAttention;
  def.split = SplitAttention;
  def.cost = AttentionCost;
  // The backward pass recomputes the probabilities: five products instead of two.
  def.gradient = Gradient{.needs_inputs = {0, 1, 2, 3},
                          .needs_outputs = {},
                          .differentiable = {0, 1, 2},
                          .cost = [](const NodeTypes& types) {
                            Cost cost = AttentionCost(types);
                            return Cost{2.5 * cost.flops, 2 * cost.bytes};
                          }};
  registry.Add(std::move(def));
}

}  // namespace espalier
