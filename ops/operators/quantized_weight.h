// The weight of operators that multiply matrices of fewer bits as they are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/operators/expect.h"

namespace espalier {

// `out_doc` says which rows the attribute "out" counts.
std::vector<AttributeSpec> QuantizedWeightAttributes(std::string out_doc);

// With the attributes "out" and "bits" of the node, a weight of 16 bits is bf16 or f16[out, in];
// one of 8 or 4 is u8[blocks, block bytes], as ops/kernel/packed_weights.h has them. With `leading`
// there is one such matrix for each element of a first dimension of that name.
absl::Status ExpectQuantizedWeight(const InputRef& weight, int64_t in, const Attributes& attributes,
                                   std::optional<ExpectedDim> leading = std::nullopt);

}  // namespace espalier
