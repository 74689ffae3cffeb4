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

}  // namespace espalier
