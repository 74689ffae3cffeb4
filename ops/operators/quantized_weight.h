// Weights of operators that multiply with quantized matrices directly.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "ops/operators/expect.h"

namespace espalier {

// `out_doc` documents the attribute "out": the number of rows.
std::vector<AttributeSpec> QuantizedWeightAttributes(std::string out_doc);

// Checks a weight against the attributes "out" and "bits": with 16 bits bf16 or f16[out, in]; with
// 8 or 4 bits u8[blocks, block bytes] (ops/kernel/packed_weights.h). With `leading` there is one
// such matrix per element of a first dimension of that name.
absl::Status ExpectQuantizedWeight(const InputRef& weight, int64_t in, const Attributes& attributes,
                                   std::optional<ExpectedDim> leading = std::nullopt);

}  // namespace espalier
