// Dot products of rows with rows, each computed in one fixed order: lane j of a vector of W partial
// sums takes elements j, j + W, j + 2W, ... by fused multiply-add, and the lanes are added by the
// tree of simd::SumEach. A product's bits depend on its two rows alone, not on how many are
// computed together.
#pragma once

#include "ops/cpu/simd.h"

namespace espalier::simd {

// products[r * C + c] = dot(a[r], b[c]) over n elements; R * C must be W.
template <int W, int R, int C>
ESPALIER_INLINE Float<W> DotTile(const float* const* a, const float* const* b, int64_t n) {
  static_assert(R * C == W);
  Float<W> acc[W] = {};
  int64_t k = 0;
  for (; k + W <= n; k += W) {
    Float<W> left[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) left[r] = Load<W>(a[r] + k);
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      const Float<W> right = Load<W>(b[c] + k);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) acc[r * C + c] = left[r] * right + acc[r * C + c];
    }
  }
  if (k < n) {
    for (int c = 0; c < C; ++c) {
      const Float<W> right = LoadPartial<W>(b[c] + k, n - k);
      for (int r = 0; r < R; ++r) {
        acc[r * C + c] = LoadPartial<W>(a[r] + k, n - k) * right + acc[r * C + c];
      }
    }
  }
  return SumEach<W>(acc);
}

}  // namespace espalier::simd
