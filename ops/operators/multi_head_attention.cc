#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

constexpr char kMultiHeadAttention[] = "multi_head_attention";
// Indices of the inputs.
enum { kQuery, kKey, kValue, kWq, kWk, kWv, kWo, kBq, kBk, kBv, kBo, kBiasK, kBiasV, kMask };

const std::vector<Arity>& Inputs() {
  static const auto* inputs =
      new std::vector<Arity>{{"q"},
                             {"k"},
                             {"v"},
                             {.name = "wq", .wide = true},
                             {.name = "wk", .wide = true},
                             {.name = "wv", .wide = true},
                             {.name = "wo", .wide = true},
                             {.name = "bq", .optional = true, .wide = true},
                             {.name = "bk", .optional = true, .wide = true},
                             {.name = "bv", .optional = true, .wide = true},
                             {.name = "bo", .optional = true, .wide = true},
                             {.name = "bias_k", .optional = true, .wide = true},
                             {.name = "bias_v", .optional = true, .wide = true},
                             {.name = "mask", .optional = true, .own_type = true}};
  return *inputs;
}

InputRef At(const NodeTypes& types, int i) {
  return {kMultiHeadAttention, Inputs()[i].name, types.inputs[i]};
}

absl::Status CheckMultiHeadAttentionMask(const NodeTypes& types, int64_t batch, int64_t heads,
                                         int64_t rows, int64_t columns) {
  if (!types.has_input(kMask)) return absl::OkStatus();
  ESPALIER_RETURN_IF_ERROR(ExpectDType(At(types, kMask), {DType::kBool, DType::kF32}));
  const Dims& dims = types.inputs[kMask].dims;
  if (dims == Dims{rows, columns} || dims == Dims{batch, rows, columns} ||
      dims == Dims{batch, heads, rows, columns}) {
    return absl::OkStatus();
  }
  return OpError(
      kMultiHeadAttention,
      absl::StrCat("input 'mask' has shape ", ToString(dims), ", expected ",
                   ToString(Dims{rows, columns}), ", ", ToString(Dims{batch, rows, columns}),
                   " or ", ToString(Dims{batch, heads, rows, columns})));
}

// A weight has `heads` equal parts along `dim`.
absl::Status ExpectHeads(const NodeTypes& types, int input, int dim, int64_t heads) {
  const int64_t size = types.inputs[input].dims[dim];
  if (size > 0 && size % heads == 0) return absl::OkStatus();
  return AttributeError(
      kMultiHeadAttention, "heads", std::to_string(heads),
      absl::StrCat("a divisor of dimension ", dim, " of '", Inputs()[input].name, "', ", size));
}

absl::StatusOr<std::vector<TensorType>> InferMultiHeadAttention(const NodeTypes& types) {
  const int64_t heads = types.attributes.Int("heads");
  ESPALIER_RETURN_IF_ERROR(ExpectPositive(kMultiHeadAttention, "heads", heads));
  const double rate = types.attributes.Float("rate");
  if (!(rate >= 0 && rate < 1)) {
    return AttributeError(kMultiHeadAttention, "rate", std::to_string(rate), "a number in [0, 1)");
  }
  const InputRef q = At(types, kQuery);
  for (int i = kKey; i < kMask; ++i) {
    if (types.has_input(i)) ESPALIER_RETURN_IF_ERROR(ExpectSameDType(At(types, i), q));
  }
  for (int i = kQuery; i <= kValue; ++i) ESPALIER_RETURN_IF_ERROR(ExpectRank(At(types, i), 3));
  for (int i = kWq; i <= kWo; ++i) ESPALIER_RETURN_IF_ERROR(ExpectRank(At(types, i), 2));
  const Dims &x = q.type.dims, &k = types.inputs[kKey].dims, &v = types.inputs[kValue].dims;
  const int64_t batch = x[0], columns = k[1];
  ESPALIER_RETURN_IF_ERROR(ExpectShape(At(types, kKey), {batch, "T", "K"},
                                       absl::StrCat("'q' holds ", batch, " sequences")));
  ESPALIER_RETURN_IF_ERROR(
      ExpectShape(At(types, kValue), {batch, columns, "V"}, absl::StrCat("'k' is ", ToString(k))));
  ESPALIER_RETURN_IF_ERROR(ExpectHeads(types, kWq, 0, heads));
  ESPALIER_RETURN_IF_ERROR(ExpectHeads(types, kWv, 0, heads));
  const int64_t inner = types.inputs[kWq].dims[0], value = types.inputs[kWv].dims[0];
  const int64_t out = types.inputs[kWo].dims[0];
  ESPALIER_RETURN_IF_ERROR(
      ExpectShape(At(types, kWq), {inner, x[2]}, absl::StrCat("'q' ends in ", x[2])));
  ESPALIER_RETURN_IF_ERROR(
      ExpectShape(At(types, kWk), {inner, k[2]},
                  absl::StrCat("'wq' has ", inner, " rows and 'k' ends in ", k[2])));
  ESPALIER_RETURN_IF_ERROR(
      ExpectShape(At(types, kWv), {value, v[2]}, absl::StrCat("'v' ends in ", v[2])));
  ESPALIER_RETURN_IF_ERROR(
      ExpectShape(At(types, kWo), {out, value}, absl::StrCat("'wv' has ", value, " rows")));
  const std::pair<int, int64_t> vectors[] = {{kBq, inner}, {kBk, inner},    {kBv, value},
                                             {kBo, out},   {kBiasK, inner}, {kBiasV, value}};
  for (const auto& [i, size] : vectors) {
    if (!types.has_input(i)) continue;
    ESPALIER_RETURN_IF_ERROR(
        ExpectShape(At(types, i), {size}, "of the projection that it belongs to"));
  }
  if (types.has_input(kBiasK) != types.has_input(kBiasV)) {
    return OpError(kMultiHeadAttention, "inputs 'bias_k' and 'bias_v' must be given together");
  }
  ESPALIER_RETURN_IF_ERROR(CheckMultiHeadAttentionMask(types, batch, heads, x[1], columns));
  return std::vector<TensorType>{{q.type.dtype, {batch, x[1], out}}};
}

