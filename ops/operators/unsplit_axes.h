// Operators that need some dimensions whole and can be split along the others.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ops/schema/op_def.h"

namespace espalier {

// Returns marked[d]: whether attribute 'axes' names dimension d (negative: from the end). Returns
// InvalidArgument for a dimension that is out of range or named twice.
absl::StatusOr<std::vector<bool>> MarkAxes(absl::string_view op, const std::vector<int64_t>& axes,
                                           size_t rank);

// REQUIRES: all operands have the rank of input 0. Splits along one axis per dimension, except
// dimensions with whole[d].
SplitRule SplitAllBut(const std::vector<bool>& whole, const NodeTypes& types);

// Like SplitAllBut, where only the dimension of attribute 'axis' stays whole.
SplitRule SplitAllButAxis(const NodeTypes& types);

}  // namespace espalier
