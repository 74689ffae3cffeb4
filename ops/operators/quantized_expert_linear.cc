// expert_linear whose weights are kept in fewer bits and multiplied as they are, for serving. Rows
// of x are rounded to 8 bits where the weights have 8 or 4.
#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/kernel/packed_weights.h"
#include "ops/operators/expect.h"
#include "ops/operators/experts.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

constexpr char kOp[] = "quantized_expert_linear";

absl::StatusOr<std::vector<TensorType>> Infer(const NodeTypes& types) {
  const InputRef x{kOp, "x", types.inputs[0]}, weight{kOp, "weight", types.inputs[1]};
  ESPALIER_RETURN_IF_ERROR(ExpectDType(x, {DType::kF32}));
  if (x.type.dims.size() != 3) ESPALIER_RETURN_IF_ERROR(ExpectRank(x, 2));
  const int64_t in = x.type.dims.back(), out = types.attributes.Int("out");
  const int64_t bits = types.attributes.Int("bits");
  ESPALIER_RETURN_IF_ERROR(ExpectPositive(kOp, "out", out));
  constexpr int64_t kMost = int64_t{1} << 31;
  if (in < 1 || in > kMost || out > kMost) {
    return OpError(
        kOp, absl::StrCat("matrices of ", out, " x ", in, "; expected 1 to 2^31 rows and columns"));
  }
  if (bits == 16) {
    ESPALIER_RETURN_IF_ERROR(ExpectDType(weight, {DType::kBF16}));
    ESPALIER_RETURN_IF_ERROR(
        ExpectShape(weight, {"experts", out, in}, "'out' rows as long as 'x' ends"));
  } else if (bits == 8 || bits == 4) {
    const PackedWeights packed{static_cast<int>(bits), out, in};
    ESPALIER_RETURN_IF_ERROR(ExpectDType(weight, {DType::kU8}));
    ESPALIER_RETURN_IF_ERROR(
        ExpectShape(weight, {"experts", packed.blocks(), packed.block_bytes()},
                    absl::StrCat("blocks of 16 outputs of ", out, " x ", in, " weights")));
  } else {
    return AttributeError(kOp, "bits", absl::StrCat(bits), "16 (bf16), 8 or 4");
  }
  return InferExpertRows(kOp, types, out);
}

// Packed weights can be cut into blocks of outputs.
SplitRule Split(const NodeTypes& types) {
  const int64_t out = types.attributes.Int("out");
  const int64_t unit = types.attributes.Int("bits") == 16 ? 1 : kPackOutputs;
  const int64_t parts = out % unit == 0 ? out / unit : 0;
  return SplitExpertRows(types, parts, {kNotSplit, parts > 0 ? 1 : kNotSplit, kNotSplit});
}

}  // namespace

void RegisterQuantizedExpertLinear(OpRegistry& registry) {
  OpDef def;
  def.name = kOp;
  def.doc =
      "x[T, in] or [T, k, in] f32, weight, assign[T, k] (i32), gates[T, k]? -> y[T, k, out], or "
      "with gates [T, out]: expert_linear. weight is bf16[n, out, in], or u8[n, blocks, block "
      "bytes] with 8 or 4 bits in groups of 32 inputs (ops/kernel/packed_weights.h); with these x "
      "is rounded to 8 bits in the same groups";
  def.attributes = {
      {"bits", AttributeKind::kInt, std::nullopt, true, "of a weight: 16, 8 or 4"},
      {"out", AttributeKind::kInt, std::nullopt, true, "rows of a whole expert's matrix"},
      {"source", AttributeKind::kString, std::string(), false,
       "the parameter in the model's files that `weight` is made from; empty: weight itself"}};
  def.inputs = {
      {"x"}, {"weight"}, {.name = "assign", .own_type = true}, {"gates", /*optional=*/true}};
  def.infer = Infer;
  def.split = Split;
  def.cost = [](const NodeTypes& types) {
    const TensorType& weight = types.inputs[1];
    return ExpertRowsCost(
        types, static_cast<double>(weight.bytes()) / static_cast<double>(weight.dims[0]));
  };
  registry.Add(std::move(def));
}

}  // namespace espalier