SplitRule SplitMultiHeadAttention(const NodeTypes& types) {
  const Dims& q = types.inputs[kQuery].dims;
  SplitRule rule;
  rule.axes = {{"sample", AxisKind::kSample, q[0]}, {"query", AxisKind::kAttribute, q[1]}};
  int heads = kNotSplit;
  // Each shard of the heads gives a partial sum, to which the bias must not be added.
  if (!types.has_input(kBo)) {
    heads = 2;
    rule.axes.push_back({"heads", AxisKind::kReduction, types.attributes.Int("heads")});
  }
  rule.inputs = {{0, 1, kNotSplit},
                 {0, kNotSplit, kNotSplit},
                 {0, kNotSplit, kNotSplit},
                 {heads, kNotSplit},
                 {heads, kNotSplit},
                 {heads, kNotSplit},
                 {kNotSplit, heads},
                 {heads},
                 {heads},
                 {heads},
                 {kNotSplit},
                 {heads},
                 {heads},
                 {}};
  rule.inputs.resize(types.inputs.size());
  for (size_t i = 0; i < rule.inputs.size(); ++i) {
    if (!types.has_input(i)) rule.inputs[i].clear();
  }
  if (types.has_input(kMask)) {
    switch (types.inputs[kMask].dims.size()) {
      case 2:
        rule.inputs[kMask] = {1, kNotSplit};
        break;
      case 3:
        rule.inputs[kMask] = {0, 1, kNotSplit};
        break;
      default:
        rule.inputs[kMask] = {0, heads, 1, kNotSplit};
    }
  }
  rule.outputs = {{0, 1, kNotSplit}};
  return rule;
}

Cost MultiHeadAttentionCost(const NodeTypes& types) {
  const auto elements = [&](int i) { return static_cast<double>(types.inputs[i].num_elements()); };
  const auto rows = [&](int i) { return static_cast<double>(types.inputs[i].dims[0]); };
  const double pairs = elements(kQuery) /
                       static_cast<double>(std::max<int64_t>(1, types.inputs[kQuery].dims[2])) *
                       static_cast<double>(types.inputs[kKey].dims[1]);
  const double projections = elements(kQuery) * rows(kWq) + elements(kKey) * rows(kWk) +
                             elements(kValue) * rows(kWv) +
                             static_cast<double>(types.outputs[0].num_elements()) * rows(kWv);
  return {2.0 * (projections + pairs * (rows(kWq) + rows(kWv))), OperandBytes(types)};
}

}  // namespace

void RegisterMultiHeadAttention(OpRegistry& registry) {
  OpDef def;
  def.name = kMultiHeadAttention;
  def.doc =
      "q[B, S, E], k[B, T, K], v[B, T, V], wq[H*D, E], wk[H*D, K], wv[H*Dv, V], wo[O, H*Dv], "
      "bq?, bk?, bv?, bo?, bias_k[H*D]?, bias_v[H*Dv]?, mask? -> softmax(Q K^T / sqrt(D) + mask) V "
      "per head, projected [B, S, O]. bias_k and bias_v are one more row of K and V, add_zero_attn "
      "one more of zeros; every row sees those. Mask as in attention";
  def.inputs = Inputs();
  def.precision = Precision::kNarrow;
  def.types = {DType::kF32, DType::kBF16, DType::kF16};
  def.attributes = {
      {"heads", AttributeKind::kInt, std::nullopt, true, "H"},
      {"causal", AttributeKind::kBool, false, false, "row s sees columns t <= s"},
      {"rate", AttributeKind::kFloat, 0.0, false, "dropout of the softmax, when training"},
      {"add_zero_attn", AttributeKind::kBool, false, false, "K and V get a row of zeros"}};
  def.infer = InferMultiHeadAttention;
  def.split = SplitMultiHeadAttention;
  def.cost = MultiHeadAttentionCost;
  def.random = true;
  // The backward pass recomputes everything in between.
  def.gradient = Gradient{.needs_inputs = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13},
                          .needs_outputs = {},
                          .differentiable = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
                          .cost = [](const NodeTypes& types) {
                            const Cost cost = MultiHeadAttentionCost(types);
                            return Cost{3.0 * cost.flops, 2.0 * cost.bytes};
                          }};
  registry.Add(std::move(def));
}

}  // namespace espalier
