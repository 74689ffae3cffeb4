// Shared by the operators of a mixture of experts. Choice j of sample s is one of N * k; those of
// an expert take its rows in order (by sample, then by choice) until its capacity is full, and the
// others are dropped. `assign` is never split: every part must know which row a choice takes.
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

// ceil(alpha * k * samples / n), after a check of the attributes.
absl::StatusOr<int64_t> ExpertCapacity(absl::string_view op, const Attributes& attributes,
                                       int64_t samples, int64_t k);

// What expert_linear and quantized_expert_linear share: inputs x[T, in] or [T, k, in], weight,
// assign[T, k], gates[T, k]?, where the matrix of each expert has `out` rows.
absl::StatusOr<std::vector<TensorType>> InferExpertRows(absl::string_view op,
                                                        const NodeTypes& types, int64_t out);
// Axis 0 is "sample"; with `parts` > 0 axis 1 is "out", cut into at most so many. `weight`: the
// axes of the weight's dimensions.
SplitRule SplitExpertRows(const NodeTypes& types, int64_t parts, std::vector<int> weight);
// `expert_bytes`: what the matrix of one expert takes. Only chosen ones are read.
Cost ExpertRowsCost(const NodeTypes& types, double expert_bytes);

}  // namespace espalier
