// Shared by operators that work along some dimensions and leave the others alone.
#pragma once

#include <vector>

#include "ops/schema/op_def.h"

namespace espalier {

// All operands have the rank of input 0. Dimensions for which whole[d] is set are not split, the
// others along one axis each.
SplitRule SplitAllBut(const std::vector<bool>& whole, const NodeTypes& types);

}  // namespace espalier
