// bf16 and f16 on the CPU: conversions, and running an f32 kernel on such operands.
#pragma once

#include <cstdint>
#include <vector>

#include "ops/kernel/kernel.h"
#include "ops/tensor/dtype.h"
#include "ops/tensor/half_conversion.h"

namespace espalier {

// Converts n elements of a floating-point type (f32 included) to f32 and back, in parallel.
void ToF32(DType from, const void* source, float* destination, int64_t n);
void FromF32(DType to, const float* source, void* destination, int64_t n);

// Returns a factory that accepts what `inner` accepts and, where any operand is bf16 or f16, runs
// the f32 kernel on copies in the workspace: widens the operands, computes, and rounds results to
// nearest even. Inputs listed in `written` are converted back, too (for kernels that write inputs).
KernelFactory ViaF32(KernelFactory inner, std::vector<int> written = {});

}  // namespace espalier
