// Numbers of f32 and f16 as sums of bf16 numbers, exactly, and their products by the tensor cores
// (as in "bf16x6": Henry, Tang, Heinecke 2019).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#include "ops/cuda/runtime/ptx.cuh"

namespace espalier {

// The upper halves of two f32 numbers: bf16, cut off.
__device__ __forceinline__ uint32_t TruncatePairToBf16(uint32_t first, uint32_t second) {
  return __byte_perm(first, second, 0x7632);
}
__device__ __forceinline__ uint32_t Bf16Remainder(uint32_t x) {
  return __float_as_uint(__uint_as_float(x) - __uint_as_float(x & 0xffff0000u));
}
// Of an infinity nothing is left.
__device__ __forceinline__ uint32_t FiniteBf16Remainder(uint32_t x) {
  return isfinite(__uint_as_float(x)) ? Bf16Remainder(x) : 0u;
}

// Two f16 numbers as f32.
__device__ __forceinline__ void Widen(uint32_t pair, uint32_t& first, uint32_t& second) {
  __half2 halves;
  memcpy(static_cast<void*>(&halves), &pair, sizeof(pair));
  const float2 wide = __half22float2(halves);
  first = __float_as_uint(wide.x);
  second = __float_as_uint(wide.y);
}

// Products of a sum of kPlanes bf16 numbers, from the largest to the smallest, with one of three:
// those that are not less than 2^-24 of the largest, the smallest first.
template <int kPlanes>
struct SplitProducts {
  struct Planes {
    int narrow, wide;
  };
  static constexpr int kCount = kPlanes == 1 ? 3 : kPlanes == 2 ? 5 : 6;
  static constexpr Planes Of(int n) {
    constexpr Planes one[] = {{0, 2}, {0, 1}, {0, 0}};
    constexpr Planes more[] = {{2, 0}, {0, 2}, {1, 1}, {1, 0}, {0, 1}, {0, 0}};
    return kPlanes == 1 ? one[n] : more[n + 6 - kCount];
  }
};

}  // namespace espalier
