// Operators of a mixture of experts (FlexFlow's group_by and aggregate). Choice j of sample s is
// one of N * k. The choices of an expert fill its rows in order (by sample, then by choice) up to
// its capacity; the rest are dropped. `assign` is never split, because every shard must know which
// row a choice takes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ops/operators/expect.h"
#include "ops/schema/op_def.h"

namespace espalier {

std::vector<AttributeSpec> ExpertAttributes();  // n, alpha

// `assign` is i32[samples, k].
absl::Status ExpectAssign(const InputRef& assign, int64_t samples);

// Checks the attributes and returns ceil(alpha * k * samples / n).
absl::StatusOr<int64_t> ExpertCapacity(absl::string_view op, const Attributes& attributes,
                                       int64_t samples, int64_t k);

// Shared by expert_linear and quantized_expert_linear: inputs x[T, in] or [T, k, in], weight,
// assign[T, k], gates[T, k]?. The matrix of each expert has `out` rows.
absl::StatusOr<std::vector<TensorType>> InferExpertRows(absl::string_view op,
                                                        const NodeTypes& types, int64_t out);
// Axis 0 is "sample". With `parts` > 0 axis 1 is "out", with at most `parts` parts. `weight`: the
// axes of the weight's dimensions.
SplitRule SplitExpertRows(const NodeTypes& types, int64_t parts, std::vector<int> weight);
// `expert_bytes`: bytes of one expert's matrix. Only chosen experts are read.
Cost ExpertRowsCost(const NodeTypes& types, double expert_bytes);

}  // namespace espalier
