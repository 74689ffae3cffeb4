// Operators that regroup dimensions without moving elements.
#pragma once

#include "ops/schema/op_def.h"

namespace espalier {

// REQUIRES: input 0 and output 0 hold the same elements in the same order. Groups of input
// dimensions whose product equals that of a group of output dimensions are split along their
// leading dimensions, where both can be cut: [64] to [4, 16] along an axis of size 4.
SplitRule SplitRegrouped(const NodeTypes& types);

}  // namespace espalier
