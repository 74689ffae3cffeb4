// Operators that read or write at positions given by an index tensor.
#pragma once

#include "ops/operators/expect.h"
#include "ops/schema/op_def.h"

namespace espalier {

// Checks x and indices of the same rank and attribute 'axis': indices are i32 or i64 and no longer
// than x in the other dimensions.
absl::Status ExpectElementIndices(absl::string_view op, const NodeTypes& types);

// Returns axes for inputs 0 and 1: the dimensions that x and indices share and, if `split_axis`,
// the indices along 'axis'. The caller fills in the outputs.
SplitRule SplitElementIndices(const NodeTypes& types, bool split_axis);

// Checks x and indices[..., k], whose last dimension holds positions in dimensions batch_dims to
// batch_dims + k - 1 of x; the first batch_dims dimensions are shared.
absl::Status ExpectNdIndices(absl::string_view op, const NodeTypes& types, int64_t batch_dims);

// The attribute 'reduction', and a check that it suits the type of x.
AttributeSpec ReductionAttribute();
absl::Status ExpectReduction(const InputRef& x, const Attributes& attributes);
// For Gradient::refusal.
std::string RefuseScatterGradient(const Attributes& attributes);

}  // namespace espalier
