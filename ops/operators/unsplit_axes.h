// Shared by operators that work along some dimensions and leave the others alone.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "ops/schema/op_def.h"

namespace espalier {

// marked[d]: attribute 'axes' names dimension d, from the end if negative. InvalidArgument if it
// names one that is not there, or one twice.
absl::StatusOr<std::vector<bool>> MarkAxes(absl::string_view op, const std::vector<int64_t>& axes,
                                           size_t rank);

// All operands have the rank of input 0. Dimensions for which whole[d] is set are not split, the
// others along one axis each.
SplitRule SplitAllBut(const std::vector<bool>& whole, const NodeTypes& types);

// Likewise; what is not split is the dimension that attribute 'axis' names.
SplitRule SplitAllButAxis(const NodeTypes& types);

}  // namespace espalier
