// bf16 and f16 on the CPU: conversions, and a way to run an f32 kernel on such data.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "ops/kernel/kernel.h"
#include "ops/tensor/dtype.h"

namespace espalier {

inline float BF16ToF32(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

// Round to nearest even; NaN stays NaN.
inline uint16_t F32ToBF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float F16ToF32(uint16_t value);
uint16_t F32ToF16(float value);  // round to nearest even; beyond 65504: infinity

// n elements of a floating-point type (f32 included) to f32 and back, in parallel.
void ToF32(DType from, const void* source, float* destination, int64_t n);
void FromF32(DType to, const float* source, void* destination, int64_t n);

// A factory that takes what `inner` takes and, where any operand is bf16 or f16, runs the f32
// kernel on copies: operands up, compute, round to nearest even on the way down. The copies lie in
// the workspace. Inputs listed in `written` are converted back afterwards (kernels that write
// inputs).
KernelFactory ViaF32(KernelFactory inner, std::vector<int> written = {});

}  // namespace espalier
