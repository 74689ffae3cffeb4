// expert_linear with quantized weights that are multiplied directly, for serving. With 8- or 4-bit
// weights the rows of x are quantized to 8 bits.
#include <utility>

#include "ops/kernel/packed_weights.h"
#include "ops/operators/expect.h"
#include "ops/operators/experts.h"
#include "ops/operators/quantized_weight.h"
#include "ops/schema/registry.h"

namespace espalier {
namespace {

constexpr char kQuantizedExpertLinear[] = "quantized_expert_linear";

absl::StatusOr<std::vector<TensorType>> InferQuantizedExpertLinear(const NodeTypes& types) {
  const InputRef x{kQuantizedExpertLinear, "x", types.inputs[0]},
      weight{kQuantizedExpertLinear, "weight", types.inputs[1]};
  ESPALIER_RETURN_IF_ERROR(ExpectDType(x, {DType::kF32}));
  if (x.type.dims.size() != 3) ESPALIER_RETURN_IF_ERROR(ExpectRank(x, 2));
  ESPALIER_RETURN_IF_ERROR(
      ExpectQuantizedWeight(weight, x.type.dims.back(), types.attributes, "experts"));
  return InferExpertRows(kQuantizedExpertLinear, types, types.attributes.Int("out"));
}

// Packed weights can be cut between blocks of outputs.
SplitRule SplitQuantizedExpertLinear(const NodeTypes& types) {
  const int64_t out = types.attributes.Int("out");
  const int64_t unit = types.attributes.Int("bits") == 16 ? 1 : kPackOutputs;
  const int64_t parts = out % unit == 0 ? out / unit : 0;
  return SplitExpertRows(types, parts, {kNotSplit, parts > 0 ? 1 : kNotSplit, kNotSplit});
}

}  // namespace

void RegisterQuantizedExpertLinear(OpRegistry& registry) {
  OpDef def;
  def.name = kQuantizedExpertLinear;
  def.doc =
      "x[T, in] or [T, k, in] f32, weight, assign[T, k] (i32), gates[T, k]? -> y[T, k, out], or "
      "with gates [T, out]: expert_linear. weight is bf16 or f16[n, out, in], or u8[n, blocks, "
      "block "
      "bytes] with 8 or 4 bits in groups of 32 inputs (ops/kernel/packed_weights.h); with these x "
      "is rounded to 8 bits in the same groups";
  def.attributes = QuantizedWeightAttributes("rows of a whole expert's matrix");
  def.inputs = {
      {"x"}, {"weight"}, {.name = "assign", .own_type = true}, {"gates", /*optional=*/true}};
  def.infer = InferQuantizedExpertLinear;
  def.split = SplitQuantizedExpertLinear;
  def.cost = [](const NodeTypes& types) {
    const TensorType& weight = types.inputs[1];
    return ExpertRowsCost(
        types, static_cast<double>(weight.bytes()) / static_cast<double>(weight.dims[0]));
  };
  registry.Add(std::move(def));
}

}  // namespace espalier
