// Quantizes a group of 32 consecutive inputs of a row to int8 with one scale, for products with
// packed weights (ops/kernel/packed_weights.h).
#pragma once

#include "ops/cuda/math/reduce.cuh"

namespace espalier {

struct QuantizedGroup {
  int q;  // this lane's
  int sum;
  float scale;  // NaN if an input is not finite
};

// To be called by a whole warp; each lane passes one input of the group.
__device__ __forceinline__ QuantizedGroup QuantizeGroup(float value) {
  const bool finite = __all_sync(0xffffffffu, isfinite(value));
  const float largest = WarpReduce<MaxOp>(finite ? fabsf(value) : 0.0f);
  const float inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;
  const int q = finite ? __float2int_rn(value * inverse) : 0;
  return {q, __reduce_add_sync(0xffffffffu, q),
          !finite          ? nanf("")
          : inverse > 0.0f ? largest / 127.0f
                           : 0.0f};
}

}  // namespace espalier
