// Kernels of one element type for operands of several: conversions in the workspace around them.
#pragma once

#include "ops/kernel/kernel.h"

namespace espalier {

// Takes what `inner` takes and, where f32 operands stand beside bf16 or f16 ones, runs `inner` in
// the narrow type. Input `mask` (-1: none) stays as it is, and so do the results if `inner` writes
// each in its own type.
enum class Results { kConverted, kOwnType };
KernelFactory InNarrowest(KernelFactory inner, int mask = -1,
                          Results results = Results::kConverted);

// Runs `inner` in f32 where an operand is bf16 or f16.
KernelFactory InF32(KernelFactory inner);

}  // namespace espalier
