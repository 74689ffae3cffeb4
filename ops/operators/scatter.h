// Shared by the operators that read or write at places given by a tensor of indices.
#pragma once

#include "ops/operators/expect.h"
#include "ops/schema/op_def.h"

namespace espalier {

// Inputs x and indices of one rank, attribute 'axis': indices are i32 or i64, and no longer than x
// in the other dimensions.
absl::Status ExpectElementIndices(absl::string_view op, const NodeTypes& types);

// Axes for inputs 0 and 1 of such an operator: the dimensions that x and indices have in common
// and, if `split_axis`, the indices along 'axis'. Outputs are left to the caller.
SplitRule SplitElementIndices(const NodeTypes& types, bool split_axis);

// Inputs x and indices[..., k], whose last dimension holds places in dimensions batch_dims to
// batch_dims + k - 1 of x; the first batch_dims dimensions are shared.
absl::Status ExpectNdIndices(absl::string_view op, const NodeTypes& types, int64_t batch_dims);

// Attribute 'reduction' of the scatters, and whether it suits the type of x.
AttributeSpec ReductionAttribute();
absl::Status ExpectReduction(const InputRef& x, const Attributes& attributes);

}  // namespace espalier
