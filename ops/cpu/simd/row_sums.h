// Vectorized sums over long rows, for the norms; each row is summed in one fixed order.
#pragma once

#include "ops/cpu/simd/simd.h"

namespace espalier::simd {

// sum(x[i]). Several partial sums hide the latency of addition, here and below.
template <int W>
ESPALIER_INLINE float SumOf(const float* x, int64_t n) {
  Float<W> acc[4] = {};
  int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) acc[p] += Load<W>(x + i + p * W);
  }
  for (; i + W <= n; i += W) acc[0] += Load<W>(x + i);
  if (i < n) acc[1] += LoadPartial<W>(x + i, n - i);
  return Sum<W>((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

// sum(x[i] * y[i])
template <int W>
ESPALIER_INLINE float Dot(const float* x, const float* y, int64_t n) {
  Float<W> acc[4] = {};
  int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) acc[p] = Load<W>(x + i + p * W) * Load<W>(y + i + p * W) + acc[p];
  }
  for (; i + W <= n; i += W) acc[0] = Load<W>(x + i) * Load<W>(y + i) + acc[0];
  if (i < n) acc[1] = LoadPartial<W>(x + i, n - i) * LoadPartial<W>(y + i, n - i) + acc[1];
  return Sum<W>((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

// sum((x[i] - mean)^2)
template <int W>
ESPALIER_INLINE float SquaredDistance(const float* x, float mean, int64_t n) {
  Float<W> acc[4] = {};
  int64_t i = 0;
  for (; i + 4 * W <= n; i += 4 * W) {
#pragma GCC unroll 4
    for (int p = 0; p < 4; ++p) {
      const Float<W> d = Load<W>(x + i + p * W) - mean;
      acc[p] = d * d + acc[p];
    }
  }
  for (; i + W <= n; i += W) {
    const Float<W> d = Load<W>(x + i) - mean;
    acc[0] = d * d + acc[0];
  }
  if (i < n) {
    const Float<W> d = LoadPartial<W>(x + i, n - i, mean) - mean;
    acc[1] = d * d + acc[1];
  }
  return Sum<W>((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

// sum(x[i] * y[i] * z[i])
template <int W>
ESPALIER_INLINE float Dot3(const float* x, const float* y, const float* z, int64_t n) {
  Float<W> acc[2] = {};
  int64_t i = 0;
  for (; i + 2 * W <= n; i += 2 * W) {
#pragma GCC unroll 2
    for (int p = 0; p < 2; ++p) {
      acc[p] = Load<W>(x + i + p * W) * Load<W>(y + i + p * W) * Load<W>(z + i + p * W) + acc[p];
    }
  }
  for (; i + W <= n; i += W) acc[0] = Load<W>(x + i) * Load<W>(y + i) * Load<W>(z + i) + acc[0];
  if (i < n) {
    acc[1] =
        LoadPartial<W>(x + i, n - i) * LoadPartial<W>(y + i, n - i) * LoadPartial<W>(z + i, n - i) +
        acc[1];
  }
  return Sum<W>(acc[0] + acc[1]);
}

}  // namespace espalier::simd
