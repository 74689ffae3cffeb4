// Attention over a paged KV cache, for serving: any mix of prompt chunks, single tokens and token
// trees. RunnerBatch in serving/runner/model_runner.h defines the layout of a batch.
#include "absl/strings/str_cat.h"
#include "ops/kernel/paged_attention_inputs.h"
#include "ops/operators/expect.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

using namespace paged_attention;

constexpr const char* kNames[kNumInputs] = {"q",
                                            "k",
                                            "v",
                                            "k_cache",
                                            "v_cache",
                                            "slots",
                                            "row_sequence",
                                            "row_prefix",
                                            "ancestor_start",
                                            "ancestor_slots",
                                            "sequence_start",
                                            "sequence_slots",
                                            "slopes",
                                            "k_scale",
                                            "v_scale"};

// The cache is floating-point, or i8 with a scale per slot and head.
absl::Status CheckCache(const NodeTypes& types, int64_t head_dim) {
  const auto input = [&](int i) { return InputRef{"paged_attention", kNames[i], types.inputs[i]}; };
  const int64_t width = types.inputs[kK].dims[1];
  ESPALIER_RETURN_IF_ERROR(
      ExpectDType(input(kKCache), {DType::kF32, DType::kBF16, DType::kF16, DType::kI8}));
  ESPALIER_RETURN_IF_ERROR(
      ExpectShape(input(kKCache), {"slots", width}, absl::StrCat("'k' is ", width, " wide")));
  ESPALIER_RETURN_IF_ERROR(ExpectSameType(input(kVCache), input(kKCache)));
  const bool scaled = types.inputs[kKCache].dtype == DType::kI8;
  for (int i : {kKScale, kVScale}) {
    if (types.has_input(i) != scaled) {
      return OpError("paged_attention",
                     absl::StrCat("input '", kNames[i], "' is ", scaled ? "missing" : "given",
                                  "; a cache of ", Name(types.inputs[kKCache].dtype), " has ",
                                  scaled ? "scales" : "no scales"));
    }
    if (!scaled) continue;
    ESPALIER_RETURN_IF_ERROR(ExpectDType(input(i), {DType::kF32}));
    ESPALIER_RETURN_IF_ERROR(
        ExpectShape(input(i), {types.inputs[kKCache].dims[0], width / head_dim},
                    absl::StrCat("'k_cache' has ", types.inputs[kKCache].dims[0], " slots of ",
                                 width / head_dim, " heads")));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorType>> InferPagedAttention(const NodeTypes& types) {
  const auto input = [&](int i) { return InputRef{"paged_attention", kNames[i], types.inputs[i]}; };
  const int64_t head_dim = types.attributes.Int("head_dim");
  ESPALIER_RETURN_IF_ERROR(ExpectPositive("paged_attention", "head_dim", head_dim));
  ESPALIER_RETURN_IF_ERROR(ExpectFloat(input(kQ)));
  ESPALIER_RETURN_IF_ERROR(ExpectRank(input(kQ), 2));
  const int64_t rows = types.inputs[kQ].dims[0];
  const std::string because = absl::StrCat("'q' has ", rows, " rows");
  ESPALIER_RETURN_IF_ERROR(ExpectSameDType(input(kK), input(kQ)));
  ESPALIER_RETURN_IF_ERROR(ExpectShape(input(kK), {rows, "heads * head_dim"}, because));
  ESPALIER_RETURN_IF_ERROR(ExpectSameType(input(kV), input(kK)));
  const int64_t width = types.inputs[kK].dims[1];
  for (int i : {kQ, kK}) {
    const int64_t columns = types.inputs[i].dims[1];
    if (columns > 0 && columns % head_dim == 0) continue;
    return AttributeError(
        "paged_attention", "head_dim", std::to_string(head_dim),
        absl::StrCat("a divisor of the last dimension of '", kNames[i], "', ", columns));
  }
  if (types.inputs[kQ].dims[1] % width != 0) {
    return OpError("paged_attention",
                   absl::StrCat("'q' has ", types.inputs[kQ].dims[1] / head_dim, " heads and 'k' ",
                                width / head_dim, ", expected a multiple of the heads of 'k'"));
  }
  ESPALIER_RETURN_IF_ERROR(CheckCache(types, head_dim));
  for (int i : {kSlots, kRowSequence, kRowPrefix}) {
    ESPALIER_RETURN_IF_ERROR(ExpectDType(input(i), {DType::kI32}));
    ESPALIER_RETURN_IF_ERROR(ExpectShape(input(i), {rows}, because));
  }
  ESPALIER_RETURN_IF_ERROR(ExpectDType(input(kAncestorStart), {DType::kI32}));
  ESPALIER_RETURN_IF_ERROR(ExpectShape(input(kAncestorStart), {rows + 1}, because));
  for (int i : {kAncestorSlots, kSequenceStart, kSequenceSlots}) {
    ESPALIER_RETURN_IF_ERROR(ExpectDType(input(i), {DType::kI32}));
    ESPALIER_RETURN_IF_ERROR(ExpectRank(input(i), 1));
  }
  if (types.has_input(kSlopes)) {
    const int64_t heads = types.inputs[kQ].dims[1] / head_dim;
    ESPALIER_RETURN_IF_ERROR(ExpectDType(input(kSlopes), {DType::kF32}));
    ESPALIER_RETURN_IF_ERROR(
        ExpectShape(input(kSlopes), {heads}, absl::StrCat("'q' has ", heads, " heads")));
  }
  const std::string alibi = types.attributes.String("alibi");
  if (alibi != "relative" && alibi != "bf16") {
    return AttributeError("paged_attention", "alibi", "'" + alibi + "'", "'relative' or 'bf16'");
  }
  const double softcap = types.attributes.Float("softcap");
  if (!(softcap >= 0)) {
    return AttributeError("paged_attention", "softcap", std::to_string(softcap),
                          "a positive number, or 0 for none");
  }
  if (types.attributes.Int("window") < 0) {
    return AttributeError("paged_attention", "window",
                          std::to_string(types.attributes.Int("window")),
                          "a positive number of keys, or 0 for all");
  }
  const double scale = types.attributes.Float("scale");
  if (!(scale >= 0)) {
    return AttributeError("paged_attention", "scale", std::to_string(scale),
                          "a positive number, or 0 for 1/sqrt(head_dim)");
  }
  return std::vector<TensorType>{types.inputs[kQ]};
}

SplitRule SplitPagedAttention(const NodeTypes& types) {
  SplitRule rule;
  rule.axes = {
      {"heads", AxisKind::kParameter, types.inputs[kK].dims[1] / types.attributes.Int("head_dim")}};
  for (int i = 0; i < kSlopes; ++i) {
    rule.inputs.push_back(i <= kVCache ? std::vector<int>{kNotSplit, 0}
                                       : std::vector<int>{kNotSplit});
  }
  const std::vector<int> optional[] = {{0}, {kNotSplit, 0}, {kNotSplit, 0}};  // from slopes on
  for (size_t i = kSlopes; i < types.inputs.size(); ++i) {
    rule.inputs.push_back(types.has_input(i) ? optional[i - kSlopes] : std::vector<int>{});
  }
  rule.outputs = {{kNotSplit, 0}};
  return rule;
}

}  // namespace

void RegisterPagedAttention(OpRegistry& registry) {
  OpDef def;
  def.name = "paged_attention";
  def.doc =
      "q[T, Hq*D], k[T, Hk*D], v[T, Hk*D], k_cache[slots, Hk*D], v_cache[slots, Hk*D] (both "
      "written), "
      "slots[T], row_sequence[T], row_prefix[T], ancestor_start[T+1], ancestor_slots[*], "
      "sequence_start[*], sequence_slots[*] -> like q: K and V of every row go to its slot; then "
      "row r "
      "attends over the first row_prefix[r] slots of its sequence and over its ancestors, in this "
      "order: key number j has position j, the row itself that of its last key. slopes[Hq]? are "
      "ALiBi's. The cache may be narrower than q: rows are rounded on their way in. One of i8 "
      "comes "
      "with k_scale[slots, Hk]? and v_scale[slots, Hk]? (both written): a 127th of the largest "
      "magnitude of that slot and head, by which its numbers are multiplied";
  for (int i = 0; i < kSlopes; ++i) {
    def.inputs.push_back({.name = kNames[i], .own_type = i == kKCache || i == kVCache});
  }
  for (int i = kSlopes; i < kNumInputs; ++i) {
    def.inputs.push_back({.name = kNames[i], .optional = true, .own_type = true});
  }
  def.attributes = {{"head_dim", AttributeKind::kInt, std::nullopt, true, "D"},
                    {"scale", AttributeKind::kFloat, 0.0, false, "0: 1/sqrt(D)"},
                    {"window", AttributeKind::kInt, int64_t{0}, false,
                     "a row sees this many keys, the last ones, itself among them; 0: all"},
                    {"softcap", AttributeKind::kFloat, 0.0, false,
                     "c: scaled products s become c * tanh(s / c); 0: they stay"},
                    {"alibi", AttributeKind::kString, std::string("relative"), false,
                     "relative: slope * (position of the key - that of the row) is added to the "
                     "scaled product; bf16: slope * position of the key, factors and product "
                     "rounded to bf16, is added before scaling, as Falcon was trained"}};
  def.infer = InferPagedAttention;
  def.split = SplitPagedAttention;
  def.cost = [](const NodeTypes& types) {
    // How much of the cache is read is known only at run time; assumes that all rows share one
    // context.
    const double context = static_cast<double>(types.inputs[kSequenceSlots].dims[0]);
    const double row_bytes = static_cast<double>(types.inputs[kKCache].dims[1]) *
                             static_cast<double>(SizeOf(types.inputs[kKCache].dtype));
    return Cost{4.0 * static_cast<double>(types.inputs[kQ].num_elements()) * context,
                2.0 * context * row_bytes + 2.0 * static_cast<double>(types.inputs[kQ].bytes())};
  };
  registry.Add(std::move(def));
}

}  // namespace espalier
