// BatchInvariantLinear for weights in bf16, by tiles: 16 outputs by 16 rows. The weights are read as they
// lie; x is laid out anew. x in f32 is split into three numbers of bf16 that add up to it (8 + 8 +
// 8 bits; Henry, Tang, Heinecke, "Leveraging the bfloat16 AI datatype for higher-precision
// computations", 2019), so all products are exact and only sums round, to f32. An element adds its
// inputs 32 by 32 from the first to the last, of each the three parts one after the other: the same
// whatever other rows there are. Numbers below 2^-126 count as zero.
#pragma once

#include "ops/cpu/gemm/batch_invariant_linear.h"

namespace espalier {

// As BatchInvariantLinear. REQUIRES: amx::Available(), weights in bf16.
void BatchInvariantLinearAmx(const BatchInvariantLinearArgs& args);

}  // namespace espalier
