// Runs kernels of one element type on operands of several, by conversion in the workspace.
#pragma once

#include "ops/kernel/kernel.h"

namespace espalier {

// Returns a factory that accepts what `inner` accepts and, where f32 operands are mixed with bf16
// or f16 ones, runs `inner` in the narrow type. Input `mask` (-1: none) is not converted, nor are
// the results if `inner` writes each in its own type (kOwnType).
enum class Results { kConverted, kOwnType };
KernelFactory InNarrowest(KernelFactory inner, int mask = -1,
                          Results results = Results::kConverted);

// Returns a factory that runs `inner` in f32 where an operand is bf16 or f16.
KernelFactory InF32(KernelFactory inner);

}  // namespace espalier
