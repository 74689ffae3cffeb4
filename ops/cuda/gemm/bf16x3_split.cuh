// Splits f32 (into three) and f16 (into two) into bf16 numbers that add up to it exactly, so that
// bf16 tensor cores multiply at f32 precision. Henry, Tang, Heinecke, "Leveraging the bfloat16 AI
// datatype for higher-precision computations", 2019 (bf16x3, bf16x6). "Plane" p holds the p-th term
// of every number, the largest first.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstring>

#include "ops/cuda/runtime/ptx.cuh"

namespace espalier {

// Truncates two f32 numbers (as bits) to bf16; the first goes into the lower half of the result.
__device__ __forceinline__ uint32_t TruncatePairToBf16(uint32_t first, uint32_t second) {
  return __byte_perm(first, second, 0x7632);
}
// x minus its truncation to bf16.
__device__ __forceinline__ uint32_t Bf16Remainder(uint32_t x) {
  return __float_as_uint(__uint_as_float(x) - __uint_as_float(x & 0xffff0000u));
}
// As Bf16Remainder; 0 for an infinity or NaN.
__device__ __forceinline__ uint32_t FiniteBf16Remainder(uint32_t x) {
  return isfinite(__uint_as_float(x)) ? Bf16Remainder(x) : 0u;
}

// Converts a pair of f16 numbers to f32 bits.
__device__ __forceinline__ void Widen(uint32_t pair, uint32_t& first, uint32_t& second) {
  __half2 halves;
  memcpy(static_cast<void*>(&halves), &pair, sizeof(pair));
  const float2 wide = __half22float2(halves);
  first = __float_as_uint(wide.x);
  second = __float_as_uint(wide.y);
}

// Which plane products to accumulate for (sum of kPlanes terms) x (sum of three terms): those of at
// least 2^-24 of the largest, smallest first. Of(n) gives the planes of the n-th of kCount
// products.
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
