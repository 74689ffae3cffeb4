// Shared by the operators that sum over dimensions.
#pragma once

#include <string>

#include "ops/schema/op_def.h"

namespace espalier {

// y = f(sum of x over axes), with attributes `axes` (empty: all) and `keepdims`. Kept dimensions
// are split as usual; splitting a summed one leaves partial sums.
OpDef MakeReduction(const std::string& name, const std::string& doc);

// Number of elements that each element of the output is the sum of.
int64_t ReducedCount(const NodeTypes& types);

}  // namespace espalier
