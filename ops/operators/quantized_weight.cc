#include "ops/operators/quantized_weight.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "ops/kernel/packed_weights.h"

namespace espalier {

std::vector<AttributeSpec> QuantizedWeightAttributes(std::string out_doc) {
  return {{"bits", AttributeKind::kInt, std::nullopt, true, "of a weight: 16, 8 or 4"},
          {"out", AttributeKind::kInt, std::nullopt, true, std::move(out_doc)},
          {"source", AttributeKind::kString, std::string(), false,
           "the parameter in the model's files that `weight` is made from; empty: weight itself"}};
}

absl::Status ExpectQuantizedWeight(const InputRef& weight, int64_t in, const Attributes& attributes,
                                   std::optional<ExpectedDim> leading) {
  const int64_t out = attributes.Int("out"), bits = attributes.Int("bits");
  ESPALIER_RETURN_IF_ERROR(ExpectPositive(weight.op, "out", out));
  constexpr int64_t kMost = int64_t{1} << 31;
  if (in < 1 || in > kMost || out > kMost) {
    return OpError(weight.op, absl::StrCat("a matrix of ", out, " x ", in,
                                           "; expected 1 to 2^31 rows and columns"));
  }
  std::vector<ExpectedDim> shape;
  if (leading.has_value()) shape.push_back(*std::move(leading));
  if (bits == 16) {
    ESPALIER_RETURN_IF_ERROR(ExpectDType(weight, {DType::kBF16, DType::kF16}));
    shape.insert(shape.end(), {out, in});
    return ExpectShape(weight, shape, "'out' rows as long as 'x' ends");
  }
  if (bits == 8 || bits == 4) {
    const PackedWeights packed{static_cast<int>(bits), out, in};
    ESPALIER_RETURN_IF_ERROR(ExpectDType(weight, {DType::kU8}));
    shape.insert(shape.end(), {packed.blocks(), packed.block_bytes()});
    return ExpectShape(weight, shape,
                       absl::StrCat("blocks of 16 outputs of ", out, " x ", in, " weights"));
  }
  return AttributeError(weight.op, "bits", absl::StrCat(bits), "16 (bf16 or f16), 8 or 4");
}

}  // namespace espalier
