// BatchInvariantLinear for weights in bf16 by AMX tiles of 16 outputs by 16 rows. Weights are read
// in place; x is packed. x in f32 is split into three bf16 numbers that add up to it (8 + 8 + 8
// bits; Henry, Tang, Heinecke, "Leveraging the bfloat16 AI datatype for higher-precision
// computations", 2019), so all products are exact and only sums round, to f32. An element
// accumulates its inputs 32 by 32 from first to last, and of each the three parts in turn: the same
// order whatever the other rows. Numbers below 2^-126 count as zero.
#pragma once

#include "ops/cpu/gemm/batch_invariant_linear.h"

namespace espalier {

// As BatchInvariantLinear. REQUIRES: amx::Available(), weights in bf16.
void BatchInvariantLinearAmx(const BatchInvariantLinearArgs& args);

}  // namespace espalier
